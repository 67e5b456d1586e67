"""What a run stores, as typed records.

Units are in the names: ``_ns`` are nanoseconds of the host's monotonic clock, ``_s`` seconds, ``_bytes`` bytes, and a
count of tokens ends in ``_tokens``. ``None`` means *not known*, never zero. Every stored file carries
:data:`SCHEMA_VERSION`; a reader refuses any other.
"""

from enum import StrEnum
from typing import Any

import msgspec

from results.findings import Finding, Severity
from results.units import NS_PER_S

SCHEMA_VERSION = 3


def schema_problem(version: int) -> str | None:
    """Why a file of that schema cannot be read, and what to do; None for today's."""
    if version == SCHEMA_VERSION:
        return None
    fix = "update bakeoff" if version > SCHEMA_VERSION else "measure again"
    return f"has schema {version}, and this version of bakeoff reads schema {SCHEMA_VERSION} only; {fix}"


class Outcome(StrEnum):
    """The one class in which a planned request ends; the classes sum to the requests planned."""

    OK = "ok"
    REFUSED = "refused"
    """No connection could be made."""
    HTTP_ERROR = "http_error"
    """The server answered with a status other than 200."""
    STREAM_ERROR = "stream_error"
    """An error event arrived inside the stream, or the connection broke."""
    TRUNCATED = "truncated"
    """The stream ended without a finish reason."""
    TIMEOUT = "timeout"
    EMPTY = "empty"
    """The answer ended well and brought no token."""
    CANCELLED = "cancelled"
    """The client gave it up: the run was interrupted, or a saturated trial was ended."""


class StreamEnd(StrEnum):
    """How the transport of one exchange ended."""

    COMPLETE = "complete"
    REFUSED = "refused"
    """No connection could be made."""
    RESET = "reset"
    """The connection broke, or closed before the answer was whole."""
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    """The client gave it up."""


class Phase(StrEnum):
    """From which plan a request comes; whether it is counted is decided by its planned time (:class:`Window`)."""

    WARMUP = "warmup"
    """Sent before the load, to fill a cache."""
    RAMP = "ramp"
    """Sent until the load is steady."""
    MEASURED = "measured"
    """The plan of the window; of a load without ramp and tail, all of it."""
    TAIL = "tail"
    """Sent while requests of the window are still under way."""


class TokenSource(StrEnum):
    """Where the token count of each chunk comes from, most exact first."""

    IDS = "ids"
    """The engine sent the token ids of each chunk."""
    COUNTS = "counts"
    """The engine said how many tokens each chunk brought."""
    CHUNKS = "chunks"
    """The engine's usage equals the number of chunks: one token each."""
    TOKENIZER = "tokenizer"
    """The model's tokenizer on the text of each chunk; the sum equals the engine's usage."""
    APPORTIONED = "apportioned"
    """Only the sum is known (usage); it is spread over the chunks in proportion to their gaps."""
    ASSUMED = "assumed"
    """Neither ids nor usage nor a tokenizer: one token for each chunk is a guess."""


class Verdict(StrEnum):
    """Whether a trial may be used as evidence."""

    VALID = "VALID"
    INVALID = "INVALID"


class RunStatus(StrEnum):
    """How far a run got."""

    RUNNING = "running"
    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    """Stopped by the user (Ctrl-C): the finished trials are whole."""
    FAILED = "failed"
    """An engine or the harness failed; the reason is in the run log."""
    INCOMPLETE = "incomplete"
    """Never stored: what a reader calls a run that says ``running`` and whose process is gone."""


class Exchange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a planned request whether or not its answer has been decoded."""

    index: int
    """Names the request within its trial: position in the window's plan, which the tail's requests follow; the
    ramp's and the warm-up's are negative."""
    phase: Phase
    session: str
    turn: int
    planned_ns: int
    due_ns: int | None = None
    """When it could first be sent, where a cap on the requests in flight made it wait after its plan."""
    ended_ns: int
    requested_input_tokens: int | None = None
    requested_output_tokens: int | None = None
    cycle: int = 0
    """How often the same prompt had been sent before in this trial: ramp and tail begin their plans again."""
    dial_start_ns: int | None = None
    """When a connection began to be opened for it (DNS, TCP, TLS); None where one was ready."""
    dial_end_ns: int | None = None
    """When that connection stood."""
    sent_ns: int | None = None
    """When the first byte of the request was handed to the socket."""
    sent_bytes: int | None = None
    """Size of its body."""
    status: int | None = None
    """HTTP status."""


class StreamRecord(Exchange, frozen=True, kw_only=True, omit_defaults=True):
    """One finished request as the client saw it: the raw log, written before anything is parsed."""

    end: StreamEnd
    read_ns: list[int] = []
    """When each read arrived, stamped before any other work."""
    reads: list[bytes] = []
    """The body bytes of each read, HTTP framing removed."""
    detail: str | None = None
    """What the transport said of any other end than ``complete``."""


class RequestRecord(Exchange, frozen=True, kw_only=True, omit_defaults=True):
    """One request decoded: the input of every metric.

    ``chunk_ns[i]`` is when the i-th token-bearing chunk arrived, ``chunk_tokens[i]`` how many tokens it carried.
    """

    outcome: Outcome
    first_byte_ns: int | None = None
    chunk_ns: list[int] = []
    chunk_tokens: list[int] = []
    textless_chunks: list[int] = []
    """Which of these chunks brought token ids but no text, by position: clients that look for text do not see them."""
    empty_chunk_ns: list[int] = []
    """When each chunk with choices but without a token arrived: a role, an empty piece, a finish reason of its own."""
    usage_ns: int | None = None
    """When the last usage arrived."""
    usage_in_choice: bool = False
    """Whether that usage came in a chunk that had choices too."""
    last_event_ns: int | None = None
    """When the last event arrived, the mark of the end included."""
    end: StreamEnd | None = None
    token_source: TokenSource | None = None
    prompt_tokens: int | None = None
    """As the engine counted them."""
    output_tokens: int | None = None
    """As the engine counted them."""
    cached_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    answer_id: str | None = None
    """``id`` of the answer, by which the server's own records name the request; None if it has none."""
    text: str = ""

    @property
    def total_chunk_tokens(self) -> int:
        """N of the definitions: tokens over all chunks."""
        return sum(self.chunk_tokens)


class TelemetryRecord(msgspec.Struct, frozen=True):
    """One reading of one source.

    ``values`` holds numbers with the unit in the name (``rss_bytes``, ``power_w``); a value that could not be read
    is ``None`` and its reason stands in ``reasons`` under the same name.
    """

    t_ns: int
    source: str
    """``engine``, ``client``, ``host``, ``cpu``, ``gpu0``…, ``memory`` (once) or ``sampler`` (its own missed ticks)."""
    values: dict[str, float | int | str | None]
    reasons: dict[str, str] = {}


class Load(msgspec.Struct, frozen=True, omit_defaults=True):
    """One load level: a closed loop (``concurrency``) or an open one (``arrival``)."""

    concurrency: int | None = None
    """Closed loop: requests kept in flight."""
    rate_per_s: float | None = None
    """Open loop: mean arrivals per second."""
    arrival: str | None = None
    """Open loop: an arrival process by name, or ``workload``: as the trace has it, or as the preset's own process."""
    arrival_options: dict[str, Any] = {}
    """Open loop: the arrival process's own options, such as ``burstiness``."""
    time_warp: float | None = None
    """With ``arrival = "workload"``: how many times faster than recorded, think times included."""
    max_in_flight: int | None = None
    """Open loop: requests above this number wait inside the client; they are timed from the plan all the same."""

    @property
    def label(self) -> str:
        """Short text for tables: ``c=8``, ``poisson 0.8/s``, ``poisson 50/s ≤16``."""
        if self.concurrency is not None:
            return f"c={self.concurrency}"
        parts = [self.arrival or "poisson"]
        if self.rate_per_s is not None:
            parts.append(f"{self.rate_per_s:g}/s")
        if self.time_warp is not None:
            parts.append(f"×{self.time_warp:g}")
        parts += [f"{name}={_brief(value)}" for name, value in self.arrival_options.items()]
        if self.max_in_flight is not None:
            parts.append(f"≤{self.max_in_flight}")
        return " ".join(parts)


def _brief(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).replace(" ", "")


class Cache(StrEnum):
    """What a prefix cache may hold when the measured load begins."""

    COLD = "cold"
    """Nothing of this trial: its words are new, and the engine's cache is emptied where it has a call for that."""
    PRIMED = "primed"
    """The system prompts that the workload's sessions share, sent once each before."""
    WARM = "warm"
    """Every prompt of the trial, sent once before."""


class TrafficRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one trial was to send, counted by encoding every prompt once more."""

    sha256: str
    """Over the bytes of the plan, words included."""
    sessions: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    """As asked for."""
    repeated_tokens: int
    """Leading prompt tokens that an endless prefix cache would have had from the trial's own earlier prompts."""
    block_tokens: int
    """The block size of that count."""
    mean_turn: float = 0.0
    """Mean position of a request in its session, from 0; 0 where sessions have one turn."""
    off_length: int = 0
    """Prompts that are not as long as the workload says."""
    off_example: str | None = None
    """The first of them, in words."""
    cache: Cache = Cache.COLD
    cache_reset: bool = False
    """Whether the engine was told to empty its prefix cache, and did."""


class Slo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Service-level objective that a request meets when every bound that is set holds."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


class EngineDescription(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was measured: enough to start it again."""

    label: str
    adapter: str
    version: str | None = None
    argv: list[str] = []
    env: dict[str, str] = {}
    """Variables that it was given above the harness's own environment; secrets are masked."""
    url: str | None = None
    model: str | None = None
    model_sha256: str | None = None
    details: dict[str, Any] = {}
    notes: list[str] = []
    """What a reader of its figures must know."""


class ClientError(msgspec.Struct, frozen=True, omit_defaults=True):
    """How wrong the measuring client was against a server of known truth, under one load."""

    requests: int
    chunks_per_s: float
    """Reached over all streams; an error that was found at fewer than a trial had says too little."""
    send_lag_s: float
    """99 % of the requests were sent no later than this after their plan."""
    cpu_s: float
    """What it cost the client."""
    by_metric: dict[str, float] = {}
    """The ± of each latency metric in seconds, by its name in the catalogue; answers of one chunk have no gap, so none
    of those that are made of gaps."""


class ClientRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one worker of the measuring client did in a trial."""

    host: str
    planned_requests: int
    cpu_s: float
    """CPU time of the worker while the load was on."""
    rss_bytes: int
    """Its peak memory."""
    clock_offset_ns: int = 0
    """Its monotonic clock minus the harness's; already taken out of every stored time."""
    clock_uncertainty_ns: int = 0
    """The offset is known to within this, up or down; 0 on the harness's own host."""


class Startup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one start of an engine went, and what it took of the machine before any request."""

    start_s: float | None = None
    """From launch to ready; None for a server that ran already."""
    host_available_before_bytes: int
    """Memory of the machine before the launch."""
    host_available_ready_bytes: int
    """The same once the engine was ready, and had been sent no request."""
    gpu_used_before_bytes: list[int] = []
    """Memory in use on each GPU before the launch."""
    gpu_used_ready_bytes: list[int] = []
    warm_up_requests: int = 0
    """Small requests sent until the engine stopped getting faster; never counted."""
    is_warm: bool | None = None
    """Whether it then had stopped getting faster; None where it was not warmed up."""


class WindowKind(StrEnum):
    """What a trial's window spans."""

    STEADY = "steady"
    """The load ran unchanged before, during and after it."""
    MAKESPAN = "makespan"
    """A load that is meant to change: from its first planned request to the end of its last one."""


class Window(msgspec.Struct, frozen=True, omit_defaults=True):
    """The measured part of a trial, ``start_ns <= t < end_ns``.

    A request belongs to it by its planned time, a token by its arrival, telemetry by the time of its reading.
    """

    start_ns: int
    end_ns: int
    kind: WindowKind = WindowKind.STEADY

    @property
    def length_s(self) -> float:
        """Length in seconds; 0 when empty."""
        return max(0, self.end_ns - self.start_ns) / NS_PER_S

    def holds(self, t_ns: int) -> bool:
        """Whether an instant lies inside."""
        return self.start_ns <= t_ns < self.end_ns


class RampRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a steady load was reached, and the length of the window that followed from it."""

    complete: bool
    """Whether 95 % of what was sent first had ended; False where the time for it ran out."""
    turnover_s: float | None
    """Closed loop: mean time in which a slot sends one request and gets its answer, think time included."""
    window_s: float
    """Length that the window needed: of ``duration_s``, ``min_requests`` and three turnovers the longest."""


class TrialRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finished trial; stored in the run log when it has ended."""

    id: str
    engine: str
    workload: str
    load: Load
    repeat: int
    order: int
    """Position in the run's interleaved order."""
    started_ns: int
    ended_ns: int
    issue_start_ns: int
    issue_end_ns: int
    """Between the two the client kept the load on; after it only waited for answers."""
    window: Window
    planned_requests: int
    """Under load: ramp, window and tail together."""
    workload_sha256: str
    """Over lengths, order and times: the same for every engine and repeat, whatever their words."""
    verdict: Verdict
    findings: list[Finding] = []
    """Most damning first; a trial is INVALID when one of them says so."""
    engine_description: EngineDescription | None = None
    engine_log_tail: list[str] = []
    start_s: float | None = None
    """How long the engine took from launch to ready."""
    startup: Startup | None = None
    """Of the start that served this trial; None in runs of other tools."""
    profiled: bool = False
    """Whether the engine recorded its steps meanwhile, which costs time: no metric counts this trial."""
    step_log_missing: str | None = None
    """Why a profiled trial has no record of the engine's steps; None if it has one."""
    kernels_missing: str | None = None
    """Why kernels that were asked for were not recorded; None if they were."""
    fingerprint: str = ""
    """Over all that may change the figures: a finished trial with the same one need not be run again."""
    reused_from: str | None = None
    """Run in which this trial was measured; None unless the trial was reused from an earlier run."""
    clients: list[ClientRecord] = []
    """The workers of the measuring client."""
    client_error: ClientError | None = None
    """The client's error under the shape that this load had; measured once for each engine and level."""
    uncalibrated: str | None = None
    """Why ``client_error`` is None."""
    traffic: TrafficRecord | None = None
    """What was to be sent; None in runs of other tools."""
    ramp: RampRecord | None = None
    """None of a load that is meant to change."""
    abandoned_requests: int = 0
    """Requests that the client gave up, by their timeout or at the end of a saturated trial; the engine may go on with
    them."""

    @property
    def invalidating(self) -> list[Finding]:
        """Why it is INVALID; empty where it is not."""
        return [finding for finding in self.findings if finding.severity is Severity.INVALID]

    @property
    def warnings(self) -> list[Finding]:
        """What its reader must know beside the verdict."""
        return [finding for finding in self.findings if finding.severity is Severity.WARNING]

    @property
    def notes(self) -> list[Finding]:
        """Facts that change neither the verdict nor what the numbers mean."""
        return [finding for finding in self.findings if finding.severity is Severity.NOTE]


class TrialPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of the ordered plan."""

    id: str
    engine: str
    workload: str
    load: Load
    repeat: int
    profiled: bool = False
    """As in :class:`TrialRecord`."""
