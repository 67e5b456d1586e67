"""The highest load that keeps an objective, found by trials each of which is a little wrong.

Plain bisection believes every trial, so one unlucky trial sends it to the wrong half for good. Probabilistic bisection
(Horstein 1963; Waeber, Frazier & Henderson 2013) keeps a distribution over where the threshold lies and weighs each
answer by how often such an answer is wrong. That depends on the distance: far from the threshold hardly ever, at it
every second time. So the model is the one by which psychophysics finds thresholds (Kontsevich & Tyler 1999), with the
margin where a trial tells one. At load x the margin log(bound / value) is normal around s · (t − log x), with deviation
s · w, and the objective is kept where it is positive: t is the log of the threshold, w the noise of a run as a share of
the load, s the slope of log value over log load. None of the three is known; the posterior is over all, on a grid.

A latency is a straight line near its bound only, so a margin beyond a fifth counts as *beyond a fifth* (Tobin 1958). A
trial without a margin, of an engine that drowned or died, says yes or no. One trial in fifty may say anything. Stopping
as soon as the interval is narrow stops too early where noise happened to be small (Chow & Robbins 1965); intervals are
made at half of alpha to pay for it. ``benchmarks/statistics/search.py`` counts how often they hold the truth, how many
trials that takes, and what plain bisection does instead.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

_NOISES = (0.01, 0.02, 0.04, 0.08, 0.16)
"""w: of one run, as a share of the load."""
_SLOPES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""s: ITL that doubles while the load quadruples has 0.5, a queue at 90 % of its capacity 9."""
_VALUE_NOISE = (0.02, math.log(2))
"""s · w: no metric is believed to repeat to better than 2 %, nor to differ twofold between runs at one load."""
_FAR = math.log(1.2)
"""Margins beyond this say that, and no more."""
_LAPSE = 0.02
_BEYOND = math.log(2.0)
"""How far the threshold may lie outside the levels."""
_GUESS_WIDTH = 0.15
"""Half of what a guess is believed lies within this of it, as a share; the tails are Cauchy's."""
_PLACES = (0.5, 0.2, 0.8)
"""Quantiles of the posterior that are tried in turn: at the median it says most about the threshold, but how steep the
curve is shows only on either side."""
_STEPS = 5
"""Levels within one resolution."""


class Bracket(msgspec.Struct, frozen=True):
    """The highest level that keeps the objective, as far as it is known.

    Attributes:
        low: it is no lower than this, None where it may be below every level.
        level: the median, None where that is below every level.
        high: it is no higher than this, None where it is below every level.
        open_above: whether it may be above every level.
    """

    low: float | None
    level: float | None
    high: float | None
    open_above: bool


def levels_between(low: float, high: float, resolution: float) -> list[float]:
    """Rates from ``low`` to ``high``, even in their logs, five to a resolution, with no more digits than that needs."""
    step = math.log1p(resolution / _STEPS)
    count = max(2, math.ceil(math.log(high / low) / step) + 1)
    digits = 1 + round(-math.log10(step))
    inner = (float(f"{level:.{digits}g}") for level in np.geomspace(low, high, count)[1:-1])
    return sorted({low, high, *(level for level in inner if low < level < high)})


class Bisection:
    """One search.

    Args:
        levels: loads that can be tried, above 0, rising.
        resolution: the search may end when the threshold is known to this share, up or down.
        alpha: the interval fails to hold the threshold in at most this share of searches.
        start: the first level to try, where nothing is known; from there the load is doubled or halved until a trial
            says otherwise. The default is the lowest.
        guess: where the threshold is thought to be, instead of a start.
    """

    def __init__(
        self,
        levels: Sequence[float],
        *,
        resolution: float = 0.05,
        alpha: float = 0.05,
        start: float | None = None,
        guess: float | None = None,
    ) -> None:
        self._levels = list(levels)
        self._tried = dict.fromkeys(self._levels, 0)
        self._told = 0
        self._resolution = resolution
        self._tail = alpha / 4  # half of alpha, shared by two tails
        self._start = None if guess else start or self._levels[0]
        self._step = resolution / _STEPS
        low, high = math.log(self._levels[0]) - _BEYOND, math.log(self._levels[-1]) + _BEYOND
        self._theta = np.arange(low, high + self._step, self._step)[:, None]
        pairs = [(noise, slope) for noise in _NOISES for slope in _SLOPES if _plausible(noise * slope)]
        self._noise, self._slope = np.array(pairs).T
        prior = np.ones((len(self._theta), len(pairs)))
        if guess:
            prior /= 1 + ((self._theta - math.log(guess)) / _GUESS_WIDTH) ** 2
        self._posterior = prior / prior.sum()
        self._kept: list[float] = []
        self._not_kept: list[float] = []

    @property
    def levels(self) -> list[float]:
        """Those that can be tried."""
        return list(self._levels)

    def tell(self, level: float, *, kept: bool, margin: float | None = None) -> None:
        """Take the answer of a trial.

        Args:
            level: at which it ran.
            kept: whether it kept the objective.
            margin: log of bound over value; None where the trial has no such number.
        """
        self._told += 1
        self._tried[level] = self._tried.get(level, 0) + 1
        (self._kept if kept else self._not_kept).append(level)
        posterior = self._posterior * self._likelihood(self._theta - math.log(level), kept, margin)
        self._posterior = posterior / posterior.sum()

    def drop_up_to(self, level: float) -> None:
        """No trial at this level or below can be judged: leave them out."""
        self._levels = [one for one in self._levels if one > level]

    def drop_from(self, level: float) -> None:
        """No trial at this level or above can be judged: leave them out."""
        self._levels = [one for one in self._levels if one < level]

    def next_level(self) -> float | None:
        """The level to try next; None where none is left."""
        if not self._levels:
            return None
        wanted = self._reach()
        centre = self._quantile(_PLACES[self._told % len(_PLACES)]) if wanted is None else math.log(wanted)
        return self._near(min(max(centre, math.log(self._levels[0])), math.log(self._levels[-1])))

    @property
    def bracket(self) -> Bracket:
        """What is known of the threshold now."""
        low, high = self._interval()
        return Bracket(
            low=self._level_at(low),
            level=self._level_at(self._quantile(0.5)),
            high=self._level_at(high),
            open_above=not self._levels or high >= math.log(self._levels[-1]),
        )

    @property
    def settled(self) -> bool:
        """Whether it is known to the resolution, or as well as the levels allow."""
        low, high = self._interval()
        return high - low <= 2 * math.log1p(self._resolution) or self._level_at(low) == self._level_at(high)

    def _likelihood(self, ahead: NDArray[np.float64], kept: bool, margin: float | None) -> NDArray[np.float64]:
        """How probable the answer is.

        Args:
            ahead: of the level, how far the threshold is: θ − log x, a column.
            kept: as told.
            margin: as told.
        """
        from scipy.special import ndtr  # noqa: PLC0415  (scipy costs 0.2 s; --help must not pay)

        noise, slope, sure = self._noise, self._slope, 1 - _LAPSE
        if margin is None:
            return _LAPSE / 2 + sure * ndtr((1 if kept else -1) * ahead / noise)
        if abs(margin) >= _FAR:
            sign = math.copysign(1.0, margin)
            return _LAPSE / 3 + sure * ndtr((sign * ahead - _FAR / slope) / noise)
        spread = noise * slope
        off = (margin - slope * ahead) / spread
        return _LAPSE / (6 * _FAR) + sure * np.exp(-off * off / 2) / (spread * math.sqrt(2 * math.pi))

    def _reach(self) -> float | None:
        """Where to go while only one side of the threshold is known: twice as far; None else, and at the ends."""
        if self._start is None:
            return None
        if not self._kept and not self._not_kept:
            return self._start
        if self._kept and max(self._kept) >= max(self._not_kept, default=0.0):
            return 2 * max(self._kept) if max(self._kept) < self._levels[-1] else None
        if self._not_kept and min(self._not_kept) <= min(self._kept, default=math.inf):
            return min(self._not_kept) / 2 if min(self._not_kept) > self._levels[0] else None
        return None

    def _near(self, centre: float) -> float:
        """The level that was tried least, since its traffic is new, of those within a resolution; else the nearest."""
        away = {level: abs(math.log(level) - centre) for level in self._levels}
        nearest = min(away.values())
        close = [level for level in self._levels if away[level] <= max(nearest, self._resolution)]
        return min(close, key=lambda level: (self._tried[level], away[level]))

    def _interval(self) -> tuple[float, float]:
        """Bounds of log θ, half a step wider than its grid."""
        return self._quantile(self._tail) - self._step / 2, self._quantile(1 - self._tail) + self._step / 2

    def _quantile(self, share: float) -> float:
        below = np.cumsum(self._posterior.sum(axis=1))
        return float(self._theta[min(int(np.searchsorted(below, share)), len(below) - 1), 0])

    def _level_at(self, log: float) -> float | None:
        """The highest level at or below a load; None where there is none."""
        return next((level for level in reversed(self._levels) if math.log(level) <= log + 1e-9), None)


def _plausible(value_noise: float) -> bool:
    least, most = _VALUE_NOISE
    return 0.99 * least <= value_noise <= most
