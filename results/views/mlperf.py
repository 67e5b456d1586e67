"""MLPerf LoadGen, Server scenario with token latencies: the only other tool that counts from the planned time.

Source read: loadgen/results.cc and loadgen.cc of mlcommons/inference. It is linked into the system under test, which
reports first and last tokens to it; here they are those of the stream.
"""

from collections.abc import Mapping, Sequence

from bakeoff.results.metrics import Value, absent
from bakeoff.results.records import Outcome, RequestRecord
from bakeoff.results.views.base import (
    Conventions,
    Definition,
    Figure,
    Log,
    MetricFamily,
    Tool,
    View,
    engine_tokens,
    last_event_ns,
    seconds_between,
    sent_ns,
    unstamped,
)
from bakeoff.results.views.statistics import NOTHING, mean, rank_of, rate, single

VERSION = "6.0.17"
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p97": 0.97, "p99": 0.99, "p99.9": 0.999}

CLOSED_LOOP = (
    "LoadGen has no closed loop at this concurrency: shown as its Server scenario, planned when a slot is free"
)
UNANSWERED = "LoadGen waits for every query and knows no failure: failed requests are left out here"


def view(log: Log) -> View:
    """Figures by their names in its summary, in nanoseconds."""
    good = [request for request in log.requests if request.outcome is Outcome.OK and request.chunk_ns]
    ttfts = [float(request.chunk_ns[0] - request.planned_ns) for request in good]
    latencies = [float(last_event_ns(request) - request.planned_ns) for request in good]
    tpots = [
        (latency - ttft) / (engine_tokens(request) - 1)
        for request, ttft, latency in zip(good, ttfts, latencies, strict=True)
        if engine_tokens(request) > 1
    ]
    length_s = _until_last_issued_s(log, good)
    tokens = sum(engine_tokens(request) for request in good)
    figures = {
        "Completed samples per second": single(MetricFamily.REQUEST_RATE, "/s", rate(len(good) - 1, length_s)),
        "Completed tokens per second": single(MetricFamily.OUTPUT_RATE, "tok/s", rate(tokens, length_s)),
        **_nanoseconds("latency (ns)", MetricFamily.E2E, latencies),
        **_nanoseconds("First Token latency (ns)", MetricFamily.TTFT, ttfts),
        **_nanoseconds("Time to Output Token (ns)", MetricFamily.TPOT, tpots),
    }
    closed = (CLOSED_LOOP,) if log.load.concurrency is not None else ()
    failed = (UNANSWERED,) if len(good) < len(log.requests) else ()
    return View("mlperf", figures, (*unstamped(log.requests), *closed, *failed))


def _until_last_issued_s(log: Log, good: Sequence[RequestRecord]) -> float:
    """From the start to the completion of the query that was issued last, not of the one that ended last."""
    if not good:
        return 0.0
    return seconds_between(log.start_ns, last_event_ns(max(good, key=sent_ns)))


def _nanoseconds(name: str, family: MetricFamily, values: Sequence[float]) -> dict[str, Figure]:
    statistics: Mapping[str, float] = {}
    if values:
        statistics = {"mean": mean(values), **{stat: rank_of(values, q) for stat, q in QUANTILES.items()}}
    return {
        f"Mean {name}" if stat == "mean" else f"{float(stat[1:]):.2f} percentile {name}": Figure(
            family, stat, "ns", Value(statistics[stat]) if statistics else absent(NOTHING)
        )
        for stat in ("mean", *QUANTILES)
    }


TOOL = Tool(
    name="mlperf",
    title="MLPerf LoadGen (Server)",
    version=VERSION,
    conventions=Conventions(
        percentiles="the value at position floor(n q) of the sorted sample",
        std="none",
        duration="start to the completion of the query issued last",
        failures="it has none: every query must be answered",
    ),
    definitions=(
        Definition(
            MetricFamily.TTFT, "First Token latency", "a₁ − p",
            "the same, but for its percentiles; printed whatever the sample's size, with a test beside it",
        ),
        Definition(
            MetricFamily.TPOT, "Time to Output Token", "(e − a₁) / (N − 1)",
            "to the completion, not to the last token; takes one token for the first chunk",
        ),
        Definition(
            MetricFamily.E2E, "latency", "e − p",
            "to the completion, not to the last token",
        ),
        Definition(
            MetricFamily.OUTPUT_RATE, "Completed tokens per second", "Σ N / duration",
            "from the start to the completion of the query issued last; ours over the steady window",
        ),
        Definition(
            MetricFamily.REQUEST_RATE, "Completed samples per second", "(queries − 1) / duration",
            "one query less, since the last one opens an interval; ours over the steady window",
        ),
    ),
    view=view,
)  # fmt: skip
