"""``embeddings`` and ``rerank``: texts for models that answer with vectors or scores instead of tokens."""

import itertools
from collections.abc import Callable, Iterator

import msgspec

from bakeoff.workloads.prompts import prompt_reader
from bakeoff.workloads.rng import Seed
from bakeoff.workloads.shapes import SessionShape
from bakeoff.workloads.text import first_mark, writer
from bakeoff.workloads.tokenizer import Tokenizer
from bakeoff.workloads.types import Session, Turn

_NOTE = "meaningless words of the stated lengths; an answer has no tokens, so only its end is timed"


class Embeddings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Texts to embed, by ``/v1/embeddings``."""

    input_tokens: int = 256
    """Mean length of a text in tokens."""
    texts: int = 1
    """Texts in one request."""
    spread: float = 0.0
    """Lengths are uniform in [L (1 - spread), L (1 + spread)]; 0 makes them all equal."""

    def __post_init__(self) -> None:
        _check({"input_tokens": self.input_tokens, "texts": self.texts}, self.spread)

    def sessions(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:
        """Sessions of one request each."""
        write, lengths = _writing("embeddings", tokenizer, seed), seed.draws("embeddings", "lengths")
        for number in itertools.count():
            tokens = [lengths.length(self.input_tokens, self.spread) for _ in range(self.texts)]
            yield write(number, None, tokens)

    def shapes(self, seed: Seed) -> Iterator[SessionShape]:
        """The same sessions without text."""
        del seed
        return itertools.repeat(SessionShape((1,), (0.0,)))

    def notes(self) -> list[str]:
        """That the text is meaningless."""
        return [f"embeddings: {_NOTE}"]


class Rerank(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Documents to rank by a query, by ``/v1/rerank``."""

    query_tokens: int = 32
    """Length of a query in tokens."""
    input_tokens: int = 256
    """Mean length of a document in tokens."""
    documents: int = 16
    """Documents in one request."""
    spread: float = 0.0
    """Lengths of documents are uniform in [L (1 - spread), L (1 + spread)]; 0 makes them all equal."""

    def __post_init__(self) -> None:
        lengths = {"query_tokens": self.query_tokens, "input_tokens": self.input_tokens, "documents": self.documents}
        _check(lengths, self.spread)

    def sessions(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:
        """Sessions of one request each."""
        write, lengths = _writing("rerank", tokenizer, seed), seed.draws("rerank", "lengths")
        for number in itertools.count():
            tokens = [lengths.length(self.input_tokens, self.spread) for _ in range(self.documents)]
            yield write(number, self.query_tokens, tokens)

    def shapes(self, seed: Seed) -> Iterator[SessionShape]:
        """The same sessions without text."""
        del seed
        return itertools.repeat(SessionShape((1,), (0.0,)))

    def notes(self) -> list[str]:
        """That the text is meaningless."""
        return [f"rerank: {_NOTE}"]


def _check(counts: dict[str, int], spread: float) -> None:
    for name, count in counts.items():
        if not 1 <= count <= 1_000_000:
            raise ValueError(f"{name} must be from 1 to 1000000, not {count}")
    if not 0 <= spread < 1:
        raise ValueError(f"spread must be at least 0 and below 1, not {spread}")


def _writing(name: str, tokenizer: Tokenizer, seed: Seed) -> Callable[[int, int | None, list[int]], Session]:
    """Writes a session from its number, the tokens of its query (None without one), and those of its texts."""
    base, words, reader = first_mark(seed), writer(tokenizer), prompt_reader(tokenizer)

    def write(number: int, query_tokens: int | None, tokens: list[int]) -> Session:
        rng = seed.wording(name, "text", str(number))
        query = None if query_tokens is None else words.passage(query_tokens, rng, base + number).lstrip()
        texts = tuple(words.passage(count, rng, base + number + i).lstrip() for i, count in enumerate(tokens))
        turn = Turn(0, 1, prompt=query, passages=texts)
        return Session(f"{name}-{number}", (msgspec.structs.replace(turn, input_tokens=reader.count(turn)),))

    return write
