"""A tokenizer without a file: a word is a token."""

import functools
import itertools
import zlib
from collections.abc import Sequence
from typing import ClassVar

from workloads.approximate import ApproximateTokenizer

_SYLLABLES = tuple(a + b for a, b in itertools.product("bdfgklmnprstvz", "aeiou"))
_WORDS = 1024
_UNKNOWN = 1 << 20
"""Ids of words that are not in the vocabulary begin here."""


class WordTokenizer(ApproximateTokenizer):
    """Splits at white space, as the servers that it is used with; a chat's prompt is its contents, one after the other.

    Prompts of exact length cost microseconds.
    """

    is_exact: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        words = ("".join(pair) for pair in itertools.product(_SYLLABLES, _SYLLABLES))
        self._ids = {word: number for number, word in enumerate(itertools.islice(words, _WORDS))}
        self._words = list(self._ids)

    def encode(self, text: str) -> list[int]:
        """One id for each word."""
        return [self._id(word) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        """The words; those that are not in the vocabulary are lost."""
        return " ".join(self._words[i] if i < _WORDS else "?" for i in ids)

    def count(self, text: str) -> int:
        """Words."""
        return len(text.split())

    @property
    def vocabulary(self) -> dict[str, int]:
        """Every word that can stand in a prompt, the space before it included."""
        return {f"Ġ{word}": number for word, number in self._ids.items()}

    def _id(self, piece: str) -> int:
        known = self._ids.get(piece)
        return known if known is not None else _UNKNOWN + (zlib.crc32(piece.encode()) >> 1)


@functools.cache
def word_tokenizer() -> WordTokenizer:
    """The one that every virtual world uses, with what writers have learnt of it."""
    return WordTokenizer()
