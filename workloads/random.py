"""``random``: random words of fixed or uniformly distributed lengths, the usual synthetic load."""

import itertools
from collections.abc import Callable, Iterator, Mapping

import msgspec

from bakeoff.workloads.prompts import prompt_reader
from bakeoff.workloads.rng import Seed
from bakeoff.workloads.shapes import SessionShape
from bakeoff.workloads.text import first_mark, writer
from bakeoff.workloads.tokenizer import Tokenizer
from bakeoff.workloads.types import Session, Turn


class Random(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Completions of random single-token words, without a chat template."""

    input_tokens: int = 128
    """Mean prompt length in tokens, including those that the model puts before every text."""
    output_tokens: int = 32
    """Mean answer length in tokens."""
    spread: float = 0.0
    """Lengths are uniform in [L (1 - spread), L (1 + spread)]; 0 makes them all equal."""

    def __post_init__(self) -> None:
        if self.input_tokens < 1 or self.output_tokens < 1:
            raise ValueError("input_tokens and output_tokens must be at least 1")
        if not 0 <= self.spread < 1:
            raise ValueError(f"spread must be at least 0 and below 1, not {self.spread}")

    def sessions(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:
        """Sessions of one turn each."""
        write = _writing(tokenizer, seed)
        return (write(number, *lengths) for number, lengths in enumerate(self._lengths(seed)))

    def chosen(self, tokenizer: Tokenizer, seed: Seed, turns: Mapping[int, int]) -> Iterator[Session]:
        write = _writing(tokenizer, seed)
        for number, lengths in enumerate(itertools.islice(self._lengths(seed), max(turns, default=-1) + 1)):
            if number in turns:
                yield write(number, *lengths)

    def shapes(self, seed: Seed) -> Iterator[SessionShape]:
        """The same sessions without text."""
        return (SessionShape((output,), (0.0,)) for _, output in self._lengths(seed))

    def notes(self) -> list[str]:
        """That the text is meaningless."""
        return ["random: meaningless words, unlike real traffic; do not choose an engine by this workload"]

    def _lengths(self, seed: Seed) -> Iterator[tuple[int, int]]:
        """Tokens of each prompt and answer."""
        lengths = seed.draws("random", "lengths")
        while True:
            prompt = lengths.length(self.input_tokens, self.spread)
            yield prompt, lengths.length(self.output_tokens, self.spread)


def _writing(tokenizer: Tokenizer, seed: Seed) -> Callable[[int, int, int], Session]:
    """Writes a session from its number, the tokens of its prompt and those of its answer."""
    base, words, reader = first_mark(seed), writer(tokenizer), prompt_reader(tokenizer)
    before = len(tokenizer.encode_prompt(""))

    def write(number: int, tokens: int, output: int) -> Session:
        tokens = max(tokens, before + 1)
        rng = seed.wording("random", "text", str(number))
        head = "".join(words.head(base + number, rng)[: tokens - before])
        prompt = words.more(head, 0, rng).lstrip()
        missing = tokens - reader.count(Turn(tokens, output, prompt=prompt))
        return Session(f"random-{number}", (Turn(tokens, output, prompt=words.more(prompt, missing, rng)),))

    return write
