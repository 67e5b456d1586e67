"""What a run stores, as typed records.

Units are in the names: ``_ns`` are nanoseconds of the host's monotonic clock, ``_s`` seconds, ``_bytes`` bytes, and a
count of tokens ends in ``_tokens``. ``None`` means *not known*, never zero. Every stored file carries
:data:`SCHEMA_VERSION`; a reader refuses a newer one.
"""

from enum import StrEnum
from typing import Any

import msgspec

SCHEMA_VERSION = 1


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
    CANCELLED = "cancelled"
    """The client gave it up: the run was interrupted."""


class Phase(StrEnum):
    """Warm-up requests are stored, shown and never counted."""

    WARMUP = "warmup"
    MEASURED = "measured"


class TokenSource(StrEnum):
    """Where the token count of each chunk comes from, most exact first."""

    IDS = "ids"
    """The engine sent the token ids of each chunk."""
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
    """An engine or the harness failed; the reason is in the manifest."""
    INCOMPLETE = "incomplete"
    """Never stored: what a reader calls a run that says ``running`` and whose process is gone."""


class Exchange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a planned request whether or not its answer has been decoded."""

    index: int
    """Position in the trial's plan, warm-up and measured requests counted together."""
    phase: Phase
    session: str
    turn: int
    planned_ns: int
    ended_ns: int
    wanted_input_tokens: int | None = None
    wanted_output_tokens: int | None = None
    sent_ns: int | None = None
    """When the first byte of the request was handed to the socket."""
    status: int | None = None
    """HTTP status."""


class StreamRecord(Exchange, frozen=True, kw_only=True, omit_defaults=True):
    """One finished request as the client saw it: the raw log, written before anything is parsed."""

    end: str
    """How the transport ended: ``complete``, ``refused``, ``reset``, ``timeout`` or ``cancelled``."""
    read_ns: list[int] = []
    """When each read arrived, stamped before any other work."""
    reads: list[str] = []
    """The body bytes of each read, one character per byte (Latin-1), so that any bytes survive JSON."""
    detail: str | None = None
    """The transport's own words when ``end`` is not ``complete``."""


class RequestRecord(Exchange, frozen=True, kw_only=True, omit_defaults=True):
    """One request decoded: the input of every metric.

    ``chunk_ns[i]`` is when the i-th token-bearing chunk arrived, ``chunk_tokens[i]`` how many tokens it carried.
    """

    outcome: Outcome
    first_byte_ns: int | None = None
    chunk_ns: list[int] = []
    chunk_tokens: list[int] = []
    token_source: TokenSource | None = None
    prompt_tokens: int | None = None
    """As the engine counted them."""
    output_tokens: int | None = None
    """As the engine counted them."""
    cached_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None
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
    """``engine``, ``client``, ``host``, ``gpu0``… or ``sampler`` (its own missed ticks)."""
    values: dict[str, float | int | str | None]
    reasons: dict[str, str] = {}


class Load(msgspec.Struct, frozen=True, omit_defaults=True):
    """One load level: exactly one of the two is set."""

    concurrency: int | None = None
    """Closed loop: requests kept in flight."""
    rate_per_s: float | None = None
    """Open loop: mean arrivals per second."""
    arrival: str | None = None
    """Open loop: the arrival process, ``poisson`` or ``constant``."""

    @property
    def label(self) -> str:
        """Short text for tables: ``c=8``, ``poisson 0.8/s``."""
        if self.concurrency is not None:
            return f"c={self.concurrency}"
        return f"{self.arrival} {self.rate_per_s:g}/s"


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
    url: str | None = None
    model: str | None = None
    model_sha256: str | None = None
    details: dict[str, Any] = {}


class TrialRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """``trial.json``: written once, atomically, when the trial has ended."""

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
    """Between the two the driver kept the load on; after it only waited for answers."""
    planned_requests: int
    workload_sha256: str
    verdict: Verdict
    reasons: list[str] = []
    warnings: list[str] = []
    engine_description: EngineDescription | None = None
    engine_log_tail: list[str] = []
    start_s: float | None = None
    """How long the engine took from launch to ready."""


class TrialPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of the manifest's ordered plan."""

    id: str
    engine: str
    workload: str
    load: Load
    repeat: int


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """``manifest.json``: what was to be measured, where and by whom; rewritten atomically when the run ends."""

    schema_version: int
    run_id: str
    name: str
    status: RunStatus
    created_utc: str
    """ISO 8601; a label only, durations never come from it."""
    pid: int
    host: str
    bakeoff_version: str
    git_commit: str | None
    experiment: dict[str, Any]
    environment: dict[str, Any]
    trials: list[TrialPlan]
    slo: Slo = Slo()
    notes: list[str] = []
    """Declarations that the report prints, such as the scale of a workload."""
    failure: str | None = None
    ended_utc: str | None = None
