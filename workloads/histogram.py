"""One quantity of a sample: mean, quantiles, and bins that are logarithmic where the values span a wide range."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

LOG_FROM = 4.0
"""Largest over smallest value above which bins are logarithmic."""
SHORTEST_S = 0.01
"""Times below this count as zero and lie in no bin."""
_MAX_BINS = 40


class Bin(msgspec.Struct, frozen=True):
    """Number of values in ``[low, high)``."""

    low: float
    high: float
    count: int


class Histogram(msgspec.Struct, frozen=True):
    """A sample of one quantity.

    Attributes:
        total: number of values, including those that lie in no bin.
        mean: of all values; 0 for an empty sample, as are the quantiles.
        p50: median.
        p90: 90th percentile.
        p99: 99th percentile.
        max: largest value.
        logarithmic: whether bin edges grow by a factor instead of a step.
        bins: contiguous, in ascending order.
    """

    total: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float
    logarithmic: bool
    bins: tuple[Bin, ...]

    @property
    def heights(self) -> list[float]:
        """Percent of the sample: per doubling of the value for logarithmic bins, else per bin."""
        widths = [math.log2(bin_.high / bin_.low) if self.logarithmic else 1.0 for bin_ in self.bins]
        return [100 * bin_.count / self.total / width for bin_, width in zip(self.bins, widths, strict=True)]


def integer_histogram(values: Sequence[int]) -> Histogram:
    """Histogram of integers from 1 on, such as token counts; every bin is at least 1 wide."""
    if not values:
        return _histogram(values, [])
    low, high, max_bins = min(values), max(values) + 1, _bin_count(len(values))
    if high / low > LOG_FROM:
        edges = np.unique(np.ceil(np.geomspace(low, high, max_bins + 1) - 1e-6)).tolist()
        return _histogram(values, edges, logarithmic=True)
    step = _step(high - low, max_bins)
    return _histogram(values, [float(low + step * i) for i in range(math.ceil((high - low) / step) + 1)])


def seconds_histogram(values: Sequence[float]) -> Histogram:
    """Histogram of times; values below ``SHORTEST_S`` count in ``total`` and the quantiles but lie in no bin."""
    positive = [value for value in values if value >= SHORTEST_S]
    if not positive:
        return _histogram(values, [])
    low, high, max_bins = min(positive), max(positive) * 1.000_001, _bin_count(len(positive))
    logarithmic = high / low > LOG_FROM
    edges = np.geomspace(low, high, max_bins + 1) if logarithmic else np.linspace(low, high, max_bins + 1)
    edges[0] = low  # geomspace can miss its ends by a rounding error
    return _histogram(values, edges.tolist(), logarithmic=logarithmic)


def _histogram(values: Sequence[float], edges: list[float], *, logarithmic: bool = False) -> Histogram:
    counts = np.histogram(values, edges)[0].tolist() if edges else []
    bins = tuple(Bin(low, high, count) for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True))
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist() if len(values) else (0.0, 0.0, 0.0)
    mean, largest = (float(np.mean(values)), max(values)) if len(values) else (0.0, 0.0)
    return Histogram(len(values), mean, p50, p90, p99, largest, logarithmic, bins)


def _step(span: int, max_bins: int) -> int:
    """Bin width giving at most ``max_bins`` bins, chosen to waste the least of the last one."""
    least = math.ceil(span / max_bins)
    return min(range(least, least + least // 2 + 1), key=lambda step: (-span % step) / step)


def _bin_count(n: int) -> int:
    """Bins for ``n`` values: 1.5 times the Rice rule, because lengths tend to have several modes."""
    return min(_MAX_BINS, math.ceil(3 * n ** (1 / 3)))
