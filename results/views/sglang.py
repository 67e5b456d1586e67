"""SGLang's ``bench_serving``, OpenAI-compatible backends: gaps between chunks of text, tokens as requested.

Source read: sglang/benchmark/serving.py. Its Rust twin prints the same table.
"""

from collections.abc import Sequence

from bakeoff.results.records import Outcome, RequestRecord
from bakeoff.results.views.base import (
    Conventions,
    Definition,
    Log,
    MetricFamily,
    Tool,
    View,
    engine_tokens,
    gaps_s,
    last_event_ns,
    seconds_between,
    sent_ns,
    text_chunk_ns,
    unstamped,
    until_closed_s,
    whole,
)
from bakeoff.results.views.statistics import milliseconds, rate, single

VERSION = "0.5.23"


def view(log: Log) -> View:
    """The figures, under the names that the tool prints."""
    good = [request for request in log.requests if _success(request)]
    length_s = until_closed_s(log)
    output = sum(_tokens(request) for request in good)
    latencies = [seconds_between(sent_ns(request), last_event_ns(request)) for request in good]
    tpots = [
        (latency - _ttft_s(request)) / (_tokens(request) - 1)
        for request, latency in zip(good, latencies, strict=True)
        if _tokens(request) > 1
    ]
    figures = {
        "Successful requests": single(MetricFamily.COUNT, "", len(good)),
        "Benchmark duration (s)": single(MetricFamily.DURATION, "s", length_s),
        "Total generated tokens": single(MetricFamily.COUNT, "", output),
        "Request throughput (req/s)": single(MetricFamily.REQUEST_RATE, "/s", rate(len(good), length_s)),
        "Output token throughput (tok/s)": single(MetricFamily.OUTPUT_RATE, "tok/s", rate(output, length_s)),
        "Concurrency": single(MetricFamily.OTHER, "", rate(sum(latencies), length_s)),
        **milliseconds("E2E Latency", MetricFamily.E2E, latencies),
        **milliseconds("TTFT", MetricFamily.TTFT, [_ttft_s(request) for request in good]),
        **milliseconds("TPOT", MetricFamily.TPOT, tpots),
        **milliseconds("ITL", MetricFamily.ITL, [gap for request in good for gap in gaps_s(text_chunk_ns(request))]),
    }
    return View("sglang", figures, (*unstamped(log.requests), *_counts_unknown(good)))


def _success(request: RequestRecord) -> bool:
    """An error event has no ``choices``, so the completions backend fails on it; an answer must have one line."""
    return whole(request) and request.outcome is not Outcome.STREAM_ERROR


def _ttft_s(request: RequestRecord) -> float:
    """The tool's TTFT; 0 without text."""
    arrivals = text_chunk_ns(request)
    return seconds_between(sent_ns(request), arrivals[0]) if arrivals else 0.0


def _tokens(request: RequestRecord) -> int:
    """The requested length, since the tool does not request usage."""
    return request.requested_output_tokens or engine_tokens(request)


def _counts_unknown(good: Sequence[RequestRecord]) -> tuple[str, ...]:
    if all(request.requested_output_tokens is not None for request in good):
        return ()
    return ("the log does not say how many tokens were asked for, which is what the tool counts: taken as delivered",)


TOOL = Tool(
    name="sglang",
    title="SGLang bench_serving",
    version=VERSION,
    conventions=Conventions(
        percentiles="numpy's linear",
        std="n",
        duration="first request made to last answer closed, ramp and drain included",
        failures="left out; a stream without finish reason counts as success with the full requested length",
    ),
    definitions=(
        Definition(
            MetricFamily.TTFT, "TTFT", "a₁ − s",
            "from the send, not the plan; an answer without any text counts as 0",
        ),
        Definition(
            MetricFamily.ITL, "ITL", "aᵢ − aᵢ₋₁, pooled over all requests",
            "a gap is one value however many tokens it delivered",
        ),
        Definition(
            MetricFamily.TPOT, "TPOT", "(e − a₁) / (requested − 1)",
            "divides by the length that was requested, not delivered; ends at the last event; one token for chunk 1",
        ),
        Definition(
            MetricFamily.E2E, "E2E Latency", "e − s",
            "from the send, not the plan; to the last event, usage and [DONE] included, not to the last token",
        ),
        Definition(
            MetricFamily.OUTPUT_RATE, "Output token throughput", "Σ requested / duration",
            "counts the tokens requested, delivered or not; over the whole run with ramp and drain",
        ),
        Definition(
            MetricFamily.REQUEST_RATE, "Request throughput", "successful requests / duration",
            "over the whole run with ramp and drain; ours over the steady window",
        ),
    ),
    view=view,
)  # fmt: skip
