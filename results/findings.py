"""Findings about a trial: typed codes with parameters, stored with the run.

Code decides on :class:`FindingCode`; only :mod:`bakeoff.results.text.findings` words them.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

Parameter = str | int | float
"""Numbers are in the unit given by the suffix of the parameter's name."""


class Severity(StrEnum):
    """Effect of a finding on its trial."""

    INVALID = "invalid"
    """The trial supports no metric."""
    WARNING = "warning"
    """The trial may be VALID, with a caveat."""
    NOTE = "note"
    """A fact that changes neither the verdict nor what the numbers mean."""


class Cause(StrEnum):
    """What caused a finding."""

    ENGINE = "engine"
    """Evidence against the engine: it died, failed or fell behind under this load."""
    CLIENT = "client"
    """The load generator was too slow or too imprecise."""
    MACHINE = "machine"
    """Something else on the machine disturbed the trial."""
    EXPERIMENT = "experiment"
    """The experiment asks for something that its trials cannot measure."""
    HARNESS = "harness"
    """A bug of Bakeoff."""


class FindingCode(StrEnum):
    """All findings."""

    # INVALID, most severe first
    ENGINE_DIED = "engine_died"
    ENGINE_RESTARTED = "engine_restarted"
    ENGINE_STOPPED = "engine_stopped"
    FAULT_FAILED = "fault_failed"
    """A fault of the experiment was not caused or ended as it says."""
    REQUESTS_LOST = "requests_lost"
    IMPOSSIBLE_TIMES = "impossible_times"
    """Chunks arrived before their request was planned or sent, or before an earlier chunk."""
    FAILED_REQUESTS = "failed_requests"
    NOT_FOUND = "not_found"
    """Like ``FAILED_REQUESTS``, where the server answered HTTP 404 or 405: it knows no such model, or no such path."""
    NOT_AUTHORISED = "not_authorised"
    """The same for HTTP 401, 402 and 403: the server wants a key, or another one."""
    REDIRECTED = "redirected"
    """The same for redirects, which no request follows."""
    REQUEST_REFUSED = "request_refused"
    """Like ``FAILED_REQUESTS``, where the server answered HTTP 400, 413 or 422: it does not take such requests."""
    RATE_LIMITED = "rate_limited"
    """The same for HTTP 429: the server or the account limits what it takes."""
    RAMP_FAILED = "ramp_failed"
    """Every request of the ramp failed otherwise, so the load was ended before its window."""
    TOKENS_MISCOUNTED = "tokens_miscounted"
    """The server claims more or fewer output tokens than its answers can have, and nothing else counts them."""
    SATURATED = "saturated"
    """Open loop: the engine completed less work than was offered, beyond its noise."""
    HELD_BACK = "held_back"
    """Open loop: ``max_in_flight`` held back more and more of it, so that the engine was not offered the load."""
    NOT_STEADY = "not_steady"
    """A trend across the window, in runs of earlier versions."""
    BECAME_SLOWER = "became_slower"
    """The window has two states of the engine, the later one slower."""
    BECAME_FASTER = "became_faster"
    """The same with a faster one, as of a server that still warmed up."""
    TURN_MIX = "turn_mix"
    """Multi-turn sessions: the mix of turns in the window differs from that of the long run."""
    LENGTH_MIX = "length_mix"
    """Closed loop: the requested lengths in the window differ from those of the long run."""
    WINDOW_TOO_SHORT = "window_too_short"
    WINDOW_EMPTY = "window_empty"
    """No request was planned inside the window."""
    SESSIONS_CUT = "sessions_cut"
    """Sessions in progress may have ended early in the window, because they were written for a shorter load."""
    CLIENT_LOST = "client_lost"
    """A worker of the client ended or was stopped."""
    FEWER_WORKERS = "fewer_workers"
    """Workers that were lost before and not replaced, so the others had their share."""
    CLIENT_LATE = "client_late"
    """Requests were sent after their planned time."""
    CLIENT_OFF_RATE = "client_off_rate"
    """Requests were sent at another rate than planned."""
    CLIENT_STALLED = "client_stalled"
    """A worker's event loop was late because of its own work, or for an unknown reason."""
    CLIENT_PAUSED = "client_paused"
    """A worker's event loop was late because the machine did not run it."""
    CLIENT_ERROR = "client_error"
    """A latency is at most a few times the client's own error."""
    CACHE_NOT_COLD = "cache_not_cold"
    SAMPLER_LOST = "sampler_lost"
    """The machine was not sampled in a part of the window, so nothing is known about disturbances there."""
    XID = "xid"
    """The driver reported an error of a GPU, by its number; a warning if it only cleaned up after a program."""
    PROGRAM_XID = "program_xid"
    """Like ``XID``, for an error that programs cause, such as an illegal address."""
    ECC_UNCORRECTED = "ecc_uncorrected"
    """A GPU's memory had errors that its error correction (ECC) could not correct."""
    THROTTLED = "throttled"
    FOREIGN_LOAD = "foreign_load"
    """Other processes used a large fraction of the machine's cores."""

    # Warnings
    RAMP_FAILURES = "ramp_failures"
    """Requests failed in the ramp, a larger share than the window may have."""
    OUTPUT_LENGTH = "output_length"
    INPUT_LENGTH = "input_length"
    PROMPT_LENGTH = "prompt_length"
    TOKENS_APPORTIONED = "tokens_apportioned"
    TOKENS_UNPLACED = "tokens_unplaced"
    """Most tokens of answers were not streamed, such as hidden reasoning, so that they have neither ITL nor TPOT."""
    TOKENS_CONTRADICTED = "tokens_contradicted"
    """Some of the server's counts contradict the rest of its answers, and are not used."""
    BEHIND_END = "behind_end"
    """Tokens came behind the mark that ends an answer; they are no part of it."""
    BLANK_BEGINNING = "blank_beginning"
    """Most answers begin with chunks in which nobody sees anything, long before the first visible one."""
    RESENT = "resent"
    """The server closed connections that it had promised to keep, so requests were sent again on new ones."""
    HIDDEN_REASONING = "hidden_reasoning"
    """The engine counted tokens of reasoning that it did not stream: they take time before the first token."""
    THINKING_IN_TEXT = "thinking_in_text"
    """Answers have tags of thinking in their text, so that reasoning counts as visible."""
    NOTHING_VISIBLE = "nothing_visible"
    """Answers ended while the model was still reasoning, so that a user saw nothing of them."""
    ANSWERS_CUT = "answers_cut"
    """The server ended answers early, as content filters do."""
    LEFT_OPEN = "left_open"
    """Most responses stayed open behind their last event, for which a closed loop waits."""
    TOKENS_ASSUMED = "tokens_assumed"
    TOKENS_ESTIMATED = "tokens_estimated"
    """Answers that came as a whole do not say how many tokens they have."""
    BUFFERED = "buffered"
    """Most answers arrived in one piece, so their TTFT is the time of the whole answer."""
    CACHE_UNKNOWN = "cache_unknown"
    CACHE_UNUSED = "cache_unused"
    UNCALIBRATED_PACE = "uncalibrated_pace"
    SEVERAL_SERVERS = "several_servers"
    ADDRESS_SLOW = "address_slow"
    """One address of the engine answers like requests more slowly than the others."""
    ADDRESS_IMBALANCE = "address_imbalance"
    """One address of the engine got clearly more or fewer tokens than an equal share."""
    ADDRESS_CACHE = "address_cache"
    REPLICA_UNNAMED = "replica_unnamed"
    """Answers lack the header that should name their replica."""
    """One address of the engine finds less of its prompts in its prefix cache than the others."""
    COUNTERS_DISAGREE = "counters_disagree"
    PLAN_ENDED_EARLY = "plan_ended_early"
    BACKLOG_GREW = "backlog_grew"
    """Open loop: more requests were in flight at the end than the arrivals explain, and the engine shows no queue."""
    CAPACITY_UNCLEAR = "capacity_unclear"
    """Open loop: requests queue, and too few were sent to tell whether the load is within the engine's capacity."""
    MEMORY_GROWS = "memory_grows"
    """The engine's memory grew through a long window, and went on growing in its second half."""
    LATENCY_DRIFTS = "latency_drifts"
    """TTFT or TPOT rose or fell through a long window."""
    ENGINE_FROZE = "engine_froze"
    """No answer advanced for much longer than usual, though requests were in flight."""
    DRAIN_IN_RATES = "drain_in_rates"
    """Varying load: a fair part of the makespan, over which rates are taken, came after the last planned request."""
    WINDOW_SHORT_FOR_QUEUE = "window_short_for_queue"
    """Open loop: the requests in flight change so slowly that latencies of the window are a matter of luck."""
    SOME_FOREIGN_LOAD = "some_foreign_load"
    POWER_CAPPED = "power_capped"
    """A GPU was at its power limit: a warning if for most of the window, else a note."""
    EXPORTER_UNREAD = "exporter_unread"
    """The page of an exporter could not be read, or not always."""
    ENERGY_SOURCES_DISAGREE = "energy_sources_disagree"
    """NVML and an exporter show another energy of the same GPU."""
    HARDWARE_SLOWDOWN = "hardware_slowdown"
    """A GPU's hardware lowered its clocks: a warning if for most of the window, else a note."""
    IMPORTED = "imported"
    """Measured by another tool, which stored neither its client's error nor telemetry."""

    # Notes
    ECC_UNCORRECTED_OF_CHIP = "ecc_uncorrected_of_chip"
    """Like `ECC_UNCORRECTED`, for a chip with several MIG slices; one in the engine's own slice comes with an XID."""
    ECC_CORRECTED = "ecc_corrected"
    MEMORY_REPAIR_PENDING = "memory_repair_pending"
    """A GPU replaces faulty memory at its next reset."""

    @property
    def cause(self) -> Cause:
        """The cause of this finding."""
        return _CAUSES[self]


_CAUSES: dict[FindingCode, Cause] = {
    FindingCode.ENGINE_DIED: Cause.ENGINE,
    FindingCode.ENGINE_RESTARTED: Cause.ENGINE,
    FindingCode.ENGINE_STOPPED: Cause.MACHINE,
    FindingCode.FAULT_FAILED: Cause.EXPERIMENT,
    FindingCode.REQUESTS_LOST: Cause.HARNESS,
    FindingCode.IMPOSSIBLE_TIMES: Cause.HARNESS,
    FindingCode.FAILED_REQUESTS: Cause.ENGINE,
    FindingCode.NOT_FOUND: Cause.ENGINE,
    FindingCode.NOT_AUTHORISED: Cause.EXPERIMENT,
    FindingCode.REDIRECTED: Cause.EXPERIMENT,
    FindingCode.REQUEST_REFUSED: Cause.ENGINE,
    FindingCode.RATE_LIMITED: Cause.ENGINE,
    FindingCode.RAMP_FAILED: Cause.ENGINE,
    FindingCode.RAMP_FAILURES: Cause.ENGINE,
    FindingCode.TOKENS_MISCOUNTED: Cause.ENGINE,
    FindingCode.SATURATED: Cause.ENGINE,
    FindingCode.HELD_BACK: Cause.EXPERIMENT,
    FindingCode.NOT_STEADY: Cause.EXPERIMENT,
    FindingCode.BECAME_SLOWER: Cause.ENGINE,
    FindingCode.BECAME_FASTER: Cause.MACHINE,
    FindingCode.WINDOW_TOO_SHORT: Cause.EXPERIMENT,
    FindingCode.WINDOW_EMPTY: Cause.EXPERIMENT,
    FindingCode.SESSIONS_CUT: Cause.MACHINE,
    FindingCode.CLIENT_LOST: Cause.MACHINE,
    FindingCode.FEWER_WORKERS: Cause.MACHINE,
    FindingCode.CLIENT_LATE: Cause.CLIENT,
    FindingCode.CLIENT_OFF_RATE: Cause.CLIENT,
    FindingCode.CLIENT_STALLED: Cause.CLIENT,
    FindingCode.CLIENT_PAUSED: Cause.MACHINE,
    FindingCode.CLIENT_ERROR: Cause.CLIENT,
    FindingCode.CACHE_NOT_COLD: Cause.EXPERIMENT,
    FindingCode.SAMPLER_LOST: Cause.MACHINE,
    FindingCode.XID: Cause.MACHINE,
    FindingCode.PROGRAM_XID: Cause.ENGINE,
    FindingCode.ECC_UNCORRECTED: Cause.MACHINE,
    FindingCode.THROTTLED: Cause.MACHINE,
    FindingCode.FOREIGN_LOAD: Cause.MACHINE,
    FindingCode.OUTPUT_LENGTH: Cause.ENGINE,
    FindingCode.INPUT_LENGTH: Cause.EXPERIMENT,
    FindingCode.PROMPT_LENGTH: Cause.EXPERIMENT,
    FindingCode.TOKENS_APPORTIONED: Cause.ENGINE,
    FindingCode.TOKENS_UNPLACED: Cause.ENGINE,
    FindingCode.TOKENS_CONTRADICTED: Cause.ENGINE,
    FindingCode.BEHIND_END: Cause.ENGINE,
    FindingCode.BLANK_BEGINNING: Cause.ENGINE,
    FindingCode.RESENT: Cause.ENGINE,
    FindingCode.HIDDEN_REASONING: Cause.ENGINE,
    FindingCode.THINKING_IN_TEXT: Cause.EXPERIMENT,
    FindingCode.NOTHING_VISIBLE: Cause.EXPERIMENT,
    FindingCode.ANSWERS_CUT: Cause.EXPERIMENT,
    FindingCode.LEFT_OPEN: Cause.ENGINE,
    FindingCode.TOKENS_ASSUMED: Cause.ENGINE,
    FindingCode.TOKENS_ESTIMATED: Cause.ENGINE,
    FindingCode.BUFFERED: Cause.ENGINE,
    FindingCode.CACHE_UNKNOWN: Cause.ENGINE,
    FindingCode.CACHE_UNUSED: Cause.ENGINE,
    FindingCode.UNCALIBRATED_PACE: Cause.CLIENT,
    FindingCode.SEVERAL_SERVERS: Cause.EXPERIMENT,
    FindingCode.ADDRESS_SLOW: Cause.ENGINE,
    FindingCode.ADDRESS_IMBALANCE: Cause.ENGINE,
    FindingCode.ADDRESS_CACHE: Cause.ENGINE,
    FindingCode.REPLICA_UNNAMED: Cause.EXPERIMENT,
    FindingCode.COUNTERS_DISAGREE: Cause.ENGINE,
    FindingCode.PLAN_ENDED_EARLY: Cause.EXPERIMENT,
    FindingCode.BACKLOG_GREW: Cause.EXPERIMENT,
    FindingCode.CAPACITY_UNCLEAR: Cause.EXPERIMENT,
    FindingCode.WINDOW_SHORT_FOR_QUEUE: Cause.EXPERIMENT,
    FindingCode.MEMORY_GROWS: Cause.ENGINE,
    FindingCode.LATENCY_DRIFTS: Cause.ENGINE,
    FindingCode.ENGINE_FROZE: Cause.ENGINE,
    FindingCode.DRAIN_IN_RATES: Cause.EXPERIMENT,
    FindingCode.TURN_MIX: Cause.EXPERIMENT,
    FindingCode.LENGTH_MIX: Cause.EXPERIMENT,
    FindingCode.SOME_FOREIGN_LOAD: Cause.MACHINE,
    FindingCode.POWER_CAPPED: Cause.MACHINE,
    FindingCode.EXPORTER_UNREAD: Cause.EXPERIMENT,
    FindingCode.ENERGY_SOURCES_DISAGREE: Cause.MACHINE,
    FindingCode.HARDWARE_SLOWDOWN: Cause.MACHINE,
    FindingCode.IMPORTED: Cause.CLIENT,
    FindingCode.ECC_UNCORRECTED_OF_CHIP: Cause.MACHINE,
    FindingCode.ECC_CORRECTED: Cause.MACHINE,
    FindingCode.MEMORY_REPAIR_PENDING: Cause.MACHINE,
}


class Finding(msgspec.Struct, frozen=True):
    """One finding of one trial."""

    code: FindingCode
    severity: Severity
    parameters: dict[str, Parameter] = {}


def invalid(code: FindingCode, **parameters: Parameter) -> Finding:
    """Make a finding that invalidates its trial."""
    return Finding(code, Severity.INVALID, parameters)


def warning(code: FindingCode, **parameters: Parameter) -> Finding:
    """Make a finding that does not invalidate its trial."""
    return Finding(code, Severity.WARNING, parameters)


def note(code: FindingCode, **parameters: Parameter) -> Finding:
    """Make a finding that only informs."""
    return Finding(code, Severity.NOTE, parameters)


REJECTIONS = frozenset({FindingCode.NOT_FOUND, FindingCode.NOT_AUTHORISED, FindingCode.REDIRECTED})
"""Failures that every later request of the engine would meet too: a key, name or address is wrong."""


def is_of_surroundings(findings: Iterable[Finding]) -> bool:
    """Whether the client or the machine caused all of these, so that another attempt may have none."""
    return all(finding.code.cause in {Cause.CLIENT, Cause.MACHINE} for finding in findings)


def is_against_engine(findings: Iterable[Finding]) -> bool:
    """Whether the engine caused a trial to be INVALID: evidence against it, not missing evidence."""
    return any(f.severity is Severity.INVALID and f.code.cause is Cause.ENGINE for f in findings)
