"""How bursty a stream of arrivals is, at every scale: statistics that are kept up while it goes by.

Three figures say three things. The coefficient of variation of the gaps looks from one arrival to the next; the index
of dispersion of counts (variance over mean of the arrivals in each window) looks at windows of one length, so a rate
that drifts slowly shows in long ones only; the peak over the mean is what an engine must bear. A Poisson process has 1
for the first two, whatever the window.
"""

import math
from array import array
from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

WINDOWS_S = (1, 10, 60, 300)
"""Windows that reports show, in seconds."""
FEWEST_WINDOWS = 10
"""Fewer windows than this give no index of dispersion."""
_CHUNK = 65_536
_LONGEST_SPAN_S = 10**8
_BIN = math.log(1.01)
"""Width of a bin of gaps, as a logarithm."""
_SHORTEST_GAP_S = 1e-9
_BINS = math.ceil(math.log(1e9 / _SHORTEST_GAP_S) / _BIN)


class ArrivalCounts(msgspec.Struct, frozen=True):
    """Arrivals over time, for drawing.

    Attributes:
        bin_s: width of each bin in seconds, a whole number.
        counts: arrivals in each, from the start of the load; the last one may be cut short.
    """

    bin_s: int
    counts: tuple[int, ...]


class ArrivalStatistics:
    """Fed one offset at a time. Holds one count for each second of the stream and nothing for each arrival."""

    def __init__(self) -> None:
        self._waiting = array("d")
        self._count = 0
        self._first_s = self._last_s = 0.0
        self._gaps = _Gaps()
        self._per_second: NDArray[np.int32] = np.zeros(1024, np.int32)

    def add(self, offset_s: float) -> None:
        """Take in an arrival.

        Args:
            offset_s: seconds from the start of the load, not before the arrival before it.

        Raises:
            ValueError: it is, or it is negative or above 10⁸ (seconds since 1970 are no offset). Offsets are looked
                at in batches, so this or a later call complains.
        """
        self._waiting.append(offset_s)
        if len(self._waiting) >= _CHUNK:
            self._take_in()

    def add_all(self, offsets_s: Iterable[float]) -> None:
        """Take in many."""
        for offset_s in offsets_s:
            self.add(offset_s)

    @property
    def count(self) -> int:
        """Arrivals so far."""
        return self._count + len(self._waiting)

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last; 0 for fewer than two."""
        self._take_in()
        return self._last_s - self._first_s

    @property
    def rate_per_s(self) -> float | None:
        """Gaps over the span; None without one."""
        span_s = self.span_s
        return (self.count - 1) / span_s if span_s > 0 else None

    @property
    def gap_cv(self) -> float | None:
        """Standard deviation of the gaps over their mean; None for fewer than three arrivals or gaps of 0 only."""
        self._take_in()
        return self._gaps.cv()

    @property
    def longest_gap_s(self) -> float | None:
        """Exact; None for fewer than two arrivals."""
        self._take_in()
        return self._gaps.longest_s if self._gaps.count else None

    def gap_quantile_s(self, p: float) -> float | None:
        """The gap that a share ``p`` of the gaps does not exceed, within 0.5 %; None for fewer than two arrivals."""
        self._take_in()
        return self._gaps.quantile_s(p)

    def dispersion(self, window_s: int) -> float | None:
        """Index of dispersion of counts: sample variance over mean of the arrivals in each whole window.

        Windows are counted from the start of the load to the last arrival.

        Returns:
            None for fewer than 10 windows.

        Raises:
            ValueError: ``window_s`` is below 1.
        """
        counts = self._windows(window_s)
        return None if counts is None else float(counts.var(ddof=1) / counts.mean())

    def peak_to_mean(self, window_s: int) -> float | None:
        """Arrivals in the fullest window over those in the mean one; otherwise as :meth:`dispersion`."""
        counts = self._windows(window_s)
        return None if counts is None else float(counts.max() / counts.mean())

    def counts_over_time(self, max_bins: int = 120) -> ArrivalCounts:
        """Arrivals per bin of as few whole seconds as give at most ``max_bins``."""
        self._take_in()
        seconds = math.floor(self._last_s) + 1 if self._count else 0
        bin_s = max(1, math.ceil(seconds / max_bins))
        starts = np.arange(0, seconds, bin_s)
        counts = np.add.reduceat(self._per_second[:seconds], starts) if seconds else starts
        return ArrivalCounts(bin_s, tuple(counts.tolist()))

    def _windows(self, window_s: int) -> NDArray[np.int64] | None:
        if window_s < 1:
            raise ValueError(f"window_s must be at least 1, not {window_s}")
        self._take_in()
        windows = math.floor(self._last_s) // window_s
        if windows < FEWEST_WINDOWS:
            return None
        counts = self._per_second[: windows * window_s].reshape(windows, window_s).sum(axis=1)
        return counts if counts.any() else None

    def _take_in(self) -> None:
        if not self._waiting:
            return
        offsets = np.array(self._waiting)
        self._waiting = array("d")
        before = self._last_s if self._count else offsets[0]
        gaps = np.diff(offsets, prepend=before)
        if not (offsets[0] >= 0 and offsets[-1] <= _LONGEST_SPAN_S and gaps.min() >= 0):
            raise ValueError("offsets must be seconds from the start of the load, from 0 to 10⁸ and never falling")
        self._gaps.take_in(gaps if self._count else gaps[1:])
        if not self._count:
            self._first_s = float(offsets[0])
        self._count += len(offsets)
        self._last_s = float(offsets[-1])
        self._count_seconds(offsets.astype(np.int64))

    def _count_seconds(self, seconds: NDArray[np.int64]) -> None:
        first, last = int(seconds[0]), int(seconds[-1])
        if last >= len(self._per_second):
            self._per_second = np.concatenate((self._per_second, np.zeros(last + 1, np.int32)))
        self._per_second[first : last + 1] += np.bincount(seconds - first).astype(np.int32)


class _Gaps:
    """Count, mean, variance and a logarithmic histogram of gaps.

    Batches are merged with the pairwise update of Chan, Golub and LeVeque (1979), which keeps the digits of a variance
    that is small beside the mean.
    """

    def __init__(self) -> None:
        self.count = 0
        self.longest_s = 0.0
        self._mean = 0.0
        self._squares = 0.0
        self._bins = np.zeros(_BINS + 1, np.int64)

    def take_in(self, gaps: NDArray[np.float64]) -> None:
        if not len(gaps):
            return
        mean = float(gaps.mean())
        total, step = self.count + len(gaps), mean - self._mean
        self._squares += float(np.square(gaps - mean).sum()) + step * step * self.count * len(gaps) / total
        self._mean += step * len(gaps) / total
        self.count = total
        self.longest_s = max(self.longest_s, float(gaps.max()))
        bins = np.log(np.maximum(gaps, _SHORTEST_GAP_S) / _SHORTEST_GAP_S) / _BIN
        self._bins += np.bincount(np.ceil(bins).astype(np.int64), minlength=_BINS + 1)

    def cv(self) -> float | None:
        if self.count < 2 or self._mean == 0:
            return None
        return math.sqrt(self._squares / (self.count - 1)) / self._mean

    def quantile_s(self, p: float) -> float | None:
        if not self.count:
            return None
        place = int(np.searchsorted(np.cumsum(self._bins), max(p * self.count, 1)))
        if place == 0:
            return 0.0
        return min(_SHORTEST_GAP_S * math.exp(_BIN * (place - 0.5)), self.longest_s)
