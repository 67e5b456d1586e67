"""Probabilistic bisection: the highest load that meets an objective, from noisy trials.

Plain bisection trusts every trial, so one unlucky trial sends it into the wrong half for good. Probabilistic bisection
(Horstein 1963; Waeber, Frazier & Henderson 2013) keeps a posterior over the threshold and weights each outcome by the
probability that it is wrong: near 0 far from the threshold, 1/2 at the threshold. The model is the psychometric one of
Kontsevich & Tyler (1999), extended by margins and starts. At load x, the margin log(bound / value) is normal with mean
s · (t + d − log x) and standard deviation s · w, and the objective is met if the margin is positive. t is the log of
the threshold, w the noise between runs as a fraction of the load, s the slope of log value over log load. d is the
shift of a start of the engine, normal with standard deviation b; all trials of a start share it. t, w, s and b are
unknown. The posterior is over a grid of them and of the present start's d; earlier starts are integrated out.

Latency is linear near its bound only, so margins are censored at ± log 1.2 (Tobin 1958). A trial without a margin (its
engine was overloaded or died) gives a binary outcome. A lapse rate of 2 % allows for outliers. Stopping as soon as the
interval is narrow stops too early if the noise happened to be small (Chow & Robbins 1965); therefore intervals use half
of alpha. ``tests/acceptance/statistics/search.py`` measures coverage and the number of trials, and compares plain
bisection.
"""

import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

_NOISES = (0.01, 0.02, 0.04, 0.08, 0.16)
"""Grid of w: noise of one run, as a fraction of the load."""
_SLOPES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Grid of s: 0.5 for ITL that doubles while the load quadruples, 9 for a queue at 90 % of its capacity."""
_SPREADS = {0.005: 8, 0.02: 4, 0.05: 2, 0.1: 1}
"""Grid of b, the spread between starts as a fraction of the load, with its prior: most engines start alike."""
_SHIFTS, _SHIFT_WEIGHTS = np.polynomial.hermite_e.hermegauss(5)
"""Gauss-Hermite nodes and weights of a start's shift, in units of b."""
_VALUE_NOISE = (0.02, math.log(2))
"""Range of s · w, the noise of a metric between runs at one load: at least 2 %, at most a factor of 2."""
_FAR = math.log(1.2)
"""Margins are censored at this absolute value."""
_LAPSE = 0.02
_BEYOND = math.log(2.0)
"""Log distance by which the threshold may lie outside the levels."""
_GUESS_WIDTH = 0.15
"""Scale of the Cauchy prior around a guess, in log load: half of its mass lies within this distance."""
_PLACES = (0.5, 0.2, 0.8)
"""Posterior quantiles to try in turn: the median informs most about the threshold, the others about the slope."""
_STEPS = 5
"""Levels per resolution."""


class Bracket(msgspec.Struct, frozen=True):
    """Interval of the highest level that meets the objective.

    Attributes:
        low: lower end; None if it is below every level.
        level: posterior median; None if it is below every level.
        high: upper end; None if it is below every level.
        open_above: whether the interval extends above every level.
    """

    low: float | None
    level: float | None
    high: float | None
    open_above: bool


def levels_between(low: float, high: float, resolution: float) -> list[float]:
    """Log-spaced rates from ``low`` to ``high``, five per resolution, rounded to as many digits as that needs."""
    step = math.log1p(resolution / _STEPS)
    count = max(2, math.ceil(math.log(high / low) / step) + 1)
    digits = 1 + round(-math.log10(step))
    inner = (float(f"{level:.{digits}g}") for level in np.geomspace(low, high, count)[1:-1])
    return sorted({low, high, *(level for level in inner if low < level < high)})


class Bisection:
    """Posterior over the threshold of one engine.

    Args:
        levels: loads that can be tried: positive, ascending.
        resolution: relative half-width of the interval at which the search is settled.
        alpha: 1 − coverage of the interval.
        start: first level to try if there is no guess; from there the load is doubled or halved until the threshold is
            bracketed. Default: the lowest level.
        guess: expected threshold; replaces ``start``.
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
        self._levels, self._answers = list(levels), list(levels)
        self._tried = dict.fromkeys(self._levels, 0)
        self._observed = 0
        self._resolution = resolution
        self._tail = alpha / 4  # half of alpha, split between two tails
        self._start = None if guess else start or self._levels[0]
        self._step = resolution / _STEPS
        low, high = math.log(self._levels[0]) - _BEYOND, math.log(self._levels[-1]) + _BEYOND
        self._theta = np.arange(low, high + self._step, self._step)
        grid = [
            (noise, slope, spread)
            for noise, slope, spread in itertools.product(_NOISES, _SLOPES, _SPREADS)
            if _plausible(noise * slope)
        ]
        self._noise, self._slope, self._spread = np.array(grid).T[:, :, None]
        self._shift = np.zeros_like(self._spread)
        of_spread = np.array([[_SPREADS[spread]] for *_, spread in grid], dtype=np.float64)
        prior = np.tile(of_spread, (len(self._theta), 1, 1))
        if guess:
            prior /= 1 + ((self._theta[:, None, None] - math.log(guess)) / _GUESS_WIDTH) ** 2
        self._posterior = prior / prior.sum()
        self._met: list[float] = []
        self._violated: list[float] = []

    @property
    def levels(self) -> list[float]:
        """Levels that can still be tried."""
        return list(self._levels)

    def begin_start(self) -> None:
        """Let the trials that follow share the shift of a new start; without starts, trials have no shift."""
        self._shift = self._spread * _SHIFTS
        self._posterior = self._posterior.sum(axis=2, keepdims=True) * _SHIFT_WEIGHTS / _SHIFT_WEIGHTS.sum()

    def observe(self, level: float, *, met: bool, margin: float | None = None) -> None:
        """Update the posterior with the outcome of a trial.

        Args:
            level: load of the trial.
            met: whether the trial met the objective.
            margin: log(bound / value); None if the trial has no value.
        """
        self._observed += 1
        self._tried[level] = self._tried.get(level, 0) + 1
        (self._met if met else self._violated).append(level)
        distance = self._theta[:, None, None] + self._shift - math.log(level)
        posterior = self._posterior * self._likelihood(distance, met, margin)
        self._posterior = posterior / posterior.sum()

    def drop_up_to(self, level: float) -> None:
        """Exclude this level, whose trials cannot be judged, and those below all that were judged."""
        judged = min([*self._met, *self._violated], default=math.inf)
        self._levels = [other for other in self._levels if other > level or judged <= other < level]
        self._answers = [other for other in self._answers if other > level or other >= judged]

    def drop_from(self, level: float) -> None:
        """Exclude this level and those above: trials there cannot be judged."""
        self._levels = [other for other in self._levels if other < level]
        self._answers = [other for other in self._answers if other < level]

    def next_level(self) -> float | None:
        """Level to try next; None if no level is left."""
        if not self._levels:
            return None
        target = self._bracketing_level()
        centre = self._quantile(_PLACES[self._observed % len(_PLACES)]) if target is None else math.log(target)
        return self.level_near(centre)

    @property
    def bracket(self) -> Bracket:
        """Current interval of the threshold."""
        low, high = self._interval()
        return self.bracket_of(low, self._quantile(0.5), high)

    def bracket_of(self, low: float, middle: float, high: float) -> Bracket:
        """An interval of log loads in terms of the levels."""
        return Bracket(
            low=self._level_at(low),
            level=self._level_at(middle),
            high=self._level_at(high),
            open_above=not self._levels or high >= math.log(self._levels[-1]),
        )

    @property
    def is_bracketed(self) -> bool:
        """Whether some level has met the objective and some has not."""
        return bool(self._met) and bool(self._violated)

    @property
    def log_range(self) -> tuple[float, float]:
        """Least and greatest log load that the threshold may have."""
        return float(self._theta[0]), float(self._theta[-1])

    def level_near(self, log_load: float) -> float:
        """Level to try for a log load: the least-tried one within the resolution."""
        return self._least_tried_near(min(max(log_load, math.log(self._levels[0])), math.log(self._levels[-1])))

    @property
    def is_settled(self) -> bool:
        """Whether the interval is as narrow as the resolution, or as adjacent levels allow."""
        low, high = self._interval()
        return high - low <= 2 * math.log1p(self._resolution) or self._level_at(low) == self._level_at(high)

    def _likelihood(self, distance: NDArray[np.float64], met: bool, margin: float | None) -> NDArray[np.float64]:
        """Likelihood of an outcome, of the shape of ``distance``.

        Args:
            distance: t + d − log x, shape (thresholds, triples of w, s and b, shifts of the present start).
            met: as in :meth:`observe`.
            margin: as in :meth:`observe`.
        """
        from scipy.special import ndtr  # noqa: PLC0415  (scipy costs 0.2 s; --help must not pay)

        noise, slope, no_lapse = self._noise, self._slope, 1 - _LAPSE
        if margin is None:
            return _LAPSE / 2 + no_lapse * ndtr((1 if met else -1) * distance / noise)
        if abs(margin) >= _FAR:
            sign = math.copysign(1.0, margin)
            return _LAPSE / 3 + no_lapse * ndtr((sign * distance - _FAR / slope) / noise)
        spread = noise * slope
        z = (margin - slope * distance) / spread
        return _LAPSE / (6 * _FAR) + no_lapse * np.exp(-z * z / 2) / (spread * math.sqrt(2 * math.pi))

    def _bracketing_level(self) -> float | None:
        """Next level of doubling or halving; None once the threshold is bracketed, or at either end of the levels."""
        if self._start is None:
            return None
        if not self._met and not self._violated:
            return self._start
        if self._met and max(self._met) >= max(self._violated, default=0.0):
            return 2 * max(self._met) if max(self._met) < self._levels[-1] else None
        if self._violated and min(self._violated) <= min(self._met, default=math.inf):
            return min(self._violated) / 2 if min(self._violated) > self._levels[0] else None
        return None

    def _least_tried_near(self, centre: float) -> float:
        """Least-tried level within the resolution (new levels have new traffic); otherwise the nearest."""
        distance = {level: abs(math.log(level) - centre) for level in self._levels}
        nearest = min(distance.values())
        close = [level for level in self._levels if distance[level] <= max(nearest, self._resolution)]
        return min(close, key=lambda level: (self._tried[level], distance[level]))

    def _interval(self) -> tuple[float, float]:
        """Interval of t, widened by half a grid step on each side."""
        return self._quantile(self._tail) - self._step / 2, self._quantile(1 - self._tail) + self._step / 2

    def _quantile(self, q: float) -> float:
        below = np.cumsum(self._posterior.sum(axis=(1, 2)))
        return float(self._theta[min(int(np.searchsorted(below, q)), len(below) - 1)])

    def _level_at(self, log: float) -> float | None:
        """Highest level at or below a log load; None if there is none."""
        return next((level for level in reversed(self._answers) if math.log(level) <= log + 1e-9), None)


def _plausible(value_noise: float) -> bool:
    least, most = _VALUE_NOISE
    return 0.99 * least <= value_noise <= most
