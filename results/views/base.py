"""Types of views: the figures that another benchmark client would print for the same requests."""

import itertools
from collections.abc import Callable, Iterable
from enum import StrEnum

import msgspec
import numpy as np

from bakeoff.results.columns import UNKNOWN
from bakeoff.results.metrics import Value
from bakeoff.results.records import Load, Outcome, RequestRecord, StreamEnd
from bakeoff.results.requests import Requests
from bakeoff.results.run.cells import Trial
from bakeoff.results.units import NS_PER_S


class MetricFamily(StrEnum):
    """What a figure measures, independent of its name in the tool; aligns tools side by side."""

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
        family: what it measures.
        stat: ``mean``, ``p50``, ``p99``, ``std``… of a distribution; otherwise empty.
        unit: of ``value``, as the tool prints it: ``ms``, ``s``, ``ns``, ``tok/s``, ``/s`` or empty.
        value: the number, or why the tool has none.
    """

    family: MetricFamily
    stat: str
    unit: str
    value: Value

    @property
    def seconds(self) -> float | None:
        """Latencies and durations in seconds; other values unchanged."""
        return None if self.value.value is None else self.value.value * IN_SECONDS.get(self.unit, 1.0)


class Definition(msgspec.Struct, frozen=True):
    """A tool's definition of a metric, in the symbols of docs/definitions.md; one line of docs/views.md.

    Attributes:
        family: what it measures.
        name: in the tool.
        formula: how the tool computes it.
        why: why the number differs from ours.
    """

    family: MetricFamily
    name: str
    formula: str
    why: str


class Conventions(msgspec.Struct, frozen=True):
    """Conventions of a tool for all of its metrics.

    Attributes:
        percentiles: interpolation.
        std: divisor of the standard deviation.
        duration: start and end of the measurement.
        failures: requests that it leaves out, and how its notion of failure differs.
    """

    percentiles: str
    std: str
    duration: str
    failures: str


class Log(msgspec.Struct, frozen=True):
    """Input of a view.

    Attributes:
        requests: measured requests, decoded.
        start_ns: start of the load.
        load: of the trial.
    """

    requests: Requests
    start_ns: int
    load: Load

    @classmethod
    def of(cls, trial: Trial) -> "Log":
        """Log of a trial, without warm-up, which other tools do not count either."""
        requests = trial.load.take(np.argsort(trial.load.ints("index"), kind="stable"))
        return cls(requests, trial.record.issue_start_ns, trial.record.load)


def is_streamed(trial: Trial) -> bool:
    """Whether its answers came as streams. The views read streams; the tools time whole answers by other code."""
    return bool(trial.requests.equal("is_streamed", True).all())


class View(msgspec.Struct, frozen=True):
    """Figures of a tool for one log.

    Attributes:
        tool: key in :data:`bakeoff.results.views.VIEWS`.
        figures: by the name in the tool's output or result file, in its order.
        cannot: inputs of the tool that the log does not contain.
    """

    tool: str
    figures: dict[str, Figure]
    cannot: tuple[str, ...] = ()


class Tool(msgspec.Struct, frozen=True):
    """One tool.

    Attributes:
        name: key in :data:`bakeoff.results.views.VIEWS` and on the command line.
        title: as its authors write it.
        version: of the source that was read.
        conventions: for all metrics.
        definitions: of its metrics.
        view: computes the figures of a log.
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
    """Seconds from ``start_ns`` to ``end_ns``."""
    return (end_ns - start_ns) / NS_PER_S


def gaps_s(times_ns: Iterable[int]) -> list[float]:
    """Seconds between consecutive times."""
    return [seconds_between(a, b) for a, b in itertools.pairwise(times_ns)]


def until_closed_s(log: Log) -> float:
    """Seconds from the start of the load to the end of the last request, failed or not."""
    return seconds_between(log.start_ns, int(log.requests.ints("ended_ns").max(initial=log.start_ns)))


def engine_tokens(request: RequestRecord) -> int:
    """Output tokens as counted by the engine, otherwise those of the log."""
    return request.output_tokens or request.total_chunk_tokens


def sent_ns(request: RequestRecord) -> int:
    """Send time, where every tool but MLPerf starts the clock; the planned time if there was no connection."""
    return request.planned_ns if request.sent_ns is None else request.sent_ns


def last_event_ns(request: RequestRecord) -> int:
    """Arrival of the last event; of the last token if the event is unknown."""
    if request.last_event_ns is not None:
        return request.last_event_ns
    return request.chunk_ns[-1] if request.chunk_ns else request.ended_ns


def text_chunk_ns(request: RequestRecord) -> list[int]:
    """Arrivals of chunks with text: those that a client sees that does not read token ids."""
    if not request.textless_chunks:
        return request.chunk_ns
    textless = set(request.textless_chunks)
    return [t_ns for i, t_ns in enumerate(request.chunk_ns) if i not in textless]


def whole(request: RequestRecord) -> bool:
    """Whether the response had status 200 and was read to its end, whatever its events."""
    if request.end is None:  # imported: only the outcome is known
        return request.outcome in {Outcome.OK, Outcome.TRUNCATED, Outcome.EMPTY}
    return request.end is StreamEnd.COMPLETE and request.status == 200


def unstamped(requests: Requests) -> tuple[str, ...]:
    """:data:`UNSTAMPED`, when it applies to one of the requests."""
    is_unstamped = (requests.chunks.counts > 0) & (requests.ints("last_event_ns") == UNKNOWN)
    return (UNSTAMPED,) if is_unstamped.any() else ()
