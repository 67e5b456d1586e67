"""A tokenizer without a file: a word is a token."""

import functools
import itertools
import zlib
from collections.abc import Sequence
from typing import ClassVar

from bakeoff.workloads.approximate import ApproximateTokenizer

_SYLLABLES = tuple(a + b for a, b in itertools.product("bdfgklmnprstvz", "aeiou"))
_WORDS = 1024
_KEPT = 100_000
"""Most words whose ids are kept: a language has fewer, but random words would fill the memory."""
_UNKNOWN = 1 << 20
"""First id of words outside the vocabulary."""


class _Ids(dict[str, int]):
    """Ids of the vocabulary's words; any other word has the id of its checksum."""

    def __missing__(self, word: str) -> int:
        number = _UNKNOWN + (zlib.crc32(word.encode()) >> 1)
        if len(self) < _KEPT:
            self[word] = number
        return number


class WordTokenizer(ApproximateTokenizer):
    """Splits at white space, as the virtual servers do; a chat's prompt is its contents joined.

    Making a prompt of exact length takes microseconds.
    """

    is_exact: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        words = ("".join(pair) for pair in itertools.product(_SYLLABLES, _SYLLABLES))
        self._ids = _Ids({word: number for number, word in enumerate(itertools.islice(words, _WORDS))})
        self._words = list(self._ids)

    def encode(self, text: str) -> list[int]:
        """One id per word."""
        return list(map(self._ids.__getitem__, text.split()))

    def decode(self, ids: Sequence[int]) -> str:
        """The words, with ``?`` for those outside the vocabulary."""
        return " ".join(self._words[i] if i < _WORDS else "?" for i in ids)

    def count(self, text: str) -> int:
        """Number of words."""
        return len(text.split())

    @property
    def vocabulary(self) -> dict[str, int]:
        """Every word of the vocabulary with the space before it, as ``Ġ``."""
        return {f"Ġ{word}": number for number, word in enumerate(self._words)}


@functools.cache
def word_tokenizer() -> WordTokenizer:
    """The tokenizer shared by all virtual worlds, so that its caches are shared too."""
    return WordTokenizer()
