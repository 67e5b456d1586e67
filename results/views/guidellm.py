"""GuideLLM: stores only the first and last token time of a request and its counts, so its ITL is a mean per request.

Source read: guidellm/schemas/base/request_stats.py, schemas/base/statistics.py, benchmark/schemas/metrics.py.
"""

from collections.abc import Sequence

import msgspec

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
    last_event_ns,
    sent_ns,
    text_chunk_ns,
    unstamped,
    whole,
)
from bakeoff.results.views.distribution import Summary, in_flight, plain, rates, summary
from bakeoff.results.views.statistics import NOTHING, single

VERSION = "0.8.1"
STATS = {"mean": "Mean", "p50": "Mdn", "p95": "p95", "p99": "p99", "std": "std"}
"""Statistics by its column; p99 and the standard deviation are in its files only."""


class Call(msgspec.Struct, frozen=True):
    """One request as the tool sees it; times in seconds on the log's clock.

    Attributes:
        record: the request.
        success: no error event, no broken connection, some text.
        start_s: when the headers were written.
        first_s: first chunk with text; None without one.
        last_s: last chunk with text.
        end_s: when the end marker was read.
        iterations: chunks with text.
        prompt_tokens: by usage; None without usage.
        output_tokens: by usage, otherwise the number of chunks with text; None without any.
    """

    record: RequestRecord
    success: bool
    start_s: float
    first_s: float | None
    last_s: float | None
    end_s: float
    iterations: int
    prompt_tokens: int | None
    output_tokens: int | None

    @property
    def latency_s(self) -> float:
        """Request latency."""
        return self.end_s - self.start_s

    @property
    def ttft_ms(self) -> float:
        """Time to first token; 0 without a token, as in the tool."""
        return 0.0 if self.first_s is None else 1e3 * (self.first_s - self.start_s)

    @property
    def tpot_ms(self) -> float:
        """Time per output token, TTFT included; 0 without tokens."""
        if not self.output_tokens:
            return 0.0
        return 1e3 * ((self.end_s if self.last_s is None else self.last_s) - self.start_s) / self.output_tokens

    @property
    def itl_ms(self) -> float:
        """Mean time per token after the first; 0 for one token."""
        if self.first_s is None or self.last_s is None or (self.output_tokens or 0) <= 1:
            return 0.0
        return 1e3 * (self.last_s - self.first_s) / ((self.output_tokens or 0) - 1)

    @property
    def token_events(self) -> list[tuple[float, float]]:
        """Token arrivals as the tool assumes them: one at first, the rest evenly over the iterations to the last."""
        tokens = float(self.output_tokens or 0)
        if self.first_s is None or self.last_s is None or self.iterations <= 1:
            return [(self.end_s if self.last_s is None else self.last_s, tokens)]
        if tokens <= 1:
            return [(self.first_s, tokens)]
        step = (self.last_s - self.first_s) / (self.iterations - 1)
        share = (tokens - 1) / (self.iterations - 1)
        return [(self.first_s, 1.0), *((self.first_s + step * i, share) for i in range(1, self.iterations))]


def calls(log: Log) -> list[Call]:
    """Every measured request."""
    return [_call(request) for request in log.requests]


def window(all_calls: Sequence[Call]) -> tuple[float, float]:
    """The tool's measured period: first request started to last one ended."""
    return min(call.start_s for call in all_calls), max(call.end_s for call in all_calls)


def view(log: Log) -> View:
    """Figures by the headings of its tables."""
    all_calls = calls(log)
    if not all_calls:
        return View("guidellm", {})
    good = [call for call in all_calls if call.success]
    ends = window(all_calls)
    tokens = [event for call in all_calls for event in call.token_events]
    figures = {
        "Requests Comp": single(MetricFamily.COUNT, "", len(good)),
        "Requests Err": single(MetricFamily.COUNT, "", len(all_calls) - len(good)),
        "Dur Sec": single(MetricFamily.DURATION, "s", ends[1] - ends[0]),
        "Output Tokens Comp": single(MetricFamily.COUNT, "", sum(call.output_tokens or 0 for call in good)),
        **_columns("Request Latency Sec", MetricFamily.E2E, "s", plain(call.latency_s for call in good)),
        **_columns("TTFT ms", MetricFamily.TTFT, "ms", plain(call.ttft_ms for call in good)),
        **_columns("ITL ms", MetricFamily.ITL, "ms", itl_summary(good)),
        **_columns("TPOT ms", MetricFamily.TPOT, "ms", tpot_summary(good)),
        "Requests Per Sec Mean": _mean(
            MetricFamily.REQUEST_RATE, "/s", rates([(c.end_s, 1.0) for c in all_calls], ends)
        ),
        "Output Tokens Per Sec Mean": _mean(MetricFamily.OUTPUT_RATE, "tok/s", rates(tokens, ends)),
        "Requests Concurrency Mean": _mean(
            MetricFamily.OTHER, "", in_flight([(call.start_s, call.end_s, 1.0) for call in all_calls], ends)
        ),
    }
    return View("guidellm", figures, unstamped(log.requests))


def itl_summary(group: Sequence[Call]) -> Summary:
    """Inter-token latencies, weighted by their number of tokens."""
    return summary([(call.itl_ms, float(max(0, (call.output_tokens or 1) - 1))) for call in group])


def tpot_summary(group: Sequence[Call]) -> Summary:
    """Times per output token, weighted by tokens."""
    return summary([(call.tpot_ms, float(call.output_tokens or 0)) for call in group])


def _call(request: RequestRecord) -> Call:
    arrivals = text_chunk_ns(request)
    ended_ns = last_event_ns(request) if whole(request) else request.ended_ns
    counted = request.usage_ns is not None or request.last_event_ns is None  # or usage is unknown
    return Call(
        record=request,
        success=whole(request) and request.outcome is not Outcome.STREAM_ERROR and bool(arrivals),
        start_s=sent_ns(request) / 1e9,
        first_s=arrivals[0] / 1e9 if arrivals else None,
        last_s=arrivals[-1] / 1e9 if arrivals else None,
        end_s=ended_ns / 1e9,
        iterations=len(arrivals),
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens if counted else (len(arrivals) or None),
    )


def _columns(name: str, family: MetricFamily, unit: str, values_summary: Summary) -> dict[str, Figure]:
    values = {"mean": values_summary.mean, "std": values_summary.std_dev, **values_summary.percentiles}
    return {
        f"{name} {column}": Figure(family, stat, unit, Value(values[stat]) if values_summary.count else absent(NOTHING))
        for stat, column in STATS.items()
    }


def _mean(family: MetricFamily, unit: str, values_summary: Summary) -> Figure:
    return single(family, unit, values_summary.mean if values_summary.count else None)


TOOL = Tool(
    name="guidellm",
    title="GuideLLM",
    version=VERSION,
    conventions=Conventions(
        percentiles="inverse of the empirical distribution; ITL and TPOT weighted by tokens",
        std="n (weighted)",
        duration="first send to end of the last request, failed ones too",
        failures="left out of latencies, counted in rates; a stream without finish reason counts as success",
    ),
    definitions=(
        Definition(
            MetricFamily.TTFT, "TTFT", "a₁ − s",
            "from the send, not the plan; waiting for its own workers is a delay of its own, in open loop only",
        ),
        Definition(
            MetricFamily.ITL, "ITL", "(a_k − a₁) / (N − 1), one value per request, weighted by N − 1",
            "a mean per request: its percentiles show no single long gap; what others call TPOT",
        ),
        Definition(
            MetricFamily.TPOT, "TPOT", "(a_k − s) / N, weighted by N",
            "includes the time to the first token, so it grows when answers get shorter",
        ),
        Definition(
            MetricFamily.E2E, "Request Latency", "e − s",
            "from the send, not the plan; to the last event, usage and [DONE] included, not to the last token",
        ),
        Definition(
            MetricFamily.OUTPUT_RATE, "Output Tokens Per Sec", "Σ N / duration",
            "over the whole run with ramp and drain; tokens of failed requests count in both",
        ),
        Definition(
            MetricFamily.REQUEST_RATE, "Requests Per Sec", "requests / duration",
            "failed requests count too; over the whole run with ramp and drain",
        ),
    ),
    view=view,
)  # fmt: skip
