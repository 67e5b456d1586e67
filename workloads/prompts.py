"""What an engine will make of a turn: the token ids of its whole prompt, by the model's own tokenizer and template."""

import functools
import re
from typing import NamedTuple

import msgspec

from workloads.tokenizer import Tokenizer
from workloads.types import Turn


class _Wall(NamedTuple):
    """A special token: from where to where in the text, and which of its ids."""

    start: int
    end: int
    number: int


class PromptReader:
    """Encodes whole prompts; of one that begins like the last it encodes only what is new.

    A special token is a wall to every tokenizer: what stands before it is encoded as if nothing followed. So the ids
    up to the last special token that two prompts have in common are kept, and the turns of a growing conversation
    cost their new part each instead of the whole.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = re.compile("|".join(map(re.escape, tokenizer.special_tokens)) or r"(?!)")
        self._text = ""
        self._ids: list[int] = []
        self._walls: list[_Wall] = []
        """The special tokens of the last text."""

    def ids(self, turn: Turn) -> list[int]:
        """Token ids of the turn's prompt.

        A chat's are those of the rendered template; a completion's have before them what the model puts before every
        text.
        """
        if turn.messages is None:
            return self._tokenizer.encode_prompt(turn.prompt or "")
        return self._chat_ids(self._tokenizer.render_chat([msgspec.structs.asdict(m) for m in turn.messages]))

    def count(self, turn: Turn) -> int:
        """Tokens of the turn's prompt."""
        return len(self.ids(turn))

    def _chat_ids(self, text: str) -> list[int]:
        if text == self._text:
            return self._ids
        kept_walls = len(self._walls)
        while kept_walls and not text.startswith(self._text[: self._walls[kept_walls - 1].end]):
            kept_walls -= 1
        at, kept = (self._walls[kept_walls - 1].start, self._walls[kept_walls - 1].number) if kept_walls else (0, 0)
        new_ids = self._tokenizer.encode(text[at:])
        self._walls = self._walls[: max(0, kept_walls - 1)] + self._found_walls(text, at, new_ids, kept)
        self._text, self._ids = text, self._ids[:kept] + new_ids
        return self._ids

    def _found_walls(self, text: str, at: int, ids: list[int], kept: int) -> "list[_Wall]":
        places = [match.span() for match in self._special.finditer(text, at)]
        numbers = [i for i, token in enumerate(ids) if token in self._tokenizer.special_ids]
        if len(places) != len(numbers):
            return []
        return [_Wall(start, end, kept + number) for (start, end), number in zip(places, numbers, strict=True)]


@functools.lru_cache(maxsize=4)
def prompt_reader(tokenizer: Tokenizer) -> PromptReader:
    """The reader of a tokenizer."""
    return PromptReader(tokenizer)
