"""Bins for lengths and pauses: logarithmic where they span much, of equal width where they do not."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

LOG_FROM = 4.0
"""A span of values wider than this ratio is binned logarithmically."""
SHORTEST_S = 0.01
"""A shorter pause is none."""
_MOST = 40


class Bin(msgspec.Struct, frozen=True):
    """Values from ``low`` up to, but not with, ``high``."""

    low: float
    high: float
    count: int


class Binned(msgspec.Struct, frozen=True):
    """A sample in bins.

    Attributes:
        log: whether the bins' bounds grow by a factor rather than by a step.
        bins: without gaps, in order; empty where the sample is.
        total: values in the sample, with those that no bin holds.
    """

    log: bool
    bins: tuple[Bin, ...]
    total: int

    @property
    def heights(self) -> list[float]:
        """Percent of the sample: for each doubling of the value where bins are logarithmic, else in each bin."""
        widths = [math.log2(one.high / one.low) if self.log else 1.0 for one in self.bins]
        return [100 * one.count / self.total / width for one, width in zip(self.bins, widths, strict=True)]


def whole_bins(values: Sequence[int]) -> Binned:
    """Bins of whole numbers from 1 on, such as tokens and turns, each at least 1 wide."""
    if not values:
        return Binned(log=False, bins=(), total=0)
    low, high, most = min(values), max(values) + 1, _count(len(values))
    if high / low > LOG_FROM:
        return _binned(values, np.unique(np.ceil(np.geomspace(low, high, most + 1) - 1e-6)).tolist(), log=True)
    step = _step(high - low, most)
    return _binned(values, [float(low + step * i) for i in range(math.ceil((high - low) / step) + 1)], log=False)


def second_bins(values: Sequence[float]) -> Binned:
    """Bins of times; those below ``SHORTEST_S`` are counted and lie in no bin."""
    positive = [value for value in values if value >= SHORTEST_S]
    if not positive:
        return Binned(log=False, bins=(), total=len(values))
    low, high, most = min(positive), max(positive) * 1.000_001, _count(len(positive))
    log = high / low > LOG_FROM
    edges = np.geomspace(low, high, most + 1) if log else np.linspace(low, high, most + 1)
    edges[0] = low  # geomspace may miss its ends by a rounding error
    return _binned(positive, edges.tolist(), log=log, total=len(values))


def _binned(values: Sequence[float], edges: list[float], *, log: bool, total: int | None = None) -> Binned:
    counts = np.histogram(values, edges)[0].tolist()
    bins = [Bin(low, high, count) for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)]
    return Binned(log, tuple(bins), len(values) if total is None else total)


def _step(span: int, most: int) -> int:
    """Bin width that gives at most ``most`` bins, chosen to waste the least of the last one."""
    least = math.ceil(span / most)
    return min(range(least, least + least // 2 + 1), key=lambda step: (-span % step) / step)


def _count(n: int) -> int:
    """Bins for ``n`` values: half as many again as the Rice rule, as lengths tend to have several modes."""
    return min(_MOST, math.ceil(3 * n ** (1 / 3)))
