"""What was found out about a trial beside its metrics: typed codes with parameters, stored with the run.

Code decides on :class:`FindingCode`; :mod:`results.text.findings` is the one place that makes sentences of them.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

Parameter = str | int | float
"""Numbers are in the unit that the parameter's name ends in."""


class Severity(StrEnum):
    """What a finding does to its trial."""

    INVALID = "invalid"
    """The trial supports no metric."""
    WARNING = "warning"
    """The trial may be VALID; its reader must know this."""


class Cause(StrEnum):
    """Who is answerable for a finding."""

    ENGINE = "engine"
    """Evidence against the engine: under this load it died, failed or fell behind."""
    CLIENT = "client"
    """The load generator was too slow or too imprecise."""
    MACHINE = "machine"
    """Something else on the machine disturbed the trial."""
    EXPERIMENT = "experiment"
    """The experiment asks for what a trial of its length or kind cannot show."""
    HARNESS = "harness"
    """A bug of Bakeoff."""


class FindingCode(StrEnum):
    """Every finding there is."""

    # INVALID, most damning first
    ENGINE_DIED = "engine_died"
    ENGINE_RESTARTED = "engine_restarted"
    ENGINE_STOPPED = "engine_stopped"
    REQUESTS_LOST = "requests_lost"
    FAILED_REQUESTS = "failed_requests"
    SATURATED = "saturated"
    """Open loop: the engine completed less work than was offered, beyond its own noise."""
    NOT_STEADY = "not_steady"
    """Any other trend across the window."""
    WINDOW_TOO_SHORT = "window_too_short"
    CLIENT_LATE = "client_late"
    """Requests were sent after their planned time."""
    CLIENT_OFF_RATE = "client_off_rate"
    """Requests were sent at another rate than planned."""
    CLIENT_STALLED = "client_stalled"
    """A worker's event loop was late."""
    CLIENT_ERROR = "client_error"
    """A latency is no larger than a few times the client's own error."""
    CACHE_NOT_COLD = "cache_not_cold"
    THROTTLED = "throttled"
    FOREIGN_LOAD = "foreign_load"
    """Other processes took a large share of the machine's cores."""

    # Warnings
    OUTPUT_LENGTH = "output_length"
    INPUT_LENGTH = "input_length"
    PROMPT_LENGTH = "prompt_length"
    TOKENS_APPORTIONED = "tokens_apportioned"
    TOKENS_ASSUMED = "tokens_assumed"
    CACHE_UNKNOWN = "cache_unknown"
    CACHE_UNUSED = "cache_unused"
    UNCALIBRATED_PACE = "uncalibrated_pace"
    SEVERAL_SERVERS = "several_servers"
    COUNTERS_DISAGREE = "counters_disagree"
    PLAN_ENDED_EARLY = "plan_ended_early"
    TURN_MIX = "turn_mix"
    """Multi-turn sessions: the mix of turns inside the window is not that of the workload."""
    SOME_FOREIGN_LOAD = "some_foreign_load"
    POWER_CAPPED = "power_capped"
    """A GPU was at its power limit for most of the window."""
    IMPORTED = "imported"
    """Another tool measured it, and stored neither its client's error nor telemetry."""

    @property
    def cause(self) -> Cause:
        """Who is answerable."""
        return _CAUSES[self]


_CAUSES: dict[FindingCode, Cause] = {
    FindingCode.ENGINE_DIED: Cause.ENGINE,
    FindingCode.ENGINE_RESTARTED: Cause.ENGINE,
    FindingCode.ENGINE_STOPPED: Cause.MACHINE,
    FindingCode.REQUESTS_LOST: Cause.HARNESS,
    FindingCode.FAILED_REQUESTS: Cause.ENGINE,
    FindingCode.SATURATED: Cause.ENGINE,
    FindingCode.NOT_STEADY: Cause.EXPERIMENT,
    FindingCode.WINDOW_TOO_SHORT: Cause.EXPERIMENT,
    FindingCode.CLIENT_LATE: Cause.CLIENT,
    FindingCode.CLIENT_OFF_RATE: Cause.CLIENT,
    FindingCode.CLIENT_STALLED: Cause.CLIENT,
    FindingCode.CLIENT_ERROR: Cause.CLIENT,
    FindingCode.CACHE_NOT_COLD: Cause.EXPERIMENT,
    FindingCode.THROTTLED: Cause.MACHINE,
    FindingCode.FOREIGN_LOAD: Cause.MACHINE,
    FindingCode.OUTPUT_LENGTH: Cause.ENGINE,
    FindingCode.INPUT_LENGTH: Cause.EXPERIMENT,
    FindingCode.PROMPT_LENGTH: Cause.EXPERIMENT,
    FindingCode.TOKENS_APPORTIONED: Cause.ENGINE,
    FindingCode.TOKENS_ASSUMED: Cause.ENGINE,
    FindingCode.CACHE_UNKNOWN: Cause.ENGINE,
    FindingCode.CACHE_UNUSED: Cause.ENGINE,
    FindingCode.UNCALIBRATED_PACE: Cause.CLIENT,
    FindingCode.SEVERAL_SERVERS: Cause.EXPERIMENT,
    FindingCode.COUNTERS_DISAGREE: Cause.ENGINE,
    FindingCode.PLAN_ENDED_EARLY: Cause.EXPERIMENT,
    FindingCode.TURN_MIX: Cause.EXPERIMENT,
    FindingCode.SOME_FOREIGN_LOAD: Cause.MACHINE,
    FindingCode.POWER_CAPPED: Cause.MACHINE,
    FindingCode.IMPORTED: Cause.CLIENT,
}


class Finding(msgspec.Struct, frozen=True):
    """One finding of one trial."""

    code: FindingCode
    severity: Severity
    parameters: dict[str, Parameter] = {}


def invalid(code: FindingCode, **parameters: Parameter) -> Finding:
    """A finding that voids its trial."""
    return Finding(code, Severity.INVALID, parameters)


def warning(code: FindingCode, **parameters: Parameter) -> Finding:
    """A finding that its trial's reader must know."""
    return Finding(code, Severity.WARNING, parameters)


def is_against_engine(findings: Iterable[Finding]) -> bool:
    """Whether a trial is INVALID for a reason that its engine caused: evidence against it, not missing evidence."""
    return any(f.severity is Severity.INVALID and f.code.cause is Cause.ENGINE for f in findings)
