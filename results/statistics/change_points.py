"""Where a series of runs changed: steps and drifts, each tested, the same answer every time.

1. The noise comes from differences of neighbours (median absolute deviation), which no step and no drift inflates.
2. A run that went wrong is no step: a value further than three times the noise from the median of its neighbours is
   taken for that median (Hampel's filter, which leaves steps as they are).
3. The best division into levels and lines is found together with the correlation of neighbouring runs
   (:mod:`results.statistics.segments`). All segments are found at once, so that a step up and the step back do not
   hide each other; a line is a drift, for which no single commit is to blame.
4. Each step and each slope must hold before Student's t of its generalised least squares; the weakest is taken out and
   its segments are joined until all hold.

Hunter (Fleming et al., ICPE 2023), now Apache Otava, is the peer: docs/decisions/history-steps.md.
"""

import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from results.statistics.distributions import t_tails
from results.statistics.segments import MIN_POINTS, Fit, Floats, Segment, divided

_MAX_P = 3e-5
_FURTHEST = 3.0  # times the noise, from the neighbours' median
_NEIGHBOURS = 3  # to either side
_MAD_TO_SIGMA = 1.4826
_MIN_NOISE = 1e-6  # of a value: what is printed with six digits has no less


class ChangePoint(msgspec.Struct, frozen=True):
    """A step between two runs.

    Attributes:
        index: of the first point of the new level.
        before: fitted value where the old segment ends; of a level its mean, weighted for autocorrelation.
        after: likewise where the new one begins.
        p_value: of no step there, for this division; divisions were searched for it.
    """

    index: int
    before: float
    after: float
    p_value: float

    @property
    def ratio(self) -> float:
        """New level over old."""
        return self.after / self.before


class Stretch(msgspec.Struct, frozen=True):
    """Points between two edges: a level, or a drift.

    Attributes:
        first: index of its first point.
        last: index of its last one.
        start: fitted value at the first.
        end: fitted value at the last; equal to ``start`` for a level.
        p_value: of no drift; None for a level.
    """

    first: int
    last: int
    start: float
    end: float
    p_value: float | None

    @property
    def is_drift(self) -> bool:
        """Whether it has a slope."""
        return self.p_value is not None


class Course(msgspec.Struct, frozen=True):
    """How a series went.

    Attributes:
        stretches: oldest first; together they cover all points.
        steps: edges of stretches at which the fitted value jumps.
        autocorrelation: of neighbouring points.
        newest_expected: what the points before it in its stretch predict for the newest one.
        newest_p: probability that it lies as far from that.
    """

    stretches: list[Stretch]
    steps: list[ChangePoint]
    autocorrelation: float
    newest_expected: float
    newest_p: float


def change_points(values: Sequence[float]) -> list[ChangePoint]:
    """All steps of a series.

    Args:
        values: one number a run, above 0, oldest first.
    """
    return course(values).steps if len(values) >= 2 * MIN_POINTS else []


def course(values: Sequence[float]) -> Course:
    """The levels, drifts and steps of a series.

    Args:
        values: at least twice :data:`MIN_POINTS`, above 0, oldest first.
    """
    raw = np.log(np.asarray(values, dtype=np.float64))
    noise = _noise(raw)
    logs = _without_outliers(raw, noise)
    segments, autocorrelation = divided(logs, noise)
    model = _Model(logs, autocorrelation, noise**2 * (1 + autocorrelation))
    segments = model.held(segments)
    expected, newest_p = model.newest(segments[-1], float(raw[-1]))
    return Course(
        [model.stretch(segment) for segment in segments],
        [step for pair in itertools.pairwise(segments) if (step := model.step(*pair)).p_value <= _MAX_P],
        autocorrelation,
        math.exp(expected),
        newest_p,
    )


class _Model:
    """Fits of segments and their tests, for one autocorrelation.

    Attributes:
        least_variance: of the independent part of the noise, which the series as a whole has.
    """

    def __init__(self, logs: Floats, autocorrelation: float, least_variance: float) -> None:
        self._logs = logs
        self._autocorrelation = autocorrelation
        self._least_variance = least_variance

    def held(self, segments: Sequence[Segment]) -> list[Segment]:
        """Without the slopes and the steps between levels that do not hold, the weakest first.

        What looks like no step beside a line may be where the line begins, and stays.
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
        """The jump between two segments: Student's t with their common variance, at least the series' own."""
        a, b, between = self._fit(left), self._fit(right), right.first - 0.5
        degrees = a.degrees + b.degrees
        variance = max((a.squares + b.squares) / degrees, self._least_variance)
        error = math.sqrt(variance * (a.variance_at(between) + b.variance_at(between)))
        before, after = a.at(between), b.at(between)
        p_value = t_tails((after - before) / error, degrees)
        return ChangePoint(right.first, math.exp(before), math.exp(after), p_value)

    def stretch(self, segment: Segment) -> Stretch:
        """The segment with its fitted values."""
        fit, last = self._fit(segment), segment.end - 1
        p_value = self._slope_p(segment) if segment.is_line else None
        return Stretch(segment.first, last, math.exp(fit.at(segment.first)), math.exp(fit.at(last)), p_value)

    def newest(self, segment: Segment, value: float) -> tuple[float, float]:
        """What the other points of the last segment predict for the newest one; how probable it is, so far from that.

        Its noise is at least that of the whole series.
        """
        fit = self._fit(Segment(segment.first, segment.end - 1, segment.is_line))
        expected = fit.at(segment.end - 1)
        own = 1 / (1 - self._autocorrelation**2)
        variance = max(fit.squares / fit.degrees, self._least_variance)
        error = math.sqrt(variance * (own + fit.variance_at(segment.end - 1)))
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
    """Where an even number of neighbours has two middle values, both are medians: half of them may be a new level."""
    around = [np.sort(logs[max(0, i - _NEIGHBOURS) : i + _NEIGHBOURS + 1]) for i in range(len(logs))]
    low = np.array([some[(len(some) - 1) // 2] for some in around])
    high = np.array([some[len(some) // 2] for some in around])
    nearest = np.clip(logs, low, high)
    return np.where(np.abs(logs - nearest) > _FURTHEST * noise, nearest, logs)
