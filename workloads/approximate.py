"""An approximate tokenizer for models whose own is not available; prompts have about the intended length.

Text is split like the pre-tokenizer of byte-level vocabularies (Radford et al. 2019): a word with the space before it,
up to three digits, a run of punctuation, a line break. Long words are split further. On English prose and code the
number of pieces is within about 10 % of the token counts of current models. Engines report their own counts.
"""

import functools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from bakeoff.workloads.tokenizer import Tokenizer

APPROXIMATE = "approximate"
"""Value for the tokenizer's folder in an experiment file."""

_WORD_CHARS = 12
"""Longer words are split."""
_PIECES = re.compile(rf" ?[^\W\d_]{{1,{_WORD_CHARS}}}| ?\d{{1,3}}| ?(?:[^\s\w]|_)+|\n+|\s+(?=\s)|\s", re.UNICODE)
_WORDS = """
about above after again against almost alone along already also although always among another around away back became
because become been before began begin behind being below better between both brought build built business call called
came cannot care carry case cause change child children city clear close come common company country course court
cover cross current daily data days decided deep does doing done door down during each early earth east easy effect
either else energy enough even evening ever every example eyes face fact fall family father feel feet field figure
final find first five follow food foot force form found four free friend from front full further gave general give
given going gone good government great green ground group grow half hand hard have head hear heard heart held help
here high himself hold home hope hour house however human hundred idea important inside interest into itself just keep
kept kind knew know known land large last late later least leave left less letter level life light like likely line
list little live local long look lost made main make many mark matter mean means meet mind minute money month more
morning most mother move much music must name national near need never next night north note nothing number office
often once only open order other others over page paper part past people perhaps period person picture piece place
plan plant play point political poor possible power present press problem process provide public question quick quite
rather reach read ready real reason right river road room round rule said same school second seem seen sense service
several shall short should show side simple since small social some song soon south space stand start state step still
stood story street strong study such sure system table take taken talk tell than that their them then there these they
thing think third this those though thought thousand three through time today together told took toward town tree true
turn under unit until upon usually value very voice walk want water week well went were west what when where which
while white whole whose wide will wind wish with within without woman word work world would write year yet young your
"""


class ApproximateTokenizer(Tokenizer):
    """Counts pieces as the module describes; a chat's prompt is its messages without a template."""

    is_exact: ClassVar[bool] = False

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        """One id per piece, assigned in the order of first use."""
        return [self._id(piece) for piece in _PIECES.findall(text)]

    def encode_prompt(self, text: str) -> list[int]:
        """Same as :meth:`encode`: no tokens precede a text."""
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The concatenated pieces."""
        return "".join(self._pieces[i] for i in ids)

    def count(self, text: str) -> int:
        """Number of pieces."""
        return len(_PIECES.findall(text))

    def starts(self, text: str) -> list[int]:
        """Position of the first character of each piece."""
        return [piece.start() for piece in _PIECES.finditer(text)]

    @functools.cached_property
    def special_tokens(self) -> tuple[str, ...]:
        """Empty: there are no special tokens."""
        return ()

    @functools.cached_property
    def special_ids(self) -> frozenset[int]:
        """Empty: there are no special tokens."""
        return frozenset()

    @property
    def vocabulary(self) -> dict[str, int]:
        """Common English words that are one token in current vocabularies, with the space before them."""
        return {f"Ġ{word}": self._id(f" {word}") for word in _WORDS.split()}

    def render_chat(self, messages: Sequence[dict[str, Any]], tools: list[Any] | None = None) -> str:
        """The tools and messages, one per line; reasoning stands before its message."""
        lines = [json.dumps(tool) for tool in tools or ()]
        for message in messages:
            lines += [str(message["reasoning_content"])] if "reasoning_content" in message else []
            lines.append(str(message["content"]))
            lines += [json.dumps(call["function"]) for call in message.get("tool_calls", ())]
        return "\n".join(lines)

    def _id(self, piece: str) -> int:
        number = self._ids.get(piece)
        if number is None:
            number = self._ids[piece] = len(self._pieces)
            self._pieces.append(piece)
        return number


def tokenizer_at(place: str) -> Tokenizer:
    """The tokenizer in a folder, or the approximate tokenizer if ``place`` is :data:`APPROXIMATE`.

    Raises:
        NoTokenizer: the folder has no ``tokenizer.json``.
    """
    return _shared() if place == APPROXIMATE else Tokenizer(Path(place).expanduser())


@functools.cache
def _shared() -> ApproximateTokenizer:
    """One instance for all callers, so that they share caches keyed by tokenizer."""
    return ApproximateTokenizer()
