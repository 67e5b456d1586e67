"""Random draws that are the same on every machine and every Python.

Only ``random.Random(str)`` (seeded through SHA-512, so ``PYTHONHASHSEED`` has no part in it) and its ``random()`` are
used: Python promises both not to change. Every other draw is made from that one here.
"""

import math
import random
from collections.abc import Sequence
from typing import TypeVar

import msgspec

T = TypeVar("T")


class Rng:
    """A named stream of draws: ``Rng("7", "chat", "lengths")``."""

    def __init__(self, *path: str) -> None:
        self._random = random.Random("/".join(path))  # noqa: S311  (traffic, not secrets)

    def uniform(self) -> float:
        """A float in [0, 1)."""
        return self._random.random()

    def below(self, n: int) -> int:
        """An integer in [0, n)."""
        return int(self.uniform() * n)

    def choice(self, items: Sequence[T]) -> T:
        """One of ``items``."""
        return items[self.below(len(items))]

    def exponential(self, mean: float) -> float:
        """An exponential draw."""
        return -mean * math.log1p(-self.uniform())


class Seed(msgspec.Struct, frozen=True):
    """Two seeds of one plan, so that a trial can ask for the same traffic in words that no cache has seen.

    Attributes:
        traffic: of lengths, times and order.
        words: of the text.
    """

    traffic: str
    words: str

    @classmethod
    def of(cls, seed: str) -> "Seed":
        """Both seeds alike."""
        return cls(seed, seed)

    def draws(self, *path: str) -> Rng:
        """A stream of draws for lengths, times and order."""
        return Rng(self.traffic, *path)

    def wording(self, *path: str) -> Rng:
        """A stream of draws for text."""
        return Rng(self.words, *path)
