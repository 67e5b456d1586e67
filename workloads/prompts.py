"""Token ids of a turn's whole prompt, as an engine computes them with the model's tokenizer and chat template."""

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from bakeoff.workloads.tokenizer import Tokenizer
from bakeoff.workloads.types import Turn


class _Boundary(NamedTuple):
    """A special token: its span in the text and its position in the ids."""

    start: int
    end: int
    number: int


class PromptReader:
    """Encodes prompts incrementally: only what differs from the previous prompt is encoded.

    Tokenizers split text at special tokens: text before one is encoded independently of what follows. So ids up to the
    last special token that two prompts share are reused, and each turn of a conversation costs only its new part.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = re.compile("|".join(map(re.escape, tokenizer.special_tokens)) or r"(?!)")
        self._text = ""
        self._ids: list[int] = []
        self._boundaries: list[_Boundary] = []
        """Special tokens of the previous text."""

    def ids(self, turn: Turn) -> list[int]:
        """Token ids of the turn's prompt.

        A chat is rendered by the template; a completion gets the tokens that the model puts before every text.
        """
        if turn.passages is not None:
            return [i for text in _passages(turn) for i in self._tokenizer.encode_prompt(text)]
        if turn.messages is None:
            return self._tokenizer.encode_prompt(turn.prompt or "")
        return self._chat_ids(rendered(turn, self._tokenizer))

    def count(self, turn: Turn) -> int:
        """Number of tokens of the turn's prompt."""
        return len(self.ids(turn))

    def _chat_ids(self, text: str) -> list[int]:
        if text == self._text:
            return self._ids
        common = len(self._boundaries)
        while common and not text.startswith(self._text[: self._boundaries[common - 1].end]):
            common -= 1
        at, kept = (self._boundaries[common - 1].start, self._boundaries[common - 1].number) if common else (0, 0)
        new_ids = self._tokenizer.encode(text[at:])
        self._boundaries = self._boundaries[: max(0, common - 1)] + self._boundaries_in(text, at, new_ids, kept)
        self._text, self._ids = text, self._ids[:kept] + new_ids
        return self._ids

    def _boundaries_in(self, text: str, at: int, ids: list[int], kept: int) -> "list[_Boundary]":
        places = [match.span() for match in self._special.finditer(text, at)]
        numbers = [i for i, token in enumerate(ids) if token in self._tokenizer.special_ids]
        if len(places) != len(numbers):
            return []
        return [_Boundary(start, end, kept + number) for (start, end), number in zip(places, numbers, strict=True)]


def rendered(turn: Turn, tokenizer: Tokenizer) -> str:
    """A chat as the model reads it."""
    messages = [message.for_template() for message in turn.messages or ()]
    return tokenizer.render_chat(messages, None if turn.tools is None else msgspec.json.decode(turn.tools))


def _passages(turn: Turn) -> Iterator[str]:
    """The texts that the model reads; each document is ranked together with the query."""
    for passage in turn.passages or ():
        yield passage if turn.prompt is None else f"{turn.prompt}{passage}"


@functools.lru_cache(maxsize=4)
def prompt_reader(tokenizer: Tokenizer) -> PromptReader:
    """The shared reader of a tokenizer, with its state."""
    return PromptReader(tokenizer)
