"""Zipf's law over a finite number of things."""

import itertools
from bisect import bisect_right

from workloads.rng import Rng


class Popularity:
    """Draws one of ``count`` things, the k-th (from 1) with a probability proportional to ``k ** -skew``."""

    def __init__(self, count: int, skew: float) -> None:
        self._cumulative = list(itertools.accumulate(k**-skew for k in range(1, count + 1)))

    def sample(self, rng: Rng) -> int:
        """Position from 0, the most popular first."""
        total = self._cumulative[-1]
        return min(bisect_right(self._cumulative, rng.uniform() * total), len(self._cumulative) - 1)
