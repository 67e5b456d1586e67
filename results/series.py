"""What a history says: series of points with their steps and drifts, and how the newest run stands in each."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from results.metrics import CATALOGUE, Better
from results.statistics.change_points import ChangePoint, Course, Stretch


class Outcome(StrEnum):
    """What the newest runs say of a series, or of all."""

    NOT_WORSE = "not worse"
    WORSE = "worse"
    """The newest step is on the metric's bad side."""
    CANNOT_TELL = "cannot tell"


class Doubt(StrEnum):
    """Why a series cannot tell how its newest run is."""

    TOO_FEW = "too few"
    """Fewer points than two levels need."""
    NO_VALUE = "no value"
    """The newest run planned this engine and load, and has no valid trial with this metric."""
    ZERO = "zero"
    """The newest value is 0, which is no level yet."""
    APART = "apart"
    """The newest value lies far on the bad side: a run that went wrong, or the first of a new level."""


class Point(msgspec.Struct, frozen=True):
    """One run in a series.

    Attributes:
        run: its id.
        created_utc: ISO 8601.
        commit: of the code under test; None where the run does not know it.
        value: in the metric's unit.
        trials: valid ones that it rests on.
    """

    run: str
    created_utc: str
    commit: str | None
    value: float
    trials: int


class Change(msgspec.Struct, frozen=True):
    """A step, and where to look for it.

    Attributes:
        last_before: the last run of the old level.
        first_after: the first of the new one: what changed is after the one commit and up to the other.
        step: its levels. A fall to 0 is one without a test: its ``p_value`` is 0.
        is_worse: whether the new level is on the metric's bad side.
    """

    last_before: Point
    first_after: Point
    step: ChangePoint
    is_worse: bool


class Drift(msgspec.Struct, frozen=True):
    """A metric that moved a little with each run: no single commit is to blame.

    Attributes:
        first: the run in which it began.
        last: the last one of it.
        stretch: its fitted values.
        is_worse: whether it went to the metric's bad side.
    """

    first: Point
    last: Point
    stretch: Stretch
    is_worse: bool

    @property
    def ratio(self) -> float:
        """Value at its end over that at its beginning."""
        return self.stretch.end / self.stretch.start


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one engine at one load, on one machine.

    Attributes:
        engine: label.
        level: label of the load.
        metric: name in the catalogue.
        machine: in a few words.
        points: values above 0, oldest first; indices of ``course`` count these.
        zeros: points at 0 or below, which have no ratio to others and are left out.
        course: levels and steps of the points; None where they are too few.
        changes: steps among them.
        drifts: likewise.
        is_current: whether the newest run continues it.
        doubt: why it does not say how the newest run is; None where it does, and where it is not current.
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
        """Of its newest step; a series that has ended has nothing against the newest run."""
        if self.is_current and self.changes and self.changes[-1].is_worse:
            return Outcome.WORSE
        return Outcome.CANNOT_TELL if self.doubt else Outcome.NOT_WORSE

    @property
    def last(self) -> Point:
        """Its newest point, a 0 included."""
        return max([*self.points[-1:], *self.zeros[-1:]], key=age)


def outcome_of(series: Sequence[Series]) -> Outcome:
    """Of all series: worse where one is; cannot tell where one cannot, or where none is current."""
    outcomes = {entry.outcome for entry in series if entry.is_current} or {Outcome.CANNOT_TELL}
    return next(each for each in (Outcome.WORSE, Outcome.CANNOT_TELL, Outcome.NOT_WORSE) if each in outcomes)


def is_worse(metric: str, before: float, after: float) -> bool:
    """Whether ``after`` lies on the metric's bad side of ``before``."""
    return (after > before) == (CATALOGUE[metric].better is Better.LOWER)


def age(point: Point) -> tuple[str, str]:
    """For sorting, oldest first; as the index sorts runs."""
    return point.created_utc, point.run
