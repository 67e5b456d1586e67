"""Random draws that are the same on every machine and in every Python version.

They use only ``random.Random(str)`` (seeded through SHA-512, independent of ``PYTHONHASHSEED``) and its ``random()``,
both of which Python guarantees not to change. All other draws are derived from them.
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

    def length(self, mean: int, spread: float) -> int:
        """A length uniform in [mean (1 - spread), mean (1 + spread)], at least 1."""
        return max(1, round(mean * (1 + spread * (2 * self.uniform() - 1))))

    def choice(self, items: Sequence[T]) -> T:
        """One of ``items``."""
        return items[self.below(len(items))]

    def exponential(self, mean: float) -> float:
        """An exponential draw with the given mean."""
        return -mean * math.log1p(-self.uniform())

    def normal(self) -> float:
        """A standard normal draw, from two uniform draws (Box and Muller 1958; one of the pair)."""
        radius = math.sqrt(-2 * math.log1p(-self.uniform()))
        return radius * math.cos(2 * math.pi * self.uniform())

    def gamma(self, shape: float) -> float:
        """A Gamma draw of unit scale: mean and variance are both ``shape``.

        Marsaglia and Tsang, "A simple method for generating gamma variables", ACM TOMS 26 (2000), with their boost
        for shapes below 1: Gamma(shape) = Gamma(shape + 1) · U^(1/shape).
        """
        if shape < 1:
            return self.gamma(shape + 1) * (1 - self.uniform()) ** (1 / shape)
        d = shape - 1 / 3
        c = 1 / math.sqrt(9 * d)
        while True:
            x = self.normal()
            v = (1 + c * x) ** 3
            if v > 0 and math.log1p(-self.uniform()) < x * x / 2 + d - d * v + d * math.log(v):
                return d * v

    def weibull(self, shape: float) -> float:
        """A Weibull draw of unit scale, by inversion: an exponential draw to the power of 1/shape."""
        return self.exponential(1.0) ** (1 / shape)


class Seed(msgspec.Struct, frozen=True):
    """Two seeds, so that a trial can repeat the same traffic with text that no cache has seen.

    Attributes:
        traffic: seed of lengths, times and order.
        words: seed of the text.
    """

    traffic: str
    words: str

    @classmethod
    def of(cls, seed: str) -> "Seed":
        """The same seed for both."""
        return cls(seed, seed)

    def draws(self, *path: str) -> Rng:
        """A stream of draws for lengths, times and order."""
        return Rng(self.traffic, *path)

    def wording(self, *path: str) -> Rng:
        """A stream of draws for text."""
        return Rng(self.words, *path)
