"""What a view is: the numbers that another benchmark client would have printed for the same requests."""

import itertools
from collections.abc import Callable, Iterable
from enum import StrEnum

import msgspec

from results.metrics import Value, under_load
from results.records import Load, Outcome, RequestRecord, StreamEnd
from results.run import Trial
from results.units import NS_PER_S


class MetricFamily(StrEnum):
    """What a figure is about, whatever its tool calls it: the rows by which tools are laid side by side."""

    TTFT = "TTFT"
    ITL = "ITL"
    TPOT = "TPOT"
    E2E = "E2E"
    OUTPUT_RATE = "output tokens/s"
    REQUEST_RATE = "requests/s"
    DURATION = "duration"
    COUNT = "count"
    OTHER = "other"


class Figure(msgspec.Struct, frozen=True):
    """One number of a tool.

    Attributes:
        family: what it is about.
        stat: ``mean``, ``p50``, ``p99``, ``std``… of a distribution, else empty.
        unit: of ``value``, as the tool prints it: ``ms``, ``s``, ``ns``, ``tok/s``, ``/s`` or empty.
        value: the number, or why the tool would have none.
    """

    family: MetricFamily
    stat: str
    unit: str
    value: Value

    @property
    def seconds(self) -> float | None:
        """The value of a latency or a duration in seconds, of anything else as it is."""
        return None if self.value.value is None else self.value.value * IN_SECONDS.get(self.unit, 1.0)


class Definition(msgspec.Struct, frozen=True):
    """One line of docs/views.md: what a tool means by a metric, in the symbols of docs/definitions.md.

    Attributes:
        family: what it is about.
        name: what the tool calls it.
        formula: how the tool computes it.
        why: why the number differs from ours.
    """

    family: MetricFamily
    name: str
    formula: str
    why: str


class Conventions(msgspec.Struct, frozen=True):
    """What a tool does to all of its metrics.

    Attributes:
        percentiles: how it interpolates.
        std: the divisor of its standard deviation.
        duration: from when to when.
        failures: which requests it leaves out, and where its idea of a failure differs.
    """

    percentiles: str
    std: str
    duration: str
    failures: str


class Log(msgspec.Struct, frozen=True):
    """What a view looks at.

    Attributes:
        requests: the measured requests, decoded.
        start_ns: when the load was put on.
        load: its level.
    """

    requests: list[RequestRecord]
    start_ns: int
    load: Load

    @classmethod
    def of(cls, trial: Trial) -> "Log":
        """The log of a trial; other tools send warm-up before they begin to count, so ours is left out too."""
        requests = sorted(under_load(trial.requests), key=lambda request: request.index)
        return cls(requests, trial.record.issue_start_ns, trial.record.load)


class View(msgspec.Struct, frozen=True):
    """A tool's numbers for one log.

    Attributes:
        tool: key in :data:`results.views.VIEWS`.
        figures: by the name that the tool prints, or that its result file has, in the tool's order.
        cannot: what the log does not hold and the tool would have looked at.
    """

    tool: str
    figures: dict[str, Figure]
    cannot: tuple[str, ...] = ()


class Tool(msgspec.Struct, frozen=True):
    """One tool.

    Attributes:
        name: key in :data:`results.views.VIEWS` and on the command line.
        title: as its makers write it.
        version: whose source was read.
        conventions: what holds for all its metrics.
        definitions: its metrics.
        view: makes its figures, and says what it could not know.
    """

    name: str
    title: str
    version: str
    conventions: Conventions
    definitions: tuple[Definition, ...]
    view: Callable[[Log], View]


IN_SECONDS = {"s": 1.0, "ms": 1e-3, "ns": 1e-9}
"""Factor from a unit of time to seconds."""

UNSTAMPED = "an imported log holds no times of chunks without tokens and of the last event: taken as if there were none"


def seconds_between(start_ns: int, end_ns: int) -> float:
    """Length of an interval of monotonic nanoseconds."""
    return (end_ns - start_ns) / NS_PER_S


def gaps_s(times_ns: Iterable[int]) -> list[float]:
    """Seconds between every two neighbours."""
    return [seconds_between(a, b) for a, b in itertools.pairwise(times_ns)]


def until_closed_s(log: Log) -> float:
    """From the start of the load to the end of the last request, whatever became of it."""
    return seconds_between(log.start_ns, max((request.ended_ns for request in log.requests), default=log.start_ns))


def engine_tokens(request: RequestRecord) -> int:
    """Output tokens as the engine counted them, else as the log does."""
    return request.output_tokens or request.total_chunk_tokens


def sent_ns(request: RequestRecord) -> int:
    """Where every tool but MLPerf starts the clock; the plan, for a request whose connection was never made."""
    return request.planned_ns if request.sent_ns is None else request.sent_ns


def last_event_ns(request: RequestRecord) -> int:
    """When the last event arrived; the last token, where that is all that is known."""
    if request.last_event_ns is not None:
        return request.last_event_ns
    return request.chunk_ns[-1] if request.chunk_ns else request.ended_ns


def text_chunk_ns(request: RequestRecord) -> list[int]:
    """When each chunk arrived that had text, of whatever kind: what clients that do not read token ids see."""
    if not request.textless_chunks:
        return request.chunk_ns
    silent = set(request.textless_chunks)
    return [t_ns for i, t_ns in enumerate(request.chunk_ns) if i not in silent]


def whole(request: RequestRecord) -> bool:
    """Whether the answer was a 200 that the transport read to its end, whatever its events said."""
    if request.end is None:  # an import: only the outcome is known
        return request.outcome in {Outcome.OK, Outcome.TRUNCATED, Outcome.EMPTY}
    return request.end is StreamEnd.COMPLETE and request.status == 200


def unstamped(requests: Iterable[RequestRecord]) -> tuple[str, ...]:
    """:data:`UNSTAMPED`, when it applies to one of the requests."""
    return (UNSTAMPED,) if any(request.chunk_ns and request.last_event_ns is None for request in requests) else ()
