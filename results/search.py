"""What a capacity search looks for, and what it has learnt of each engine."""

from enum import StrEnum

import msgspec

from results.findings import Finding
from results.metrics import Absence
from results.objectives import Objective, Violation, objectives
from results.records import Load
from results.statistics.bisection import levels_between


class Over(StrEnum):
    """Which load is searched."""

    RATE = "rate"
    """Open loop: arrivals per second."""
    CONCURRENCY = "concurrency"
    """Closed loop: requests kept in flight."""


class Ended(StrEnum):
    """Why no further trial was run."""

    KNOWN = "known"
    """The answer is known to the resolution, or as well as whole numbers allow."""
    TRIALS = "trials"
    """All allowed trials have been run."""
    MINUTES = "minutes"
    """The allowed time is over."""
    NO_EVIDENCE = "no evidence"
    """No level is left that can be judged, for a reason other than the engine."""
    ENGINE = "engine"
    """The engine did not start, or was lost."""


class Attempt(msgspec.Struct, frozen=True):
    """What one trial says of its level."""

    trial: str
    """Its id in the run."""
    level: float
    met: bool | None
    """Whether it met every objective; None where it is no evidence."""
    margin: float | None
    """Log of bound over value, of the objective that was met least; None where the trial has no such number."""
    findings: list[Finding] = []
    """Why the trial is INVALID."""
    violations: list[Violation] = []
    """The objectives that it violated, or of which it shows nothing."""

    @property
    def had_too_few(self) -> bool:
        """Whether it is VALID and no evidence, because a percentile needs more requests than it had."""
        too_few = any(violation.value.absence is Absence.TOO_FEW for violation in self.violations)
        return self.met is None and not self.findings and too_few


class Skip(msgspec.Struct, frozen=True):
    """Levels that are left out of a search, and why; levels are in the unit of :class:`Over`."""

    up_to: float | None = None
    """Levels up to this one have too few requests for an objective."""
    above: float | None = None
    """Levels above this one lie between the highest that met the objectives and one that could not be judged."""
    planned_requests: int | None = None
    """Requests that a trial at ``up_to`` would plan; None where a trial there showed it."""
    needed_requests: int | None = None
    """Requests that the objectives need."""
    attempt: Attempt | None = None
    """The trial that showed it."""


class EngineSearch(msgspec.Struct, frozen=True):
    """The search of one engine; levels are in the unit of :class:`Over`."""

    engine: str
    attempts: list[Attempt] = []
    low: float | None = None
    """Lower end of the interval of the highest level that meets the objectives; None if it may be below the range."""
    level: float | None = None
    """Most probable highest level; None if below the searched range or unknown."""
    high: float | None = None
    """Upper end of the interval; None if below the searched range or unknown."""
    open_above: bool = False
    """Whether it may be above the range."""
    ended: Ended | None = None
    """None while it goes on, and for ever where it was interrupted."""
    skip: Skip | None = None
    """The last levels that were left out."""
    lost: str | None = None
    """Why the engine was lost."""

    @property
    def judged(self) -> list[Attempt]:
        """The attempts that are evidence."""
        return [attempt for attempt in self.attempts if attempt.met is not None]

    @property
    def has_level(self) -> bool:
        """Whether some level is known to meet the objectives."""
        return bool(self.judged) and self.low is not None


class SearchConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is searched for, and how much it may cost; stored when the run starts."""

    engines: list[str]
    """Labels, in the order in which they take turns."""
    over: Over
    slo: str
    """The objectives in one line of text."""
    low: float
    """Lowest level that may be tried."""
    high: float
    template: Load
    """The load's other fields."""
    start: float | None = None
    """Level to begin at; None for the lowest."""
    guesses: dict[str, float] = {}
    """Where each engine's answer is expected, by label."""
    resolution: float = 0.05
    """The answer is to be known to this share, up or down."""
    alpha: float = 0.05
    """Share of searches whose interval may fail to hold the truth."""
    trials: int = 20
    """At most this many for each engine."""
    minutes: float | None = None
    """Likewise, starts included; None for any length. The trial under way is finished."""

    @property
    def objectives(self) -> list[Objective]:
        """What must hold in each trial."""
        return objectives(self.slo)

    @property
    def levels(self) -> list[float]:
        """Loads that may be tried, rising."""
        levels = levels_between(self.low, self.high, self.resolution)
        return levels if self.over is Over.RATE else sorted({float(round(level)) for level in levels})

    def load_at(self, level: float) -> Load:
        """The load of a level."""
        if self.over is Over.RATE:
            return msgspec.structs.replace(self.template, rate_per_s=level)
        return msgspec.structs.replace(self.template, concurrency=round(level))


class SearchRecord(msgspec.Struct, frozen=True):
    """What was searched for, and what is known now: a fold of the run's log."""

    config: SearchConfig
    engines: list[EngineSearch] = []
