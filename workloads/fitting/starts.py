"""When the sessions of a trace start: what the fits of arrival processes look at, found in one pass."""

import statistics
from array import array
from itertools import pairwise

import msgspec
import numpy as np

from workloads.dispersion import ArrivalStatistics
from workloads.fitting.samples import Floats, Sample
from workloads.rng import Rng

WINDOW_S = 300.0
"""Windows in which burstiness is looked at for itself: so short that a rate hardly drifts."""
STRETCH = 50_000
"""Starts over which dispersion is found: of a week it would be that of its days, which no trial lasts for."""
IN_ORDER = 1_000_000
"""Gaps that are kept in their order, the first ones: bursts are found in them."""
DISPERSION_WINDOWS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
_FEWEST_IN_WINDOW = 20
_PEEKED = 256
_FEWEST_TICKS = 8
_JITTER = 0.01
_COARSE = 0.05
"""A clock whose tick is less than this part of the mean gap tells gaps apart well enough."""


class Arrivals(msgspec.Struct, frozen=True):
    """Starts of sessions. Figures with a window in them are means over stretches of at most 50,000 starts.

    Attributes:
        count: of all starts.
        rate_per_s: of all.
        gap_cv: coefficient of variation of the gaps of a stretch; None where it has none.
        dispersions: index of dispersion of counts by window in whole seconds, of those that fit into a stretch.
        stretch_count: starts of a stretch: all of them, where there are no more than 50,000.
        stretch_s: mean length of a stretch.
        window_cv: median of the gaps' coefficient of variation in windows of five minutes; None where none has enough.
        gaps_s: at most 200,000 gaps out of all, seconds.
        in_order_s: the first million gaps as they followed one another, seconds.
        tick_s: the clock's, where it is so coarse that starts were spread over it; else None.
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
    """Takes in starts that do not fall, in seconds.

    Where the clock ticks coarsely, the starts of one tick are spread over it: whole seconds are no bursts.
    """

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._head: list[float] | None = []
        self._tick_s: float | None = None
        self._same: list[float] = []
        self._waiting = array("d")
        self._newest_s = self._last_s = 0.0
        self._stretches = _Stretches()
        self._gaps = Sample()
        self._in_order = array("d")
        self._windows = _Windows()

    def add(self, at_s: float) -> None:
        """Take in a start.

        Raises:
            ValueError: it comes before the last one.
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
        """All of it, or None where no time passes; nothing can be added after this.

        Raises:
            ValueError: a stretch lasts longer than three years.
        """
        self._begin()
        if self._tick_s is not None:
            self._spread(self._tick_s)
        self._take_in()
        count = len(self._gaps) + 1
        if count < 2 or not self._gaps.mean():
            return None
        found, mean_s = self._stretches.means(), self._gaps.mean()
        return Arrivals(
            count=count,
            rate_per_s=1 / mean_s,
            gap_cv=found.get("gap_cv"),
            dispersions={window_s: found[str(window_s)] for window_s in DISPERSION_WINDOWS_S if str(window_s) in found},
            stretch_count=min(count, STRETCH),
            stretch_s=found["span_s"],
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
            self._last_s = max(at_s, self._last_s)  # a tick may be a little shorter than the first ones were
            self._put(self._last_s)
        self._same = []

    def _put(self, at_s: float) -> None:
        self._waiting.append(at_s)
        self._stretches.add(at_s)
        if len(self._waiting) >= 32_768:
            self._take_in()

    def _take_in(self) -> None:
        offsets = np.array(self._waiting)
        self._waiting = self._waiting[-1:]  # the next gap begins here
        gaps = np.diff(offsets)
        self._gaps.add(gaps.tolist())
        self._in_order.extend(gaps[: IN_ORDER - len(self._in_order)].tolist())
        self._windows.add(offsets[1:], gaps)


class _Stretches:
    """Figures of one stretch after another."""

    def __init__(self) -> None:
        self._seen: list[dict[str, float]] = []
        self._first_s = 0.0
        self._statistics = ArrivalStatistics()

    def add(self, at_s: float) -> None:
        if self._statistics.count >= STRETCH:
            self._seen.append(self._figures())
            self._statistics = ArrivalStatistics()
        if not self._statistics.count:
            self._first_s = at_s
        self._statistics.add(at_s - self._first_s)

    def means(self) -> dict[str, float]:
        """Of whole stretches, and of the last one where it is more than half of one or the only one."""
        last = [self._figures()] if not self._seen or self._statistics.count > STRETCH // 2 else []
        seen = [*self._seen, *last]
        return {name: statistics.fmean(found[name] for found in seen if name in found) for name in seen[0]}

    def _figures(self) -> dict[str, float]:
        """Span and variation, and dispersions by their window as text."""
        found = {"span_s": self._statistics.span_s, "gap_cv": self._statistics.gap_cv}
        found |= {str(window_s): self._statistics.dispersion(window_s) for window_s in DISPERSION_WINDOWS_S}
        return {name: value for name, value in found.items() if value is not None}


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
    """The tick of a clock that is coarse beside the gaps, or None.

    A clock ticks where all gaps are whole multiples of the smallest, give or take 1 % of it, and not all the same:
    that would be an even spacing. Other than the readers', this rule does not want several starts in a tick.
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
