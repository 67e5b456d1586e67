"""Change points of a series of runs: steps and drifts, each tested. Deterministic.

1. Noise is estimated from differences of neighbours (median absolute deviation), which steps and drifts do not inflate.
2. Outliers are removed: a value further than three times the noise from the median of its neighbours is replaced by
   that median (Hampel filter, which preserves steps).
3. The best partition into levels and lines is found jointly with the autocorrelation
   (:mod:`bakeoff.results.statistics.segments`). All segments are found at once, so that a step up and the step back do
   not mask each other. A line is a drift, which no single commit caused.
4. Each step and each slope must be significant by Student's t of its generalised least squares. The weakest is removed
   and its segments merged until all are.

Hunter (Fleming et al., ICPE 2023), now Apache Otava, is the peer: docs/decisions/history-steps.md.
"""

import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from bakeoff.results.statistics.distributions import t_quantile, t_tails
from bakeoff.results.statistics.segments import MIN_POINTS, Fit, Floats, Segment, divided

_MAX_P = 3e-5
_FURTHEST = 3.0  # multiples of the noise, from the median of the neighbours
_NEIGHBOURS = 3  # on either side
_MAD_TO_SIGMA = 1.4826
_MOST_LOG = 10.0  # of a factor that no series needs to tell from a larger one
_MIN_NOISE = 1e-6  # relative: six printed digits round by as much


class ChangePoint(msgspec.Struct, frozen=True):
    """A step between two runs.

    Attributes:
        index: first point of the new level.
        before: fitted value at the end of the old segment; for a level its generalised least-squares mean.
        after: fitted value at the start of the new segment.
        p_value: of no step, given this partition; not corrected for the search over partitions.
    """

    index: int
    before: float
    after: float
    p_value: float

    @property
    def ratio(self) -> float:
        """New level divided by the old one."""
        return self.after / self.before


class Stretch(msgspec.Struct, frozen=True):
    """One segment of a series: a level or a drift.

    Attributes:
        first: index of the first point.
        last: index of the last point.
        start: fitted value at the first point.
        end: fitted value at the last point; equal to ``start`` for a level.
        p_value: of no drift; None for a level.
    """

    first: int
    last: int
    start: float
    end: float
    p_value: float | None

    @property
    def is_drift(self) -> bool:
        """Whether the segment has a slope."""
        return self.p_value is not None


class Course(msgspec.Struct, frozen=True):
    """Levels, drifts and steps of a series.

    Attributes:
        stretches: oldest first; they cover all points.
        steps: boundaries of stretches at which the fitted value jumps.
        autocorrelation: at lag 1.
        newest_expected: prediction of the newest point from the earlier points of its stretch.
        newest_p: p value of the newest point against that prediction.
        detectable: factor of the smallest step in the middle of the series that the test would find; None if the series
            has a step or a drift.
    """

    stretches: list[Stretch]
    steps: list[ChangePoint]
    autocorrelation: float
    newest_expected: float
    newest_p: float
    detectable: float | None = None


def change_points(values: Sequence[float]) -> list[ChangePoint]:
    """Steps of a series; none if it is shorter than twice :data:`MIN_POINTS`.

    Args:
        values: one per run, positive, oldest first.
    """
    return course(values).steps if len(values) >= 2 * MIN_POINTS else []


def course(values: Sequence[float]) -> Course:
    """Levels, drifts and steps of a series.

    Args:
        values: at least twice :data:`MIN_POINTS`, positive, oldest first.
    """
    raw = np.log(np.asarray(values, dtype=np.float64))
    noise = _noise(raw)
    logs = _without_outliers(raw, noise)
    segments, autocorrelation = divided(logs, noise)
    model = _Model(logs, autocorrelation, noise**2 * (1 + autocorrelation))
    segments = model.significant(segments)
    expected, newest_p = model.newest(segments[-1], float(raw[-1]))
    return Course(
        [model.stretch(segment) for segment in segments],
        [step for pair in itertools.pairwise(segments) if (step := model.step(*pair)).p_value <= _MAX_P],
        autocorrelation,
        math.exp(expected),
        newest_p,
        model.detectable(segments),
    )


class _Model:
    """Fits and tests of segments, given the autocorrelation.

    Args:
        logs: log values without outliers.
        autocorrelation: at lag 1.
        least_variance: lower bound of a segment's innovation variance: that of the whole series.
    """

    def __init__(self, logs: Floats, autocorrelation: float, least_variance: float) -> None:
        self._logs = logs
        self._autocorrelation = autocorrelation
        self._least_variance = least_variance

    def significant(self, segments: Sequence[Segment]) -> list[Segment]:
        """Segments after removing insignificant slopes and steps between levels, the weakest first.

        An insignificant step beside a line is kept: the line may begin there.
        """
        segments = list(segments)
        while True:
            slopes = [(self._slope_p(segment), i) for i, segment in enumerate(segments) if segment.is_line]
            weakest, i = max(slopes, default=(0.0, 0))
            if weakest > _MAX_P:
                segments[i] = Segment(segments[i].first, segments[i].end)
                continue
            pairs = enumerate(itertools.pairwise(segments))
            steps = [(self.step(a, b).p_value, i) for i, (a, b) in pairs if not (a.is_line or b.is_line)]
            weakest, i = max(steps, default=(0.0, 0))
            if weakest <= _MAX_P:
                return segments
            segments[i : i + 2] = [Segment(segments[i].first, segments[i + 1].end)]

    def step(self, left: Segment, right: Segment) -> ChangePoint:
        """Step between two segments, tested by Student's t with their pooled variance, bounded below."""
        a, b, between = self._fit(left), self._fit(right), right.first - 0.5
        degrees = a.degrees + b.degrees
        variance = max((a.squares + b.squares) / degrees, self._least_variance)
        error = math.sqrt(variance * (a.variance_at(between) + b.variance_at(between)))
        before, after = a.at(between), b.at(between)
        p_value = t_tails((after - before) / error, degrees)
        return ChangePoint(right.first, math.exp(before), math.exp(after), p_value)

    def detectable(self, segments: Sequence[Segment]) -> float | None:
        """The smallest step that would be found; one that hides in the variance makes it large."""
        first, *others = segments
        if others or first.is_line:
            return None
        middle, whole = first.end // 2, self._fit(first)
        left, right = self._fit(Segment(0, middle)), self._fit(Segment(middle, first.end))
        variance = max(whole.squares / whole.degrees, self._least_variance)
        error = math.sqrt(variance * (left.variance_at(middle - 0.5) + right.variance_at(middle - 0.5)))
        return math.exp(min(_MOST_LOG, t_quantile(1 - _MAX_P / 2, left.degrees + right.degrees) * error))

    def stretch(self, segment: Segment) -> Stretch:
        """A segment with its fitted values."""
        fit, last = self._fit(segment), segment.end - 1
        p_value = self._slope_p(segment) if segment.is_line else None
        return Stretch(segment.first, last, math.exp(fit.at(segment.first)), math.exp(fit.at(last)), p_value)

    def newest(self, segment: Segment, value: float) -> tuple[float, float]:
        """Prediction of the newest point from the rest of the last segment, and the p value of its deviation."""
        fit = self._fit(Segment(segment.first, segment.end - 1, segment.is_line))
        expected = fit.at(segment.end - 1)
        marginal = 1 / (1 - self._autocorrelation**2)
        variance = max(fit.squares / fit.degrees, self._least_variance)
        error = math.sqrt(variance * (marginal + fit.variance_at(segment.end - 1)))
        return expected, t_tails((value - expected) / error, len(self._logs) - segment.parameters)

    def _slope_p(self, segment: Segment) -> float:
        fit = self._fit(segment)
        slope, variance = fit.slope
        least = max(fit.squares / fit.degrees, self._least_variance)
        return t_tails(slope / math.sqrt(least * variance), fit.degrees)

    def _fit(self, segment: Segment) -> Fit:
        return Fit(self._logs, segment, self._autocorrelation)


def _noise(logs: Floats) -> float:
    differences = np.diff(logs)
    spread = float(np.median(np.abs(differences - np.median(differences))))
    return max(_MAD_TO_SIGMA * spread / math.sqrt(2), _MIN_NOISE)


def _without_outliers(logs: Floats, noise: float) -> Floats:
    """Hampel filter.

    In an even window, any value between the two middle ones counts as the median: half of it may be a new level.
    """
    windows = [np.sort(logs[max(0, i - _NEIGHBOURS) : i + _NEIGHBOURS + 1]) for i in range(len(logs))]
    low = np.array([window[(len(window) - 1) // 2] for window in windows])
    high = np.array([window[len(window) // 2] for window in windows])
    nearest = np.clip(logs, low, high)
    return np.where(np.abs(logs - nearest) > _FURTHEST * noise, nearest, logs)
