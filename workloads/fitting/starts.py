"""Session starts of a trace, measured in one pass for fitting arrival processes."""

import statistics
from array import array
from itertools import pairwise

import msgspec
import numpy as np

from bakeoff.workloads.dispersion import ArrivalStatistics
from bakeoff.workloads.fitting.samples import Floats, Sample
from bakeoff.workloads.rng import Rng

WINDOW_S = 300.0
"""Window for local burstiness, short enough that the rate hardly drifts within it."""
STRETCH = 50_000
"""Starts per stretch for dispersion. Over a week, dispersion would measure the daily cycle, longer than any trial."""
IN_ORDER = 1_000_000
"""Number of leading gaps that keep their order, for finding bursts."""
DISPERSION_WINDOWS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
_FEWEST_IN_WINDOW = 20
_PEEKED = 256
_FEWEST_TICKS = 8
_JITTER = 0.01
_COARSE = 0.05
"""Tick over mean gap above which a clock is coarse."""


class Arrivals(msgspec.Struct, frozen=True):
    """Session starts. Dispersion figures are means over stretches of at most 50,000 starts.

    Attributes:
        count: number of starts.
        rate_per_s: of all starts.
        gap_cv: coefficient of variation of the gaps in a stretch; None if undefined.
        dispersions: index of dispersion of counts by window in seconds, for windows that fit into a stretch.
        stretch_count: starts per stretch: all starts if there are at most 50,000.
        stretch_s: mean length of a stretch.
        window_cv: median gap CV over five-minute windows; None if windows are too sparse.
        gaps_s: sample of at most 200,000 gaps, seconds.
        in_order_s: the first million gaps in order, seconds.
        tick_s: resolution of a coarse clock, over which starts were spread; else None.
    """

    count: int
    rate_per_s: float
    gap_cv: float | None
    dispersions: dict[int, float]
    stretch_count: int
    stretch_s: float
    window_cv: float | None
    gaps_s: Floats
    in_order_s: Floats
    tick_s: float | None


class Starts:
    """Measures a stream of starts, in seconds and not decreasing.

    With a coarse clock, the starts of one tick are spread over it, so that whole seconds do not look like bursts.
    """

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._head: list[float] | None = []
        self._tick_s: float | None = None
        self._same: list[float] = []
        self._buffer = array("d")
        self._newest_s = self._last_s = 0.0
        self._stretches = _Stretches()
        self._gaps = Sample()
        self._in_order = array("d")
        self._windows = _Windows()

    def add(self, at_s: float) -> None:
        """Add a start.

        Raises:
            ValueError: it is before the previous start.
        """
        if at_s < self._newest_s:
            raise ValueError(f"{at_s:g} s follows {self._newest_s:g} s")
        self._newest_s = at_s
        self._take(at_s)

    def _take(self, at_s: float) -> None:
        if self._head is not None:
            self._head.append(at_s)
            if len(self._head) >= _PEEKED:
                self._begin()
        elif self._tick_s is None:
            self._put(at_s)
        else:
            self._collect(at_s, self._tick_s)

    def done(self) -> Arrivals | None:
        """The measurements, or None if all starts coincide; no start may be added afterwards.

        Raises:
            ValueError: a stretch lasts longer than three years.
        """
        self._begin()
        if self._tick_s is not None:
            self._spread(self._tick_s)
        self._flush()
        count = len(self._gaps) + 1
        if count < 2 or not self._gaps.mean():
            return None
        figures, mean_s = self._stretches.means(), self._gaps.mean()
        return Arrivals(
            count=count,
            rate_per_s=1 / mean_s,
            gap_cv=figures.get("gap_cv"),
            dispersions={
                window_s: figures[str(window_s)] for window_s in DISPERSION_WINDOWS_S if str(window_s) in figures
            },
            stretch_count=min(count, STRETCH),
            stretch_s=figures["span_s"],
            window_cv=self._windows.median_cv(),
            gaps_s=self._gaps.column(),
            in_order_s=np.array(self._in_order),
            tick_s=self._tick_s,
        )

    def _begin(self) -> None:
        head, self._head = self._head, None
        self._tick_s = coarse_tick_s(head) if head else self._tick_s
        for at_s in head or ():
            self._take(at_s)

    def _collect(self, at_s: float, tick_s: float) -> None:
        if self._same and at_s != self._same[0]:
            self._spread(tick_s)
        self._same.append(at_s)

    def _spread(self, tick_s: float) -> None:
        for at_s in sorted(at_s + self._rng.uniform() * tick_s for at_s in self._same):
            self._last_s = max(at_s, self._last_s)  # ticks can be slightly shorter than the first ones
            self._put(self._last_s)
        self._same = []

    def _put(self, at_s: float) -> None:
        self._buffer.append(at_s)
        self._stretches.add(at_s)
        if len(self._buffer) >= 32_768:
            self._flush()

    def _flush(self) -> None:
        offsets = np.array(self._buffer)
        self._buffer = self._buffer[-1:]  # the next gap begins here
        gaps = np.diff(offsets)
        self._gaps.add(gaps.tolist())
        self._in_order.extend(gaps[: IN_ORDER - len(self._in_order)].tolist())
        self._windows.add(offsets[1:], gaps)


class _Stretches:
    """Figures per stretch."""

    def __init__(self) -> None:
        self._complete: list[dict[str, float]] = []
        self._first_s = 0.0
        self._statistics = ArrivalStatistics()

    def add(self, at_s: float) -> None:
        if self._statistics.count >= STRETCH:
            self._complete.append(self._figures())
            self._statistics = ArrivalStatistics()
        if not self._statistics.count:
            self._first_s = at_s
        self._statistics.add(at_s - self._first_s)

    def means(self) -> dict[str, float]:
        """Means over complete stretches, and the last one if it is more than half complete or the only one."""
        last = [self._figures()] if not self._complete or self._statistics.count > STRETCH // 2 else []
        stretches = [*self._complete, *last]
        return {name: statistics.fmean(s[name] for s in stretches if name in s) for name in stretches[0]}

    def _figures(self) -> dict[str, float]:
        """Span and gap CV, and dispersions by window as text."""
        figures: dict[str, float | None] = {"span_s": self._statistics.span_s, "gap_cv": self._statistics.gap_cv}
        figures |= {str(window_s): self._statistics.dispersion(window_s) for window_s in DISPERSION_WINDOWS_S}
        return {name: value for name, value in figures.items() if value is not None}


class _Windows:
    """Count, sum and sum of squares of the gaps that end in each window."""

    def __init__(self) -> None:
        self._sums: Floats = np.zeros((3, 0))

    def add(self, ends_s: Floats, gaps_s: Floats) -> None:
        if not len(ends_s):
            return
        windows = (ends_s // WINDOW_S).astype(np.int64)
        more = int(windows[-1]) + 1 - self._sums.shape[1]
        if more > 0:
            self._sums = np.concatenate((self._sums, np.zeros((3, max(more, self._sums.shape[1])))), axis=1)
        first, last = int(windows[0]), int(windows[-1])
        for row, weights in zip(self._sums, (None, gaps_s, np.square(gaps_s)), strict=True):
            row[first : last + 1] += np.bincount(windows - first, weights)

    def median_cv(self) -> float | None:
        count, total, squares = self._sums[:, (self._sums[0] >= _FEWEST_IN_WINDOW) & (self._sums[1] > 0)]
        if not count.size:
            return None
        variance = (squares - total * total / count) / (count - 1)
        return float(np.median(np.sqrt(np.maximum(variance, 0.0)) / (total / count)))


def coarse_tick_s(starts_s: list[float]) -> float | None:
    """The tick of a clock that is coarse compared with the gaps, or None.

    A clock ticks if all gaps are integer multiples of the smallest, within 1 % of it, and differ; equal gaps are even
    spacing. Unlike the trace readers' rule, this one does not require several starts in one tick.
    """
    gaps_s = [b - a for a, b in pairwise(starts_s)]
    above_s = [gap_s for gap_s in gaps_s if gap_s > 0]
    if len(above_s) < _FEWEST_TICKS:
        return None
    tick_s = min(above_s)
    multiples = [gap_s / tick_s for gap_s in gaps_s]
    ticks = all(abs(multiple - round(multiple)) <= _JITTER for multiple in multiples)
    differ = len({round(multiple) for multiple in multiples}) > 1
    return tick_s if ticks and differ and tick_s >= _COARSE * sum(gaps_s) / len(gaps_s) else None
