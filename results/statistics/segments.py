"""The best division of a series into levels and lines, where the noise of neighbours is correlated.

The model is x_t = f(t) + e_t with e_t = rho e_(t−1) + w_t, where f is constant or linear in each segment and w is
independent with variance v. The Prais–Winsten transformation (1954), √(1 − rho²) x for the first point of a segment and
x_t − rho x_(t−1) for the others, makes the noise independent, so that least squares fits a segment, and its residual
sum of squares over v is minus twice its log likelihood but for constants. Optimal partitioning (Jackson et al. 2005)
finds the segments that minimise

    Σ_segments [RSS / v − ln(1 − rho²) + price] + Σ_lines slope price + n ln v

for each rho of a grid. The rho with the smallest total wins: the same likelihood decides whether a wave is a few steps
or correlated noise. Chakar et al. (Bernoulli 23, 2017) also search with AR(1) noise, with a rho estimated beforehand.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MIN_POINTS = 3
"""Of a segment: fewer are no level."""
_MIN_LINE_POINTS = 12  # fewer cannot be told from a step
_PRICE = 14.0  # squares of the noise that a segment must save: 3.7 standard errors
_SLOPE_PRICE = 10.0  # less: a slope, unlike a step, has no place that was searched for
_GRID: Floats = np.array([*np.arange(10) / 10, 0.95])
_BIAS_MARGIN = 2.0


class Segment(msgspec.Struct, frozen=True):
    """A stretch of a series.

    Attributes:
        first: index of its first point.
        end: index after its last one.
        is_line: whether it has a slope.
    """

    first: int
    end: int
    is_line: bool = False

    @property
    def parameters(self) -> int:
        """How many numbers describe it."""
        return 2 if self.is_line else 1


class Fit:
    """Least squares of one segment.

    Attributes:
        degrees: points less parameters.
        squares: residual sum of squares of the transformed points.
    """

    def __init__(self, values: Floats, segment: Segment, autocorrelation: float) -> None:
        count = segment.end - segment.first
        columns = np.vander(np.arange(count, dtype=np.float64), segment.parameters, increasing=True)
        design = _independent(columns, autocorrelation)
        seen = _independent(values[segment.first : segment.end], autocorrelation)
        self._segment = segment
        self._inverse = np.linalg.inv(design.T @ design)
        self._coefficients = self._inverse @ (design.T @ seen)
        self.degrees = count - segment.parameters
        self.squares = float(np.sum((seen - design @ self._coefficients) ** 2))

    def at(self, index: float) -> float:
        """The fitted value at an index of the series, which may lie outside of the segment."""
        return float(self._terms(index) @ self._coefficients)

    def variance_at(self, index: float) -> float:
        """Variance of that value, in units of the variance of w."""
        terms = self._terms(index)
        return float(terms @ self._inverse @ terms)

    @property
    def slope(self) -> tuple[float, float]:
        """Of a line: per point, with its variance in units of the variance of w."""
        return float(self._coefficients[1]), float(self._inverse[1, 1])

    def _terms(self, index: float) -> Floats:
        return np.array([1.0, index - self._segment.first])[: self._segment.parameters]


def divided(values: Floats, step_noise: float) -> tuple[list[Segment], float]:
    """The best segments, and the autocorrelation that goes with them.

    The estimate is too small by about (1 + 3 rho)/n for each fitted mean (Kendall 1954; Marriott & Pope 1954). It is
    raised by twice that: in short series the safe error is to take a step for noise.

    Args:
        values: at least :data:`MIN_POINTS`.
        step_noise: standard deviation of differences of neighbours, over √2.
    """
    deviations = step_noise * np.sqrt(1 + _GRID)  # of w: differences of neighbours have variance 2 v / (1 + rho)
    totals, origins, lines = _cheapest((values - values[0]) / deviations[:, None])
    best = int(np.argmin(totals[:, -1] + 2 * len(values) * np.log(deviations)))
    parameters = sum(segment.parameters for segment in _traced(origins[best], lines[best]))
    raised = _GRID[best] + _BIAS_MARGIN * parameters * (1 + 3 * _GRID[best]) / len(values)
    row = int(np.argmin(np.abs(_GRID - raised)))
    return _traced(origins[row], lines[row]), float(_GRID[row])


def _independent(values: Floats, autocorrelation: float) -> Floats:
    first = math.sqrt(1 - autocorrelation**2) * values[:1]
    return np.concatenate([first, values[1:] - autocorrelation * values[:-1]])


def _cheapest(scaled: Floats) -> tuple[Floats, NDArray[np.int64], NDArray[np.bool_]]:
    """For each rho (row) and number of points: the cheapest total, where its last segment begins, if that is a line."""
    rows, count = scaled.shape
    totals = np.full((rows, count + 1), np.inf)
    origins = np.zeros((rows, count + 1), dtype=np.int64)
    lines = np.zeros((rows, count + 1), dtype=np.bool_)
    totals[:, 0] = 0.0
    sums, each = _Sums(scaled), np.arange(rows)
    price = (_PRICE - np.log(1 - _GRID**2))[:, None]
    for end in range(MIN_POINTS, count + 1):
        level, line = sums.squares(end)
        line += _SLOPE_PRICE
        line[:, max(0, end - _MIN_LINE_POINTS + 1) :] = np.inf
        options = totals[:, : end - MIN_POINTS + 1] + np.minimum(level, line) + price
        origin = np.argmin(options, axis=1)
        totals[:, end], origins[:, end] = options[each, origin], origin
        lines[:, end] = line[each, origin] < level[each, origin]
    return totals, origins, lines


class _Sums:
    """Residual sums of squares of all segments with one end, from running sums, for each rho (row).

    With the transformed columns a of ones and b of 0, 1, …, a level leaves Σx² − (Σax)²/Σa², and a line less by what
    b explains beside a. Sums of a and b alone depend on a segment's length (column) only.
    """

    def __init__(self, scaled: Floats) -> None:
        rho, count = _GRID[:, None], scaled.shape[1]
        self._ones, self._rho, head = 1 - rho, rho, 1 - rho**2
        changes = np.zeros_like(scaled)
        changes[:, 1:] = scaled[:, 1:] - rho * scaled[:, :-1]
        self._sums = [_running(changes * weight) for weight in (1.0, changes, np.arange(count))]
        self._ax, self._xx = head * scaled, head * scaled**2  # of a segment's first point
        more = np.arange(count, dtype=np.float64)  # points after the first
        sum_k, sum_kk = more * (more + 1) / 2, more * (more + 1) * (2 * more + 1) / 6
        ab = self._ones * (self._ones * sum_k + rho * more)
        bb = self._ones**2 * sum_kk + 2 * self._ones * rho * sum_k + rho**2 * more
        self._aa = head + more * self._ones**2
        self._b_in_a = ab / self._aa
        self._b_alone = np.maximum(bb - ab * self._b_in_a, 1e-12)

    def squares(self, end: int) -> tuple[Floats, Floats]:
        """Of a level and of a line, from each possible first point (column)."""
        count = end - MIN_POINTS + 1
        lengths = slice(end - 1, MIN_POINTS - 2, -1)
        z, zz, tz = (sums[:, end : end + 1] - sums[:, 1 : count + 1] for sums in self._sums)
        ax = self._ax[:, :count] + self._ones * z
        bx = self._ones * (tz - np.arange(count) * z) + self._rho * z
        level = self._xx[:, :count] + zz - ax**2 / self._aa[:, lengths]
        return level, level - (bx - self._b_in_a[:, lengths] * ax) ** 2 / self._b_alone[:, lengths]


def _running(terms: Floats) -> Floats:
    return np.concatenate([np.zeros((len(terms), 1)), np.cumsum(terms, axis=1)], axis=1)


def _traced(origins: Sequence[int], lines: Sequence[bool]) -> list[Segment]:
    """The segments, first to last."""
    segments: list[Segment] = []
    end = len(origins) - 1
    while end:
        segments.append(Segment(int(origins[end]), end, bool(lines[end])))
        end = segments[-1].first
    return segments[::-1]
