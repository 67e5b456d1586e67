"""Token ids of a turn's whole prompt, as an engine computes them with the model's tokenizer and chat template."""

import functools
import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from bakeoff.workloads.tokenizer import Tokenizer
from bakeoff.workloads.types import Turn

_KEPT, _KEPT_TOKENS = 32, 1 << 20
"""Earlier prompts that a reader keeps, and their tokens: 19 conversations of 55,000."""
_GOES_ON = 0.75
"""A prompt that begins with this part of an earlier one is the next of its conversation, and takes its place."""


class _Boundary(NamedTuple):
    """A special token: its span in the text and its position in the ids."""

    start: int
    end: int
    number: int


class _Encoded(NamedTuple):
    """An encoded prompt.

    Attributes:
        text: of the prompt.
        ids: of its tokens.
        boundaries: its special tokens; none if they cannot be told.
        most: number of the first of them behind most of the text.
    """

    text: str = ""
    ids: Sequence[int] = ()
    boundaries: Sequence[_Boundary] = ()
    most: int = 0

    def shared(self, text: str, first: int) -> int:
        """Number of leading boundaries up to which another text is the same; ``first`` of them are known to be."""
        rest = range(first, len(self.boundaries))
        return first + bisect_left(rest, True, key=lambda number: not self.begins(text, number))

    def goes_on_in(self, text: str) -> bool:
        """Whether another text is likely to be the next prompt of the conversation."""
        return self.most < len(self.boundaries) and self.begins(text, self.most)

    def begins(self, text: str, number: int) -> bool:
        """Whether another text is the same up to the end of one boundary."""
        return text.startswith(self.text[: self.boundaries[number].end])


class PromptReader:
    """Encodes prompts incrementally: only what differs from an earlier prompt is encoded.

    Tokenizers split text at special tokens: text before one is encoded independently of what follows. So ids up to the
    last special token that two prompts share are reused, and each turn of a conversation costs only its new part, also
    where conversations alternate, as those of agents do.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = re.compile("|".join(map(re.escape, tokenizer.special_tokens)) or r"(?!)")
        self._recent: list[_Encoded] = []
        """The last prompt of each conversation, the latest first."""

    def ids(self, turn: Turn) -> Sequence[int]:
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

    def _chat_ids(self, text: str) -> Sequence[int]:
        before, common = self._earlier(text)
        if text != before.text:
            last = before.boundaries[common - 1] if common else _Boundary(0, 0, 0)
            new_ids = self._tokenizer.encode(text[last.start :])
            boundaries = [
                *before.boundaries[: max(0, common - 1)], *self._boundaries_in(text, last.start, new_ids, last.number)
            ]  # fmt: skip
            if last.end >= _GOES_ON * len(before.text):
                self._recent = [each for each in self._recent if each is not before]
            most = bisect_left(boundaries, _GOES_ON * len(text), key=lambda boundary: boundary.end)
            before = _Encoded(text, [*before.ids[: last.number], *new_ids], boundaries, most)
        self._remember(before)
        return before.ids

    def _earlier(self, text: str) -> tuple[_Encoded, int]:
        """The earlier prompt that shares the most with a text, and the number of boundaries up to which it does."""
        for each in self._recent:
            if each.goes_on_in(text):
                return each, each.shared(text, each.most + 1)
        best, common, end = _Encoded(), 0, 0
        for each in self._recent:
            further = bisect_right(each.boundaries, end, key=lambda boundary: boundary.end)
            if further < len(each.boundaries) and each.begins(text, further):
                best, common = each, each.shared(text, further + 1)
                end = each.boundaries[common - 1].end
        return best, common

    def _remember(self, latest: _Encoded) -> None:
        self._recent = [latest, *(each for each in self._recent if each is not latest)][:_KEPT]
        kept_tokens = itertools.accumulate(len(each.ids) for each in self._recent)
        self._recent = [
            each for each, tokens in zip(self._recent, kept_tokens, strict=True)
            if tokens <= _KEPT_TOKENS or each is latest
        ]  # fmt: skip

    def _boundaries_in(self, text: str, at: int, ids: Sequence[int], kept: int) -> list[_Boundary]:
        if not self._tokenizer.special_ids:
            return []
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
