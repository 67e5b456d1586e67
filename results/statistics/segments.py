"""Optimal partition of a series into levels and lines with autocorrelated noise.

The model is x_t = f(t) + e_t with e_t = rho e_(t−1) + w_t, where f is constant or linear in each segment and w is
independent with variance v. The Prais–Winsten transformation (1954), √(1 − rho²) x for the first point of a segment and
x_t − rho x_(t−1) for the others, makes the noise independent, so that ordinary least squares fits a
segment, and RSS / v is −2 log likelihood up to constants. Optimal partitioning (Jackson et al. 2005) finds the
segments that minimise

    Σ_segments [RSS / v − ln(1 − rho²) + penalty] + Σ_lines slope penalty + n ln v

for each rho of a grid. The rho with the smallest total is chosen, so that one likelihood decides whether a wave is a
few steps or autocorrelated noise. Chakar et al. (Bernoulli 23, 2017) also assume AR(1) noise, but estimate rho
beforehand.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MIN_POINTS = 3
"""Minimum length of a segment."""
_MIN_LINE_POINTS = 12  # shorter lines are indistinguishable from steps
_PENALTY = 14.0  # reduction of RSS / v that justifies a segment: 3.7² standard errors
_SLOPE_PENALTY = 10.0  # smaller than _PENALTY: a slope, unlike a step, has no location to search
_GRID: Floats = np.array([*np.arange(10) / 10, 0.95])
_BIAS_MARGIN = 2.0


class Segment(msgspec.Struct, frozen=True):
    """A segment of a series.

    Attributes:
        first: index of the first point.
        end: index after the last point.
        is_line: whether the segment has a slope.
    """

    first: int
    end: int
    is_line: bool = False

    @property
    def parameters(self) -> int:
        """Number of fitted parameters."""
        return 2 if self.is_line else 1


class Fit:
    """Generalised least squares of one segment.

    Attributes:
        degrees: points minus parameters.
        squares: residual sum of squares of the transformed points.
    """

    def __init__(self, values: Floats, segment: Segment, autocorrelation: float) -> None:
        count = segment.end - segment.first
        columns = np.vander(np.arange(count, dtype=np.float64), segment.parameters, increasing=True)
        design = _independent(columns, autocorrelation)
        observed = _independent(values[segment.first : segment.end], autocorrelation)
        self._segment = segment
        self._inverse = np.linalg.inv(design.T @ design)
        self._coefficients = self._inverse @ (design.T @ observed)
        self.degrees: int = count - segment.parameters
        self.squares: float = float(np.sum((observed - design @ self._coefficients) ** 2))

    def at(self, index: float) -> float:
        """Fitted value at an index of the series, inside or outside the segment."""
        return float(self._regressors(index) @ self._coefficients)

    def variance_at(self, index: float) -> float:
        """Variance of :meth:`at` in units of v."""
        regressors = self._regressors(index)
        return float(regressors @ self._inverse @ regressors)

    @property
    def slope(self) -> tuple[float, float]:
        """Slope of a line per point, and its variance in units of v."""
        return float(self._coefficients[1]), float(self._inverse[1, 1])

    def _regressors(self, index: float) -> Floats:
        return np.array([1.0, index - self._segment.first])[: self._segment.parameters]


def divided(values: Floats, step_noise: float) -> tuple[list[Segment], float]:
    """Best segments and the autocorrelation at lag 1.

    The estimate of rho is biased by about −(1 + 3 rho)/n per fitted mean (Kendall 1954; Marriott & Pope 1954). It is
    raised by twice that: in short series, taking a step for noise is the safer error.

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
    """Minimum cost of the first n points, the start of their last segment, and whether it is a line.

    Each has the shape (values of rho, points + 1).
    """
    rows, count = scaled.shape
    totals = np.full((rows, count + 1), np.inf)
    origins = np.zeros((rows, count + 1), dtype=np.int64)
    lines = np.zeros((rows, count + 1), dtype=np.bool_)
    totals[:, 0] = 0.0
    sums, row_numbers = _Sums(scaled), np.arange(rows)
    penalty = (_PENALTY - np.log(1 - _GRID**2))[:, None]
    for end in range(MIN_POINTS, count + 1):
        level, line = sums.squares(end)
        line += _SLOPE_PENALTY
        line[:, max(0, end - _MIN_LINE_POINTS + 1) :] = np.inf
        options = totals[:, : end - MIN_POINTS + 1] + np.minimum(level, line) + penalty
        origin = np.argmin(options, axis=1)
        totals[:, end], origins[:, end] = options[row_numbers, origin], origin
        lines[:, end] = line[row_numbers, origin] < level[row_numbers, origin]
    return totals, origins, lines


class _Sums:
    """Residual sums of squares of all segments with a given end, from prefix sums, for each rho (row).

    With transformed regressors a (ones) and b (0, 1, …), the RSS of a level is Σx² − (Σax)²/Σa², and that of a line is
    smaller by what b explains beyond a. Sums of a and b depend on the segment's length (column) only.
    """

    def __init__(self, scaled: Floats) -> None:
        rho, count = _GRID[:, None], scaled.shape[1]
        self._ones, self._rho, head = 1 - rho, rho, 1 - rho**2
        changes = np.zeros_like(scaled)
        changes[:, 1:] = scaled[:, 1:] - rho * scaled[:, :-1]
        self._sums = [_prefix_sums(changes * weight) for weight in (1.0, changes, np.arange(count))]
        self._ax, self._xx = head * scaled, head * scaled**2  # of the first point of a segment
        more = np.arange(count, dtype=np.float64)  # points after the first
        sum_k, sum_kk = more * (more + 1) / 2, more * (more + 1) * (2 * more + 1) / 6
        ab = self._ones * (self._ones * sum_k + rho * more)
        bb = self._ones**2 * sum_kk + 2 * self._ones * rho * sum_k + rho**2 * more
        self._aa = head + more * self._ones**2
        self._b_in_a = ab / self._aa
        self._b_alone = np.maximum(bb - ab * self._b_in_a, 1e-12)

    def squares(self, end: int) -> tuple[Floats, Floats]:
        """RSS of a level and of a line, for each possible first point (column)."""
        count = end - MIN_POINTS + 1
        lengths = slice(end - 1, MIN_POINTS - 2, -1)
        z, zz, tz = (sums[:, end : end + 1] - sums[:, 1 : count + 1] for sums in self._sums)
        ax = self._ax[:, :count] + self._ones * z
        bx = self._ones * (tz - np.arange(count) * z) + self._rho * z
        level = self._xx[:, :count] + zz - ax**2 / self._aa[:, lengths]
        return level, level - (bx - self._b_in_a[:, lengths] * ax) ** 2 / self._b_alone[:, lengths]


def _prefix_sums(columns: Floats) -> Floats:
    return np.concatenate([np.zeros((len(columns), 1)), np.cumsum(columns, axis=1)], axis=1)


def _traced(origins: Sequence[int], lines: Sequence[bool]) -> list[Segment]:
    """Segments in order, by backtracking."""
    segments: list[Segment] = []
    end = len(origins) - 1
    while end:
        segments.append(Segment(int(origins[end]), end, bool(lines[end])))
        end = segments[-1].first
    return segments[::-1]
