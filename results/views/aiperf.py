"""AIPerf: clocks start before the request is sent and stop at chunks with content; its ITL is others' TPOT.

Source read: aiperf/metrics/types/. Its percentiles are over one value per request, so none shows a single long gap,
except those of the inter-chunk latency, which only its JSON has.
"""

import itertools
from collections.abc import Sequence

import msgspec

from bakeoff.results.records import RequestRecord
from bakeoff.results.views.base import (
    Conventions,
    Definition,
    Figure,
    Log,
    MetricFamily,
    Tool,
    View,
    seconds_between,
    sent_ns,
    text_chunk_ns,
    unstamped,
    until_closed_s,
    whole,
)
from bakeoff.results.views.statistics import rate, single, spread

VERSION = "0.13.0"
STATS = {"mean": "avg", "min": "min", "max": "max", "p99": "p99", "p90": "p90", "p50": "p50", "std": "std"}
"""Columns of its table, by our names."""

OWN_TOKENIZER = (
    "AIPerf counts output tokens with its own tokenizer (unless --use-server-token-count); taken as the log has them"
)


class Call(msgspec.Struct, frozen=True):
    """One valid request as the tool sees it; times in seconds from the send.

    Attributes:
        record: the request.
        arrivals_s: of each chunk with content.
        output_tokens: output sequence length.
    """

    record: RequestRecord
    arrivals_s: list[float]
    output_tokens: int

    @property
    def ttft_s(self) -> float:
        """Time to the first content."""
        return self.arrivals_s[0]

    @property
    def latency_s(self) -> float:
        """Time to the last content."""
        return self.arrivals_s[-1]

    @property
    def gaps_s(self) -> list[float]:
        """Gaps between chunks with content."""
        return [b - a for a, b in itertools.pairwise(self.arrivals_s)]

    @property
    def itl_s(self) -> float | None:
        """Mean time per token after the first content; None for one token."""
        return (self.latency_s - self.ttft_s) / (self.output_tokens - 1) if self.output_tokens > 1 else None


def calls(log: Log) -> list[Call]:
    """Requests that the tool counts as valid."""
    return [_call(request) for request in log.requests if whole(request) and text_chunk_ns(request)]


def duration_s(good: Sequence[Call]) -> float:
    """Its benchmark duration: first send to last content of valid requests. Its rates are over the whole phase."""
    if not good:
        return 0.0
    starts = [sent_ns(call.record) / 1e9 for call in good]
    return max(start + call.latency_s for start, call in zip(starts, good, strict=True)) - min(starts)


def view(log: Log) -> View:
    """Figures by the rows and columns of its table."""
    good = calls(log)
    phase_s = until_closed_s(log)
    itls = [itl for call in good if (itl := call.itl_s) is not None]
    tokens = [float(call.output_tokens) for call in good]
    speeds = [call.output_tokens / call.latency_s for call in good if call.latency_s > 0]
    figures = {
        **_rows("Time to First Token (ms)", MetricFamily.TTFT, "ms", [call.ttft_s for call in good], 1e3),
        **_rows("Time to Second Token (ms)", MetricFamily.OTHER, "ms", [c.gaps_s[0] for c in good if c.gaps_s], 1e3),
        **_rows("Request Latency (ms)", MetricFamily.E2E, "ms", [call.latency_s for call in good], 1e3),
        **_rows("Inter Token Latency (ms)", MetricFamily.ITL, "ms", itls, 1e3),
        **_rows("inter_chunk_latency (ms)", MetricFamily.OTHER, "ms", [gap for c in good for gap in c.gaps_s], 1e3),
        **_rows(
            "Output Token Throughput Per User (tokens/sec/user)", MetricFamily.OTHER, "tok/s",
            [1 / itl for itl in itls if itl > 0],
        ),
        **_rows("E2E Output Token Throughput (tokens/sec/user)", MetricFamily.OTHER, "tok/s", speeds),
        **_rows("Output Sequence Length (tokens)", MetricFamily.OTHER, "", tokens),
        "Output Token Throughput (tokens/sec)": single(MetricFamily.OUTPUT_RATE, "tok/s", rate(sum(tokens), phase_s)),
        "Request Throughput (requests/sec)": single(MetricFamily.REQUEST_RATE, "/s", rate(len(good), phase_s)),
        "Request Count (requests)": single(MetricFamily.COUNT, "", len(good)),
        "error_request_count": single(MetricFamily.COUNT, "", len(log.requests) - len(good)),
        "benchmark_duration (sec)": single(MetricFamily.DURATION, "s", duration_s(good)),
    }  # fmt: skip
    return View("aiperf", figures, (*unstamped(log.requests), OWN_TOKENIZER))


def _call(request: RequestRecord) -> Call:
    start_ns = sent_ns(request)
    arrivals = [seconds_between(start_ns, t_ns) for t_ns in text_chunk_ns(request)]
    return Call(request, arrivals, request.total_chunk_tokens)


def _rows(
    name: str, family: MetricFamily, unit: str, values: Sequence[float], factor: float = 1.0
) -> dict[str, Figure]:
    return spread(family, unit, values, {stat: f"{name} {column}" for stat, column in STATS.items()}, factor)


TOOL = Tool(
    name="aiperf",
    title="AIPerf",
    version=VERSION,
    conventions=Conventions(
        percentiles="numpy's linear",
        std="n",
        duration="first send to last content, of valid requests; for rates the whole phase, to the last answer closed",
        failures="left out (rows adj_… count them as infinite); an error event inside a stream counts as success",
    ),
    definitions=(
        Definition(
            MetricFamily.TTFT, "Time to First Token", "a₁ − s",
            "from the send, not the plan; the wait for its own workers is a metric of its own",
        ),
        Definition(
            MetricFamily.ITL, "Inter Token Latency", "(a_k − a₁) / (N − 1), one value per request",
            "a mean per request: its percentiles show no single long gap; what others call TPOT",
        ),
        Definition(
            MetricFamily.E2E, "Request Latency", "a_k − s",
            "from the send, not the plan",
        ),
        Definition(
            MetricFamily.OTHER, "Inter Chunk Latency (JSON only)", "aᵢ − aᵢ₋₁, pooled over all requests",
            "what ours calls chunk gap, over the whole run",
        ),
        Definition(
            MetricFamily.OUTPUT_RATE, "Output Token Throughput", "Σ N / length of the phase",
            "N by its own tokenizer; over the whole run with ramp and drain, of valid requests only",
        ),
        Definition(
            MetricFamily.REQUEST_RATE, "Request Throughput", "valid requests / length of the phase",
            "over the whole run with ramp and drain; ours over the steady window",
        ),
    ),
    view=view,
)  # fmt: skip
