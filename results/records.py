"""Records that a run stores.

Units are in the names: ``_ns`` are nanoseconds of the host's monotonic clock, ``_s`` seconds, ``_bytes`` bytes, and a
count of tokens ends in ``_tokens``. ``None`` means *not known*, never zero. Every stored file has a
schema (:mod:`bakeoff.results.schema`).
"""

import math
from collections.abc import Iterable
from enum import StrEnum
from http import HTTPStatus
from typing import Any

import msgspec

from bakeoff.results.findings import Finding, Severity
from bakeoff.results.units import NS_PER_S

NOT_FOUND = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})
"""Statuses of a server that knows no such path, or no such model."""
FAILURE_PAUSE_NS = 100_000_000
"""Pause after a failed request, until the slot or the session goes on: failures may take no time at all, and a server
that fails must not get requests as fast as the client can send them."""


class Outcome(StrEnum):
    """Outcome of a planned request; the counts of all outcomes sum to the requests planned."""

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
    """The answer ended normally without a token."""
    TOO_LARGE = "too_large"
    """The response had far more bytes than the tokens asked for need, so the client closed the connection."""
    CANCELLED = "cancelled"
    """The client gave up: the run was interrupted, or a saturated trial was ended."""


class StreamEnd(StrEnum):
    """How the transport of one exchange ended."""

    COMPLETE = "complete"
    REFUSED = "refused"
    """No connection could be made."""
    RESET = "reset"
    """The connection broke, or closed before the answer was complete."""
    TOO_LARGE = "too_large"
    """The client closed the connection, because the response had more bytes than its limit."""
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    """The client gave up."""


class Phase(StrEnum):
    """The plan that a request comes from; whether it counts depends on its planned time (:class:`Window`)."""

    WARMUP = "warmup"
    """Sent before the load, to fill a cache."""
    RAMP = "ramp"
    """Sent until the load is steady."""
    MEASURED = "measured"
    """From the plan of the window; in a load without ramp and tail, all requests."""
    TAIL = "tail"
    """Sent while requests of the window are still in flight."""


class TokenSource(StrEnum):
    """Source of the token count of each chunk, most exact first."""

    IDS = "ids"
    """The engine sent the token ids of each chunk."""
    COUNTS = "counts"
    """The engine reported the number of tokens in each chunk."""
    CHUNKS = "chunks"
    """The engine's usage equals the number of chunks: one token each."""
    TOKENIZER = "tokenizer"
    """The model's tokenizer on the text of each chunk; the sum equals the engine's usage."""
    APPORTIONED = "apportioned"
    """Only the sum is known (usage); it is spread over the chunks in proportion to their gaps."""
    UNPLACED = "unplaced"
    """Like ``APPORTIONED``, where more than half of the tokens, or those of reasoning, are not in the text: they have
    no time of their own, so the answer has neither ITL nor TPOT."""
    ESTIMATED = "estimated"
    """Estimated from the text, without usage and without the model's tokenizer."""
    ASSUMED = "assumed"
    """Neither ids nor usage nor a tokenizer: one token for each chunk is a guess."""


class TokenClaim(StrEnum):
    """A count of a server that is not believed, since it contradicts the rest of the answer."""

    USAGE = "usage"
    IDS = "ids"
    COUNTS = "counts"
    """Of each chunk."""


class Verdict(StrEnum):
    """Whether a trial may be used as evidence."""

    VALID = "VALID"
    INVALID = "INVALID"


class RunStatus(StrEnum):
    """State of a run, or how it ended."""

    RUNNING = "running"
    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    """Stopped by the user (Ctrl-C): the finished trials are complete."""
    FAILED = "failed"
    """An engine or the harness failed; the reason is in the run log."""
    INCOMPLETE = "incomplete"
    """Never stored: readers report it for a run whose stored status is ``running`` and whose process has ended."""


class Exchange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts of a planned request that do not depend on decoding its answer."""

    index: int
    """Identifies the request within its trial: position in the window's plan, followed by the tail's requests; the
    ramp's and the warm-up's are negative."""
    phase: Phase
    session: str
    turn: int
    """Position in the session, from 0."""
    agent: str = ""
    """The agent of the session that sent it; empty for its main agent."""
    parents: tuple[int, ...] | None = None
    """Turns of the session whose answers it waited for under this load; None for the previous turn, as in a
    conversation."""
    planned_ns: int
    due_ns: int | None = None
    """When it could first be sent, if a cap on the requests in flight delayed it beyond its plan."""
    ended_ns: int
    requested_input_tokens: int | None = None
    requested_output_tokens: int | None = None
    cycle: int = 0
    """How often the same prompt was sent before in this trial, since ramp and tail repeat their plans."""
    part: float = 1.0
    """Fraction of the planned answer that was requested: below 1 for one that was in progress when the load began."""
    dial_start_ns: int | None = None
    """When opening a connection for it began (DNS, TCP, TLS); None if one was ready."""
    dial_end_ns: int | None = None
    """When that connection was open."""
    sent_ns: int | None = None
    """When the first byte of the request was passed to the socket."""
    sent_bytes: int | None = None
    """Size of its body."""
    address: str | None = None
    """Label of the address that it was sent to, such as ``host:port``, or of the replica that a router's answer names;
    None if its engine gets requests at one address and its answers name no replica."""
    is_resent: bool = False
    """Whether it was sent again on a new connection, since the server closed a used one without a byte of an answer."""
    status: int | None = None
    """HTTP status."""
    is_streamed: bool = True
    """Whether the answer is a stream of events; otherwise it is one document, and only its end has a time."""
    model: str | None = None
    """The model that it was sent to, if the workload mixes several."""
    traffic_class: str | None = None
    """The class of its session, if the traffic has several."""
    passages: int | None = None
    """Texts to embed or to rank, each of which needs a row in the answer."""
    check: str | None = None
    """How its answer is scored (:class:`bakeoff.workloads.types.Check`); None if it is not."""
    expected: str | None = None
    """What a right answer is, in the form of that check."""
    block: int | None = None
    """Number of the prompt's last full block among the trial's distinct prompt blocks; None if unknown."""
    shared_tokens: int = 0
    """Leading tokens of the prompt that are those of the agent's previous prompt, as planned; of its first one, those
    that earlier prompts of the trial began with."""
    goes_on: bool = False
    """Whether the prompt was written to begin with all of that one, before a chat template made it tokens."""


class StreamRecord(Exchange, frozen=True, kw_only=True, omit_defaults=True):
    """One finished request as the client saw it: the raw log, written before anything is parsed."""

    end: StreamEnd
    read_ns: list[int] = []
    """When each read arrived, stamped before any other work."""
    reads: list[bytes] = []
    """The body bytes of each read, HTTP framing removed."""
    detail: str | None = None
    """The transport's reason for any end other than ``complete``; of a redirect, where it points; of HTTP 404
    and 405, the path that was asked for."""


DECODER = 1
"""Version of the rules by which the tokens of an answer are counted; trials of earlier ones are counted again when they
are read (:mod:`bakeoff.results.log.recount`)."""


class RequestRecord(Exchange, frozen=True, kw_only=True, omit_defaults=True):
    """One decoded request: the input of every metric.

    ``chunk_ns[i]`` is when the i-th token-bearing chunk arrived, ``chunk_tokens[i]`` how many tokens it carried.
    """

    outcome: Outcome
    first_byte_ns: int | None = None
    chunk_ns: list[int] = []
    chunk_tokens: list[int] = []
    chunk_kinds: str = ""
    """Kind of each chunk, one letter: ``t`` text, ``r`` reasoning, ``c`` a tool call; empty if all are text."""
    textless_chunks: list[int] = []
    """Positions of the chunks with token ids but without text, which clients that look for text do not see."""
    empty_chunk_ns: list[int] = []
    """Arrival of each chunk with choices but without a token: a role, an empty piece, a separate finish reason."""
    usage_ns: int | None = None
    """Arrival of the last usage."""
    usage_in_choice: bool = False
    """Whether the chunk with that usage also had choices."""
    last_event_ns: int | None = None
    """Arrival of the last event, the end marker included."""
    end: StreamEnd | None = None
    token_source: TokenSource | None = None
    disbelieved: TokenClaim | None = None
    """What of the server's counts is not used, and contradicts those that are; None if nothing does."""
    blank_chunks: int = 0
    """Chunks at its beginning whose text nobody sees: white space, or characters without width."""
    behind_end: int = 0
    """Events with tokens behind the mark that ended it, which are no part of it."""
    prompt_tokens: int | None = None
    """As counted by the engine."""
    output_tokens: int | None = None
    """As counted by the engine."""
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    """Tokens of reasoning, streamed or hidden, as counted by the engine."""
    hidden_tokens: int | None = None
    """Those of them that were not streamed, and are not part of ``output_tokens``. What was generated and is billed are
    the tokens of the chunks and these."""
    image_tokens: int | None = None
    """Tokens of the prompt's images, as counted by the engine."""
    finish_reason: str | None = None
    is_right: bool | None = None
    """Whether the answer is right; None if it is not scored, or was cut before its end."""
    error: str | None = None
    answer_id: str | None = None
    """``id`` of the answer, which identifies the request in the server's own records; None if it has none."""
    text: str = ""

    @property
    def total_chunk_tokens(self) -> int:
        """N of the definitions: tokens over all chunks."""
        return sum(self.chunk_tokens)


SECOND_SOURCE = "exporter of "
"""Begins the source of samples of a GPU that NVML samples, too; the rest is the source of those."""


FAILED_EXPORTER = "exporter at "
"""Begins the source of failed readings of an exporter's page; the rest is its address."""


class TelemetryRecord(msgspec.Struct, frozen=True):
    """One reading of one source.

    ``values`` holds numbers with the unit in the name (``rss_bytes``, ``power_w``); a value that could not be read
    is ``None``, and ``reasons`` has the reason under the same name.
    """

    t_ns: int
    source: str
    """``engine``, ``client``, ``host``, ``cpu``, ``gpu0``…, ``memory`` (once) or ``sampler`` (its own missed ticks).
    The engine's metrics page is ``server``; with several addresses, ``server``, ``router``, ``prefill`` or ``decode``,
    and the label of the address behind a space. GPUs that an exporter shows are ``gpu0@host:9400``, or, beside NVML's
    own samples, ``exporter of gpu0``; ``exporter at host:9400`` if its page cannot be read."""
    values: dict[str, float | int | str | None]
    reasons: dict[str, str] = {}


_SAME_RATE = 0.001
"""Relative difference of two rates that are the same."""


class Load(msgspec.Struct, frozen=True, omit_defaults=True):
    """One load level: a closed loop (``concurrency``) or an open one (``arrival``)."""

    concurrency: int | None = None
    """Closed loop: sessions kept alive, each with a request in flight or in a pause."""
    rate_per_s: float | None = None
    """Open loop: mean arrivals per second."""
    arrival: str | None = None
    """Open loop: name of an arrival process, or ``workload``: that of the trace, or the preset's own process."""
    arrival_options: dict[str, Any] = {}
    """Open loop: the arrival process's own options, such as ``burstiness``."""
    time_warp: float | None = None
    """With ``arrival = "workload"``: how many times faster than recorded, think times included."""
    max_in_flight: int | None = None
    """Open loop: requests above this number wait inside the client; their latency still counts from the plan."""
    only: str | None = None
    """Class of the traffic that is sent alone. Default: all classes."""

    @property
    def label(self) -> str:
        """Short text for tables: ``c=8``, ``poisson 0.8/s``, ``poisson 50/s ≤16``, ``poisson 5/s, chat alone``."""
        return self._pace if self.only is None else f"{self._pace}, {self.only} alone"

    def is_part_of(self, whole: "Load", share: float) -> bool:
        """Whether it is what a class with this share of the sessions sends in an open loop with all classes."""
        if self.only is None or self.rate_per_s is None or whole.rate_per_s is None:
            return False
        is_alike = msgspec.structs.replace(self, rate_per_s=whole.rate_per_s, only=None) == whole
        return is_alike and math.isclose(self.rate_per_s, whole.rate_per_s * share, rel_tol=_SAME_RATE)

    @property
    def _pace(self) -> str:
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
    """Permitted content of the prefix cache when the measured load begins."""

    COLD = "cold"
    """Nothing of this trial: its words are new, and the engine's cache is emptied if the engine has a call for that."""
    PRIMED = "primed"
    """The system prompts that the workload's sessions share, each sent once before."""
    WARM = "warm"
    """Every prompt of the trial, each sent once before."""


class TrafficRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Traffic planned for one trial, counted by encoding every prompt once more."""

    sha256: str
    """Hash of the bytes of the plan, words included."""
    sessions: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    """As requested."""
    repeated_tokens: int
    """Leading prompt tokens that an unlimited prefix cache would have from the trial's own earlier prompts."""
    block_tokens: int
    """The block size of that count."""
    ramp_repeated_tokens: int = 0
    """Those of them in the plans of the ramp, which are written for more requests than it sends."""
    ramp_requests: int = 0
    """In these plans."""
    mean_turn: float = 0.0
    """Mean position of a request in its session, from 0, in the long run; 0 if sessions have one turn."""
    turns: float = 1.0
    """Mean number of requests in a session."""
    session_tool_s: float | None = None
    """Mean seconds that a session takes in the long run if every answer comes at once: pauses and tools on its longest
    path. None as for ``mean_output_tokens``, and in runs of earlier versions."""
    mean_output_tokens: float | None = None
    """Mean requested length of an answer in the long run; None if unknown, as are loads without a steady window."""
    output_tokens_sd: float = 0.0
    """Its standard deviation between requests."""
    off_length: int = 0
    """Prompts whose length differs from the workload's."""
    off_example: str | None = None
    """The first of them, as text."""
    cache: Cache = Cache.COLD
    cache_reset: bool = False
    """Whether the engine emptied its prefix cache on request."""


class Slo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Service-level objective; a request meets it if it meets every bound that is set."""

    ttft_s: float | None = None
    """To the first token of any kind."""
    tpot_s: float | None = None
    e2e_s: float | None = None
    first_visible_s: float | None = None
    """To the first token that a user sees: of text or a tool call, not of reasoning."""


class AddressDescription(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of several addresses of an engine."""

    label: str
    """``host:port``; of its requests and its telemetry."""
    role: str
    """``router``, ``replica``, ``prefill`` or ``decode``."""
    url: str
    version: str | None = None
    settings: dict[str, Any] = {}
    """As in :class:`EngineDescription`; empty for an address that gets no requests of the client."""
    details: dict[str, Any] = {}
    """Likewise."""


class EngineDescription(msgspec.Struct, frozen=True, omit_defaults=True):
    """Description of the measured engine: enough to start it again."""

    label: str
    adapter: str
    version: str | None = None
    argv: list[str] = []
    drawn: list[str] = []
    """Parts of ``argv`` that differ from one start to the next, such as ports."""
    env: dict[str, str] = {}
    """Variables set for it in addition to the harness's own environment; secrets are masked."""
    url: str | None = None
    """Address of a running engine; the first that gets requests, if it has several."""
    addresses: list[AddressDescription] = []
    """Empty if it has one."""
    balance: str | None = None
    """How the client divided requests among several of them; None if one gets all."""
    model: str | None = None
    model_sha256: str | None = None
    settings: dict[str, Any] = {}
    """Shared settings that the engine reports to run with, by their names in the experiment file."""
    asked: dict[str, Any] = {}
    """Shared settings that the experiment gives it; empty for a server that ran already."""
    details: dict[str, Any] = {}
    notes: list[str] = []
    """Notes for readers of its figures."""
    request: dict[str, Any] = {}
    """What its requests carried besides the workload's prompt and length, as the experiment states it."""


class ClientError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Error of the measuring client against a server with known timing, under one load."""

    requests: int
    chunks_per_s: float
    """Reached over all streams; an error measured at a lower rate than a trial's says too little."""
    send_lag_s: float
    """The 99th percentile of the delay from plan to send."""
    cpu_s: float
    """CPU time of the client."""
    by_metric: dict[str, float] = {}
    """The ± of each latency metric in seconds, by its name in the catalogue; answers of one chunk have no gap, and so
    none of the metrics of gaps."""


class ClientRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Cost and clock of one worker of the measuring client in a trial."""

    host: str
    planned_requests: int
    cpu_s: float
    """CPU time of the worker during the load."""
    rss_bytes: int
    """Its peak memory."""
    clock_offset_ns: int = 0
    """Its monotonic clock minus the harness's; already subtracted from every stored time."""
    clock_uncertainty_ns: int = 0
    """The offset is known to within this, in either direction; 0 on the harness's own host."""


class Startup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One start of an engine: its duration, and the memory that it took before any request."""

    start_s: float | None = None
    """From launch to ready; None for a server that was already running."""
    host_available_before_bytes: int
    """Available memory of the machine before the launch."""
    host_available_ready_bytes: int
    """The same when the engine was ready, before any request."""
    gpu_used_before_bytes: list[int] = []
    """Memory in use on each GPU before the launch."""
    gpu_used_ready_bytes: list[int] = []
    warm_up_requests: int = 0
    """Small requests sent until the engine stopped getting faster; never counted."""
    is_warm: bool | None = None
    """Whether it had stopped getting faster by then; None if it was not warmed up."""


class WindowKind(StrEnum):
    """Span of a trial's window."""

    STEADY = "steady"
    """Part of a load that was the same before, during and after it."""
    MAKESPAN = "makespan"
    """For a load that is meant to change: from its first planned request to the end of its last one."""


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
        """Whether a time lies in the window."""
        return self.start_ns <= t_ns < self.end_ns


class Pace(msgspec.Struct, frozen=True):
    """How fast an engine answers under a load."""

    ttft_s: float
    """Mean seconds from a request's planned time to its first byte."""
    token_s: float
    """Mean seconds from the first byte to the end of the answer, per requested token after the first."""


class RampRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The ramp of a steady load, and the length of the window that follows from it."""

    complete: bool
    """Whether enough requests had ended; False if the time for it ran out."""
    turnover_s: float | None
    """Closed loop: mean time from one request of a slot to its next, think time included."""
    window_s: float
    """Length that the window needed: the longest of ``duration_s``, ``min_requests`` and three turnovers."""
    begun: int = 0
    """Sessions that were in progress when the load began."""
    pace: Pace | None = None
    """Of the engine in the ramp; None if no request has succeeded."""
    has_failed: bool = False
    """Whether every request of the ramp failed, so that no window followed."""
    unwritten_s: float = 0.0
    """Seconds at the end of the window for which no calls of the sessions in progress had been written."""


class RulesRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rules of play of a trial."""

    name: str
    """With the version."""
    broken: list[str] = []
    """Why the trial is not by the rules; empty if it is."""

    def with_broken(self, reasons: Iterable[str]) -> "RulesRecord":
        """A copy with further reasons."""
        return RulesRecord(self.name, [*self.broken, *reasons])


class CacheCause(StrEnum):
    """Why prompt tokens were not found in the prefix cache, in the order in which they are removed."""

    OFF = "off"
    """The engine keeps no prefixes."""
    EVICTION = "eviction"
    """Blocks had been evicted for lack of room."""
    ROUTING = "routing"
    """They were in the cache of another address."""
    GENERATED = "generated"
    """They were generated by the engine, and the next call holds other tokens in their place."""
    SALT = "salt"
    """Another play of the session had them under another salt."""
    ROUNDING = "rounding"
    """They are in a block that is not full or not equal as a whole."""
    TEMPLATE = "template"
    """The chat template or the tokenizer wrote the agent's history in other tokens than in its previous call."""


class CacheGap(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why the hit share of a prefix cache is lower than it could be, for some requests.

    Attributes:
        name: what the requests have in common; empty for all of them.
        prompt_tokens: of their prompts.
        observed: share of them that the engine reports as hits; None if it does not.
        ideal: share without any of the causes.
        parts: by how much the share rises in the simulation when each cause is removed after those before it, in the
            order of :class:`CacheCause`; causes that cannot apply are left out.
    """

    name: str
    prompt_tokens: int
    observed: float | None
    ideal: float
    parts: dict[CacheCause, float]

    @property
    def unexplained(self) -> float | None:
        """What the simulation of the engine as it is finds beyond what the engine reports."""
        if self.observed is None:
            return None
        return self.ideal - sum(self.parts.values()) - self.observed


class AssumedRouting(StrEnum):
    """How a router is taken to divide requests, where its answers do not name the replica."""

    BY_SESSION = "by-session"
    """All calls of a session go to one replica."""
    IN_TURN = "in-turn"
    """Each call goes to the next replica."""


class CacheGaps(msgspec.Struct, frozen=True, omit_defaults=True):
    """The cache gap of a trial.

    Attributes:
        block_tokens: block size of the engine, or the assumed one.
        capacity_tokens: of its cache; None if unknown, which is then taken for unlimited.
        is_assumed: whether the engine did not report its block size.
        whole: of all requests planned in the window.
        groups: by agent, by turn and by address.
        assumed_routing: how a router divides requests; None if that is known, or none does.
    """

    block_tokens: int
    capacity_tokens: int | None
    is_assumed: bool
    whole: CacheGap
    groups: list[CacheGap] = []
    assumed_routing: AssumedRouting | None = None


class StoredFile(msgspec.Struct, frozen=True):
    """What a file was when it was stored."""

    records: int
    size_bytes: int
    sha256: str


class FaultAction(StrEnum):
    """What a fault does to a replica."""

    KILL = "kill"
    """Its processes are killed and not started again under this load."""
    RESTART = "restart"
    """They are killed, and it is started again."""
    START = "start"
    """It did not run before, and is started."""
    STOP = "stop"
    """They stand still for a while."""
    SLOW = "slow"
    """They stand still for a share of each moment."""

    @property
    def kills(self) -> bool:
        """Whether the processes end."""
        return self in {FaultAction.KILL, FaultAction.RESTART}

    @property
    def changes_servers(self) -> bool:
        """Whether other processes run afterwards than before."""
        return self.kills or self is FaultAction.START


class FaultRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A fault that the harness caused under load."""

    action: FaultAction
    replica: str | None
    """Label of the address; None for the engine itself."""
    begun_ns: int
    ended_ns: int | None = None
    """When it was ended: at a restart, when the replica was started again; at a start, when it was begun."""
    ready_ns: int | None = None
    """When a replica that was started was ready."""
    error: str | None = None
    """Why it was not carried out as the experiment says."""


class TrialRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finished trial; stored in the run log at its end."""

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
    """End of the load, which began at ``issue_start_ns``; after it the client only waited for answers."""
    window: Window
    planned_requests: int
    """Requests under load: ramp, window and tail together."""
    workload_sha256: str
    """Hash of lengths, order and times: the same for every engine and repeat, whatever the words."""
    verdict: Verdict
    findings: list[Finding] = []
    """Most severe first; one that invalidates makes the trial INVALID."""
    engine_description: EngineDescription | None = None
    engine_log_tail: list[str] = []
    start_s: float | None = None
    """Seconds of the engine from launch to ready."""
    startup: Startup | None = None
    """The start that served this trial; None in runs of other tools."""
    profiled: bool = False
    """Whether the engine recorded its steps meanwhile, which costs time, so that no metric counts this trial."""
    replaces: str | None = None
    """The trial that it repeats, since the client or the machine spoilt that one."""
    attempt: int = 0
    """Number of attempts that were spoilt before it."""
    step_log_missing: str | None = None
    """Why a profiled trial has no record of the engine's steps; None if it has one."""
    kernels_missing: str | None = None
    """Why requested kernels were not recorded; None if they were."""
    fingerprint: str = ""
    """Hash of everything that may change the figures: a finished trial with an equal one need not be run again."""
    reused_from: str | None = None
    """Run in which this trial was measured; None unless the trial was reused from an earlier run."""
    clients: list[ClientRecord] = []
    """The workers of the measuring client."""
    client_error: ClientError | None = None
    """The client's error under a load of this shape; measured once for each engine and level."""
    uncalibrated: str | None = None
    """Why ``client_error`` is None."""
    traffic: TrafficRecord | None = None
    """The planned traffic; None in runs of other tools."""
    ramp: RampRecord | None = None
    """None for a load that is meant to change."""
    cache_gaps: CacheGaps | None = None
    """Why the hit share of the prefix cache is lower than it could be; None if prompts share nothing or are unknown."""
    faults: list[FaultRecord] = []
    """Faults that the harness caused in the window, in order of time."""
    rules: RulesRecord | None = None
    """None for a load that rules of play do not cover: one that is meant to change, or one of another tool."""
    decoder: int = 0
    """:data:`DECODER` of the version that decoded its requests; 0 before 2026-11-30 and in runs of other tools."""
    files: dict[str, StoredFile] = {}
    """The files in its folder by relative path; readers refuse those that have changed. Empty in runs by earlier
    versions."""
    abandoned_requests: int = 0
    """Requests that the client gave up, at their timeout or at the end of a saturated trial; the engine may still work
    on them."""

    @property
    def invalidating(self) -> list[Finding]:
        """The findings that make it INVALID; empty if it is VALID."""
        return [finding for finding in self.findings if finding.severity is Severity.INVALID]

    @property
    def warnings(self) -> list[Finding]:
        """Findings that do not invalidate the trial but change what the numbers mean."""
        return [finding for finding in self.findings if finding.severity is Severity.WARNING]

    @property
    def notes(self) -> list[Finding]:
        """Findings that change neither the verdict nor what the numbers mean."""
        return [finding for finding in self.findings if finding.severity is Severity.NOTE]


class GridPoint(msgspec.Struct, frozen=True):
    """One combination of settings of an engine whose experiment has a grid."""

    base: str
    """Name of the engine without the settings."""
    values: dict[str, Any]
    """Setting, such as ``spec.max_num_seqs``, and its value."""


class TrialPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of the ordered plan."""

    id: str
    engine: str
    workload: str
    load: Load
    repeat: int
    profiled: bool = False
    """As in :class:`TrialRecord`."""
    replaces: str | None = None
    """As in :class:`TrialRecord`."""
    attempt: int = 0
    """As in :class:`TrialRecord`."""
