"""The configuration of a capacity search, and its results for each engine."""

from enum import StrEnum

import msgspec

from bakeoff.results.findings import Finding
from bakeoff.results.metrics import Absence
from bakeoff.results.metrics.objectives import Objective, Violation, objectives
from bakeoff.results.records import Load
from bakeoff.results.statistics.bisection import levels_between


class Over(StrEnum):
    """The kind of load that is searched."""

    RATE = "rate"
    """Open loop: arrivals per second."""
    CONCURRENCY = "concurrency"
    """Closed loop: sessions kept alive."""


class Ended(StrEnum):
    """Why no further trial was run."""

    KNOWN = "known"
    """The answer is known to the resolution, or as well as whole numbers allow."""
    TRIALS = "trials"
    """All allowed trials have been run."""
    MINUTES = "minutes"
    """The allowed time has passed."""
    NO_EVIDENCE = "no evidence"
    """No remaining level can be judged, for a reason other than the engine."""
    ENGINE = "engine"
    """The engine did not start, or was lost."""


class Exceeded(msgspec.Struct, frozen=True):
    """How many requests, or tokens for metrics of tokens, of one trial exceeded one objective's bound."""

    objective: str
    """As written."""
    allowed: float
    """Share that may exceed it."""
    late: int
    total: int
    clustered: float = 1.0
    """How many times as much ``late`` varies as if late ones came independently of each other."""


class Attempt(msgspec.Struct, frozen=True):
    """Result of one trial for its level."""

    trial: str
    """Its id in the run."""
    level: float
    met: bool | None
    """Whether it met every objective; None if it is no evidence."""
    margin: float | None
    """Log of bound over value, of the objective with the least margin; None if the trial has no such number."""
    findings: list[Finding] = []
    """Why the trial is INVALID."""
    violations: list[Violation] = []
    """Objectives that it violated, or for which it has no value."""
    exceeded: list[Exceeded] = []
    """Counts for each objective; empty if an objective has none, as one about memory, or the trial is no evidence."""

    @property
    def had_too_few(self) -> bool:
        """Whether it is VALID but no evidence, because a percentile needs more requests than it had."""
        too_few = any(violation.value.absence is Absence.TOO_FEW for violation in self.violations)
        return self.met is None and not self.findings and too_few


class Skip(msgspec.Struct, frozen=True):
    """Levels that a search skips, and why; levels are in the unit of :class:`Over`."""

    up_to: float | None = None
    """Levels up to this one have too few requests for an objective."""
    above: float | None = None
    """Levels above this one lie between the highest that met the objectives and one that could not be judged."""
    planned_requests: int | None = None
    """Requests that a trial at ``up_to`` would plan; None if a trial there showed that they are too few."""
    needed_requests: int | None = None
    """Requests that the objectives need."""
    attempt: Attempt | None = None
    """The trial that showed it."""


class EngineSearch(msgspec.Struct, frozen=True):
    """The search of one engine for one tier; levels are in the unit of :class:`Over`."""

    engine: str
    attempts: list[Attempt] = []
    """Trials that are evidence for the tier, those chosen for other tiers included; of its own, all."""
    low: float | None = None
    """Lower end of the interval of the highest level that meets the objectives; None if it may be below the range."""
    level: float | None = None
    """Most probable highest level; None if below the searched range or unknown."""
    high: float | None = None
    """Upper end of the interval; None if below the searched range or unknown."""
    open_above: bool = False
    """Whether the highest level may be above the range."""
    ended: Ended | None = None
    """None while the search continues, and for ever if it was interrupted."""
    skip: Skip | None = None
    """The last levels that were skipped."""
    lost: str | None = None
    """Why the engine was lost."""
    tier: str = ""
    """Name of the objectives; empty where the search has one set without a name."""

    @property
    def judged(self) -> list[Attempt]:
        """The attempts that are evidence."""
        return [attempt for attempt in self.attempts if attempt.met is not None]

    @property
    def has_level(self) -> bool:
        """Whether some level is known to meet the objectives."""
        return bool(self.judged) and self.low is not None


class SearchConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Target, range and budget of a search; stored when the run starts."""

    engines: list[str]
    """Labels, in the order in which they take turns."""
    over: Over
    low: float
    """Lowest level that may be tried."""
    high: float
    template: Load
    """The load's other fields."""
    slo: str = ""
    """The objectives in one line of text; empty with tiers."""
    tiers: dict[str, str] = {}
    """Sets of objectives by name, in the order in which they are searched; empty for one set without a name."""
    start: float | None = None
    """First level to try; None for the lowest."""
    guesses: dict[str, float] = {}
    """Expected answer of each engine for the first tier, by label."""
    resolution: float = 0.05
    """The search ends when the answer is known to within this share, in either direction."""
    alpha: float = 0.05
    """Share of searches whose interval may miss the true answer."""
    trials: int = 20
    """Maximum trials of each engine for each tier; those chosen for other tiers do not count."""
    minutes: float | None = None
    """Maximum minutes of each engine for each tier, starts included; None for no limit. No trial begins that
    is expected to last longer."""

    @property
    def objectives(self) -> dict[str, list[Objective]]:
        """The objectives of each tier by its name, which is empty where there is one set without a name."""
        return {tier: objectives(slo) for tier, slo in (self.tiers or {"": self.slo}).items()}

    @property
    def levels(self) -> list[float]:
        """Loads that may be tried, ascending."""
        levels = levels_between(self.low, self.high, self.resolution)
        return levels if self.over is Over.RATE else sorted({float(round(level)) for level in levels})

    def load_at(self, level: float) -> Load:
        """The load of a level."""
        if self.over is Over.RATE:
            return msgspec.structs.replace(self.template, rate_per_s=level)
        return msgspec.structs.replace(self.template, concurrency=round(level))


class SearchRecord(msgspec.Struct, frozen=True):
    """Configuration and present results of a search, folded from the run's log."""

    config: SearchConfig
    engines: list[EngineSearch] = []
    """By tier, then by engine."""
