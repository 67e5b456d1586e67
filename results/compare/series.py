"""Series of a history: points with their steps and drifts, and the verdict on the newest run of each."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from bakeoff.results.metrics import CATALOGUE, Better
from bakeoff.results.statistics.change_points import ChangePoint, Course, Stretch

SOUGHT, FEW = 0.1, 12
"""Relative step that a series of fewer runs than this must be able to show; as a gate's ``--detect``."""


class Outcome(StrEnum):
    """Verdict on the newest run, for one series or for all."""

    NOT_WORSE = "not worse"
    WORSE = "worse"
    """The newest step is a degradation."""
    CANNOT_TELL = "cannot tell"


class Doubt(StrEnum):
    """Why a series gives no verdict on its newest run."""

    TOO_FEW = "too few"
    """Too few points for two levels."""
    NO_VALUE = "no value"
    """The newest run planned this engine and load but has no valid trial with this metric."""
    ZERO = "zero"
    """The newest value is 0, which is not yet a level."""
    TOO_NOISY = "too noisy"
    """A step of :data:`SOUGHT` would not be found in so few runs."""
    OUTLIER = "outlier"
    """The newest value is far on the bad side: a failed run, or the first of a new level."""


class Point(msgspec.Struct, frozen=True):
    """One run in a series.

    Attributes:
        run: id of the run.
        created_utc: ISO 8601.
        commit: of the code under test; None if not recorded.
        value: in the metric's unit.
        trials: number of valid trials behind the value.
    """

    run: str
    created_utc: str
    commit: str | None
    value: float
    trials: int


class Change(msgspec.Struct, frozen=True):
    """A step, and the commits between which its cause lies.

    Attributes:
        last_before: last run at the old level.
        first_after: first run at the new level; the cause is after the commit of ``last_before``, up to its own.
        step: the levels. A fall to 0 is not tested: its ``p_value`` is 0.
        is_worse: whether the new level is a degradation.
    """

    last_before: Point
    first_after: Point
    step: ChangePoint
    is_worse: bool


class Drift(msgspec.Struct, frozen=True):
    """A gradual change over many runs, with no single commit to blame.

    Attributes:
        first: first run of the drift.
        last: last run of the drift.
        stretch: the fitted values.
        is_worse: whether it is a degradation.
    """

    first: Point
    last: Point
    stretch: Stretch
    is_worse: bool

    @property
    def ratio(self) -> float:
        """Fitted value at the end over that at the start."""
        return self.stretch.end / self.stretch.start


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one engine at one load, on one machine.

    Attributes:
        engine: label.
        level: label of the load.
        metric: name in the catalogue.
        machine: processor, cores and GPUs.
        points: values above 0, oldest first; ``course`` indexes these.
        zeros: points at or below 0, excluded because they have no ratio to others.
        course: levels and steps; None if there are too few points.
        changes: the steps.
        drifts: the drifts.
        is_current: whether the newest run belongs to this series.
        doubt: why there is no verdict on the newest run; None if there is one or the series has ended.
    """

    engine: str
    level: str
    metric: str
    machine: str
    points: list[Point]
    zeros: list[Point]
    course: Course | None
    changes: list[Change]
    drifts: list[Drift]
    is_current: bool = False
    doubt: Doubt | None = None

    @property
    def outcome(self) -> Outcome:
        """Verdict from the newest step; a series that has ended says nothing about the newest run."""
        if self.is_current and self.changes and self.changes[-1].is_worse:
            return Outcome.WORSE
        return Outcome.CANNOT_TELL if self.doubt else Outcome.NOT_WORSE

    @property
    def last(self) -> Point:
        """The newest point, zeros included."""
        return max([*self.points[-1:], *self.zeros[-1:]], key=age)


def outcome_of(series: Sequence[Series]) -> Outcome:
    """Combine all series: worse if any is, else cannot tell if any cannot or none is current."""
    outcomes = {entry.outcome for entry in series if entry.is_current} or {Outcome.CANNOT_TELL}
    return next(outcome for outcome in (Outcome.WORSE, Outcome.CANNOT_TELL, Outcome.NOT_WORSE) if outcome in outcomes)


def is_worse(metric: str, before: float, after: float) -> bool:
    """Whether going from ``before`` to ``after`` is a degradation of the metric."""
    return (after > before) == (CATALOGUE[metric].better is Better.LOWER)


def age(point: Point) -> tuple[str, str]:
    """Sort key, oldest first; the index sorts runs the same way."""
    return point.created_utc, point.run
