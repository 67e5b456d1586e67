"""inference-perf: the tokens of a chunk share its time, so gaps inside a chunk are 0.

Source read: inference_perf/reportgen/base.py, apis/streaming_parser.py, client/modelserver/openai_client.py.
"""

from collections.abc import Sequence

from bakeoff.results.records import RequestRecord
from bakeoff.results.views.base import (
    Conventions,
    Definition,
    Figure,
    Log,
    MetricFamily,
    Tool,
    View,
    gaps_s,
    seconds_between,
    sent_ns,
    unstamped,
    whole,
)
from bakeoff.results.views.statistics import rate, single, spread

VERSION = "0.7.0"
STATS = ("mean", "p50", "p90", "p95", "p99")

OWN_TOKENIZER = "it counts tokens with its own tokenizer, chunk by chunk; taken here as the log has them"
OWN_WORK = "its requests end after it has tokenized the answer, a time that the log does not know"


def view(log: Log) -> View:
    """Figures by their names in its summary file, in seconds."""
    good = [request for request in log.requests if whole(request)]
    stamped = [(request, _token_ns(request)) for request in good]
    streamed = [(request, stamps) for request, stamps in stamped if len(stamps) > 1]
    length_s = _duration_s(log)
    output = sum(request.total_chunk_tokens for request in good)
    tpots = [seconds_between(stamps[0], stamps[-1]) / (len(stamps) - 1) for _, stamps in streamed]
    gaps = [gap for _, stamps in streamed for gap in gaps_s(stamps)]
    latencies = [seconds_between(sent_ns(request), request.ended_ns) for request in good]
    figures = {
        "successes.count": single(MetricFamily.COUNT, "", len(good)),
        "failures.count": single(MetricFamily.COUNT, "", len(log.requests) - len(good)),
        "benchmark_time_seconds": single(MetricFamily.DURATION, "s", length_s),
        "requests_per_sec": single(MetricFamily.REQUEST_RATE, "/s", rate(len(good), length_s)),
        "output_tokens_per_sec": single(MetricFamily.OUTPUT_RATE, "tok/s", rate(output, length_s)),
        **_stats("time_to_first_token", MetricFamily.TTFT, [seconds_between(sent_ns(r), at[0]) for r, at in streamed]),
        **_stats("inter_token_latency", MetricFamily.ITL, gaps),
        **_stats("time_per_output_token", MetricFamily.TPOT, tpots),
        **_stats("request_latency", MetricFamily.E2E, latencies),
        **_stats(
            "normalized_time_per_output_token", MetricFamily.OTHER,
            [s / r.total_chunk_tokens if r.total_chunk_tokens else 0.0 for r, s in zip(good, latencies, strict=True)],
        ),
    }  # fmt: skip
    return View("inference-perf", figures, (*unstamped(log.requests), OWN_TOKENIZER, OWN_WORK))


def _token_ns(request: RequestRecord) -> list[int]:
    """Arrival time of each token: that of its chunk."""
    textless = set(request.textless_chunks)
    chunks = zip(request.chunk_ns, request.chunk_tokens, strict=True)
    return [t_ns for i, (t_ns, tokens) in enumerate(chunks) if i not in textless for _ in range(tokens)]


def _duration_s(log: Log) -> float:
    if not log.requests:
        return 0.0
    return seconds_between(min(map(sent_ns, log.requests)), max(request.ended_ns for request in log.requests))


def _stats(name: str, family: MetricFamily, values_s: Sequence[float]) -> dict[str, Figure]:
    names = {stat: f"{name} {'median' if stat == 'p50' else stat}" for stat in STATS}
    return spread(family, "s", values_s, names)


TOOL = Tool(
    name="inference-perf",
    title="inference-perf",
    version=VERSION,
    conventions=Conventions(
        percentiles="numpy's linear",
        std="none",
        duration="first send to end of the last request, failed ones too",
        failures="left out; an error event inside a stream and a stream without finish reason count as success",
    ),
    definitions=(
        Definition(
            MetricFamily.TTFT, "time_to_first_token", "a₁ − s",
            "from the send, not the plan; left out for answers of one token; it does not count reasoning as content",
        ),
        Definition(
            MetricFamily.ITL, "inter_token_latency", "aᵢ − aᵢ₋₁ once and 0 for every further token of chunk i, pooled",
            "with 3 tokens per chunk its median is 0; ours spreads the gap over the tokens it delivered",
        ),
        Definition(
            MetricFamily.TPOT, "time_per_output_token", "(a_k − a₁) / (N − 1)",
            "takes one token for the first chunk; ours takes away as many as it carried",
        ),
        Definition(
            MetricFamily.E2E, "request_latency", "end of the stream − s, after tokenizing the answer",
            "from the send, not the plan; to the end of the stream and of its own work, not to the last token",
        ),
        Definition(
            MetricFamily.OUTPUT_RATE, "output_tokens_per_sec", "Σ N / duration",
            "N by its own tokenizer; over the whole run with ramp and drain, of successful requests only",
        ),
        Definition(
            MetricFamily.REQUEST_RATE, "requests_per_sec", "successful requests / duration",
            "over the whole run with ramp and drain; ours over the steady window",
        ),
    ),
    view=view,
)  # fmt: skip
