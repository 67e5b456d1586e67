"""Streaming statistics of the burstiness of arrivals at every time scale.

Three figures measure three things. The coefficient of variation of the gaps compares neighbouring arrivals. The index
of dispersion of counts (variance over mean of the arrivals per window) measures one time scale, so a slow drift of the
rate shows only in long windows. Peak over mean is the load that an engine must sustain. A Poisson process has 1 for the
first two, for every window.
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


class ArrivalCounts(msgspec.Struct, frozen=True):
    """Arrivals over time.

    Attributes:
        bin_s: bin width, whole seconds.
        counts: arrivals per bin, from the start of the load; the last bin may be incomplete.
    """

    bin_s: int
    counts: tuple[int, ...]


class ArrivalStatistics:
    """Statistics of a stream of offsets. Memory grows with the seconds of the stream, not with its arrivals."""

    def __init__(self) -> None:
        self._buffer = array("d")
        self._count = 0
        self._first_s = self._last_s = 0.0
        self._gaps = _Gaps()
        self._per_second: NDArray[np.int32] = np.zeros(1024, np.int32)

    def add(self, offset_s: float) -> None:
        """Add an arrival.

        Args:
            offset_s: seconds from the start of the load, not before the previous arrival.

        Raises:
            ValueError: it is before the previous arrival, negative, or above 10⁸ (as seconds since 1970 are). Offsets
                are checked in batches, so a later call may raise it.
        """
        self._buffer.append(offset_s)
        if len(self._buffer) >= _CHUNK:
            self._flush()

    def add_all(self, offsets_s: Iterable[float]) -> None:
        """Add many arrivals."""
        for offset_s in offsets_s:
            self.add(offset_s)

    @property
    def count(self) -> int:
        """Arrivals so far."""
        return self._count + len(self._buffer)

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last; 0 for fewer than two."""
        self._flush()
        return self._last_s - self._first_s

    @property
    def rate_per_s(self) -> float | None:
        """Arrivals per second; None if the span is 0."""
        span_s = self.span_s
        return (self.count - 1) / span_s if span_s > 0 else None

    @property
    def gap_cv(self) -> float | None:
        """Standard deviation of the gaps over their mean; None for fewer than three arrivals or gaps of 0 only."""
        self._flush()
        return self._gaps.cv()

    @property
    def longest_gap_s(self) -> float | None:
        """Longest gap in seconds, exact; None for fewer than two arrivals."""
        self._flush()
        return self._gaps.longest_s if self._gaps.count else None

    def dispersion(self, window_s: int) -> float | None:
        """Index of dispersion of counts: sample variance over mean of the arrivals in each whole window.

        Windows cover the time from the start of the load to the last arrival.

        Returns:
            None for fewer than 10 windows.

        Raises:
            ValueError: ``window_s`` is below 1.
        """
        counts = self._windows(window_s)
        return None if counts is None else float(counts.var(ddof=1) / counts.mean())

    def peak_to_mean(self, window_s: int) -> float | None:
        """Largest over mean count of the windows; otherwise as :meth:`dispersion`."""
        counts = self._windows(window_s)
        return None if counts is None else float(counts.max() / counts.mean())

    def counts_over_time(self, max_bins: int = 120) -> ArrivalCounts:
        """Arrivals per bin, with the smallest whole number of seconds that gives at most ``max_bins``."""
        self._flush()
        seconds = math.floor(self._last_s) + 1 if self._count else 0
        bin_s = max(1, math.ceil(seconds / max_bins))
        starts = np.arange(0, seconds, bin_s)
        counts = np.add.reduceat(self._per_second[:seconds], starts) if seconds else starts
        return ArrivalCounts(bin_s, tuple(counts.tolist()))

    def _windows(self, window_s: int) -> NDArray[np.int64] | None:
        if window_s < 1:
            raise ValueError(f"window_s must be at least 1, not {window_s}")
        self._flush()
        windows = math.floor(self._last_s) // window_s
        if windows < FEWEST_WINDOWS:
            return None
        counts = self._per_second[: windows * window_s].reshape(windows, window_s).sum(axis=1)
        return counts if counts.any() else None

    def _flush(self) -> None:
        if not self._buffer:
            return
        offsets = np.array(self._buffer)
        self._buffer = array("d")
        before = self._last_s if self._count else offsets[0]
        gaps = np.diff(offsets, prepend=before)
        if not (offsets[0] >= 0 and offsets[-1] <= _LONGEST_SPAN_S and gaps.min() >= 0):
            raise ValueError("offsets must be seconds from the start of the load, from 0 to 10⁸ and not decreasing")
        self._gaps.add(gaps if self._count else gaps[1:])
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
    """Count, longest, mean and variance of gaps.

    Batches are merged with the pairwise update of Chan, Golub and LeVeque (1979), which stays accurate for a variance
    that is small compared with the mean.
    """

    def __init__(self) -> None:
        self.count = 0
        self.longest_s = 0.0
        self._mean = 0.0
        self._squares = 0.0

    def add(self, gaps: NDArray[np.float64]) -> None:
        if not len(gaps):
            return
        mean = float(gaps.mean())
        total, step = self.count + len(gaps), mean - self._mean
        self._squares += float(np.square(gaps - mean).sum()) + step * step * self.count * len(gaps) / total
        self._mean += step * len(gaps) / total
        self.count = total
        self.longest_s = max(self.longest_s, float(gaps.max()))

    def cv(self) -> float | None:
        if self.count < 2 or self._mean == 0:
            return None
        return math.sqrt(self._squares / (self.count - 1)) / self._mean
