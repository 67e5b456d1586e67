"""genai-bench: end to end lasts until the usage chunk; TPOT is the remainder after the first token.

Source read: genai_bench/user/openai_user.py, metrics/request_metrics_collector.py, aggregated_metrics_collector.py.
"""

from collections.abc import Sequence

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
    text_chunk_ns,
    unstamped,
    until_closed_s,
    whole,
)
from bakeoff.results.views.statistics import rate, single, spread

VERSION = "0.0.5"
STATS = ("mean", "p50", "p90", "p95", "p99", "std")
MIN_OUTPUT_S = 1e-3
"""The tool omits the TPOT of a response that takes less than this after its first token."""

OWN_CLOCK = (
    "its run_duration also covers starting and stopping its load generator (0.6 to 1.7 s, measured), which lowers "
    "its rates; the log does not know that time"
)


def view(log: Log) -> View:
    """Figures by their names in its result file, in seconds."""
    good = [request for request in log.requests if _success(request)]
    ttfts = [seconds_between(sent_ns(request), text_chunk_ns(request)[0]) for request in good]
    latencies = [seconds_between(sent_ns(request), _end_ns(request)) for request in good]
    tpots = [
        (latency - ttft) / (engine_tokens(request) - 1)
        for request, ttft, latency in zip(good, ttfts, latencies, strict=True)
        if engine_tokens(request) > 1 and latency - ttft >= MIN_OUTPUT_S
    ]
    length_s = until_closed_s(log)
    output = sum(engine_tokens(request) for request in good)
    figures = {
        "num_completed_requests": single(MetricFamily.COUNT, "", len(good)),
        "num_error_requests": single(MetricFamily.COUNT, "", len(log.requests) - len(good)),
        "run_duration": single(MetricFamily.DURATION, "s", length_s),
        "requests_per_second": single(MetricFamily.REQUEST_RATE, "/s", rate(len(good), length_s)),
        "mean_output_throughput_tokens_per_s": single(MetricFamily.OUTPUT_RATE, "tok/s", rate(output, length_s)),
        **_stats("ttft", MetricFamily.TTFT, ttfts),
        **_stats("tpot", MetricFamily.TPOT, tpots),
        **_stats("e2e_latency", MetricFamily.E2E, latencies),
    }
    return View("genai-bench", figures, (*unstamped(log.requests), OWN_CLOCK))


def _success(request: RequestRecord) -> bool:
    """The tool detects error events; a response without a first token stops it."""
    return whole(request) and request.outcome is not Outcome.STREAM_ERROR and bool(text_chunk_ns(request))


def _end_ns(request: RequestRecord) -> int:
    return last_event_ns(request) if request.usage_ns is None else request.usage_ns


def _stats(name: str, family: MetricFamily, values_s: Sequence[float]) -> dict[str, Figure]:
    names = {stat: f"{name} {'stddev' if stat == 'std' else stat}" for stat in STATS}
    return spread(family, "s", values_s, names)


TOOL = Tool(
    name="genai-bench",
    title="genai-bench",
    version=VERSION,
    conventions=Conventions(
        percentiles="numpy's linear",
        std="n",
        duration="start to stop of its load generator",
        failures="left out; a stream without finish reason counts as success",
    ),
    definitions=(
        Definition(MetricFamily.TTFT, "ttft", "a₁ − s", "from the send, not the plan"),
        Definition(
            MetricFamily.TPOT, "tpot", "(u − a₁) / (N − 1)",
            "ends at the usage chunk, not at the last token; takes one token for the first chunk",
        ),
        Definition(
            MetricFamily.E2E, "e2e_latency", "u − s",
            "from the send, not the plan; to the usage chunk, not to the last token",
        ),
        Definition(
            MetricFamily.OUTPUT_RATE, "mean_output_throughput", "Σ N / run_duration",
            "over the whole run with ramp, drain and its own start and stop, of successful requests only",
        ),
        Definition(
            MetricFamily.REQUEST_RATE, "requests_per_second", "successful requests / run_duration",
            "over the whole run with ramp, drain and its own start and stop",
        ),
    ),
    view=view,
)  # fmt: skip
