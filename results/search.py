"""What a search stores: ``search.json``, beside the manifest of a run whose trials were chosen one after the other."""

from enum import StrEnum

import msgspec

from results.findings import Finding
from results.objectives import Miss
from results.records import SCHEMA_VERSION


class Over(StrEnum):
    """Which load is looked for."""

    RATE = "rate"
    """Open loop: arrivals per second."""
    CONCURRENCY = "concurrency"
    """Closed loop: requests kept in flight."""


class Ended(StrEnum):
    """Why no further trial was run."""

    KNOWN = "known"
    """The answer is known to the resolution, or as well as whole numbers allow."""
    TRIALS = "trials"
    """As many as were allowed have been run."""
    MINUTES = "minutes"
    """The time that was allowed is over."""
    NO_EVIDENCE = "no evidence"
    """No level is left that can be judged, for a reason that is not the engine's."""
    ENGINE = "engine"
    """The engine did not start, or was lost."""


class Attempt(msgspec.Struct, frozen=True):
    """What one trial said."""

    trial: str
    """Its id in the run."""
    level: float
    kept: bool | None
    """Whether it kept every objective; None where it is no evidence."""
    margin: float | None
    """Log of bound over value, of the objective that was kept least; None where the trial has no such number."""
    findings: list[Finding] = []
    """Why the trial is INVALID."""
    misses: list[Miss] = []
    """The objectives that it missed, or of which it shows nothing."""


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
    note: str | None = None
    """Why the engine was lost, or which levels could not be judged, and why."""

    @property
    def judged(self) -> list[Attempt]:
        """The attempts that say something."""
        return [attempt for attempt in self.attempts if attempt.kept is not None]

    @property
    def has_level(self) -> bool:
        """Whether some level is known to keep the objectives."""
        return bool(self.judged) and self.low is not None


class SearchRecord(msgspec.Struct, frozen=True):
    """``search.json``: what was looked for, and what was found; replaced after each trial."""

    over: Over
    objectives: list[str]
    """As they were written."""
    low: float
    """The lowest level that may be tried."""
    high: float
    resolution: float
    """The answer is to be known to this share, up or down."""
    alpha: float
    """The interval fails to hold the truth in at most this share of searches."""
    trials: int
    """Allowed for each engine."""
    minutes: float | None
    """Allowed for each engine; None for any length."""
    guesses: dict[str, float]
    """Where an engine's answer was expected."""
    engines: list[EngineSearch] = []
    schema_version: int = SCHEMA_VERSION
