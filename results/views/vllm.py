"""``vllm bench serve``: every chunk that has ``choices`` is a token to it, whether or not it carries one.

Source read: vllm/benchmarks/serve.py and lib/endpoint_request_func.py.
"""

import math
from collections.abc import Sequence

import msgspec

from bakeoff.results.records import RequestRecord
from bakeoff.results.views.base import (
    Conventions,
    Definition,
    Log,
    MetricFamily,
    Tool,
    View,
    engine_tokens,
    gaps_s,
    seconds_between,
    sent_ns,
    until_closed_s,
    whole,
)
from bakeoff.results.views.statistics import milliseconds, rate, single

VERSION = "0.32.0"
USAGE_UNSEEN = (
    "usage came in a chunk that had choices, where vLLM bench does not view: it counts output tokens with its own "
    "tokenizer then; taken here as the engine counted them"
)


class Call(msgspec.Struct, frozen=True):
    """One request as the tool sees it; seconds, and ``start_s`` on the log's clock.

    Attributes:
        record: the request.
        success: status 200, read to its end, at least one chunk with choices.
        start_s: when it was sent.
        ttft_s: time to the first chunk with choices.
        itl_s: gaps between chunks with choices.
        latency_s: time to the last chunk with choices.
        output_tokens: by usage.
    """

    record: RequestRecord
    success: bool
    start_s: float
    ttft_s: float
    itl_s: list[float]
    latency_s: float
    output_tokens: int


def calls(log: Log) -> list[Call]:
    """All measured requests, in the order of their start."""
    return [_call(request) for request in log.requests]


def peaks(all_calls: Sequence[Call]) -> tuple[float, int]:
    """Maximum per second, from the first start, of chunks that arrive and of requests in flight."""
    good = [call for call in all_calls if call.success]
    if not good:
        return 0.0, 0
    zero = min(call.start_s for call in good)
    seconds = math.ceil(max(call.start_s + call.latency_s for call in good) - zero) + 1
    chunks, requests = [0] * seconds, [0] * seconds
    for call in good:
        t_s = call.start_s - zero + call.ttft_s
        for gap_s in (0.0, *call.itl_s):
            t_s += gap_s
            chunks[int(t_s)] += 1
        for second in range(int(call.start_s - zero), int(call.start_s - zero + call.latency_s) + 1):
            requests[second] += 1
    return float(max(chunks)), max(requests)


def view(log: Log) -> View:
    """Figures by the names that the tool prints."""
    all_calls = calls(log)
    good = [call for call in all_calls if call.success]
    length_s = until_closed_s(log)
    output = sum(call.output_tokens for call in good)
    prompt = sum(call.record.prompt_tokens or call.record.requested_input_tokens or 0 for call in good)
    busiest, fullest = peaks(all_calls)
    figures = {
        "Successful requests": single(MetricFamily.COUNT, "", len(good)),
        "Failed requests": single(MetricFamily.COUNT, "", len(all_calls) - len(good)),
        "Benchmark duration (s)": single(MetricFamily.DURATION, "s", length_s),
        "Total input tokens": single(MetricFamily.COUNT, "", prompt),
        "Total generated tokens": single(MetricFamily.COUNT, "", output),
        "Request throughput (req/s)": single(MetricFamily.REQUEST_RATE, "/s", rate(len(good), length_s)),
        "Output token throughput (tok/s)": single(MetricFamily.OUTPUT_RATE, "tok/s", rate(output, length_s)),
        "Peak output token throughput (tok/s)": single(MetricFamily.OTHER, "tok/s", busiest),
        "Peak concurrent requests": single(MetricFamily.OTHER, "", fullest),
        "Total token throughput (tok/s)": single(MetricFamily.OTHER, "tok/s", rate(prompt + output, length_s)),
        **milliseconds("TTFT", MetricFamily.TTFT, [call.ttft_s for call in good]),
        **milliseconds("TPOT", MetricFamily.TPOT, tpots_s(good)),
        **milliseconds("ITL", MetricFamily.ITL, [gap for call in good for gap in call.itl_s]),
        **milliseconds("E2EL", MetricFamily.E2E, [call.latency_s for call in good]),
    }
    unseen = any(call.record.usage_in_choice for call in good)
    return View("vllm", figures, (USAGE_UNSEEN,) if unseen else ())


def tpots_s(good: Sequence[Call]) -> list[float]:
    """Time per output token of each request that has more than one."""
    return [(call.latency_s - call.ttft_s) / (call.output_tokens - 1) for call in good if call.output_tokens > 1]


def _call(request: RequestRecord) -> Call:
    arrivals = sorted((*request.chunk_ns, *request.empty_chunk_ns))
    success = whole(request) and bool(arrivals)
    start_ns = sent_ns(request)
    counted = arrivals if success else []
    return Call(
        record=request,
        success=success,
        start_s=start_ns / 1e9,
        ttft_s=seconds_between(start_ns, counted[0]) if counted else 0.0,
        itl_s=gaps_s(counted),
        latency_s=seconds_between(start_ns, counted[-1]) if counted else 0.0,
        output_tokens=engine_tokens(request) if success else 0,
    )


TOOL = Tool(
    name="vllm",
    title="vLLM bench serve",
    version=VERSION,
    conventions=Conventions(
        percentiles="numpy's linear",
        std="n",
        duration="first request made to last answer closed, ramp and drain included",
        failures="left out; an error event inside a stream and a stream without finish reason count as success",
    ),
    definitions=(
        Definition(
            MetricFamily.TTFT, "TTFT", "c₁ − s",
            "from the send, not the plan; a role-only chunk counts as the first token (in chat 0.33 waits for content)",
        ),
        Definition(
            MetricFamily.ITL, "ITL", "cᵢ − cᵢ₋₁, pooled over all requests",
            "a gap is one value however many tokens it delivered; an empty finish chunk adds a false gap near 0",
        ),
        Definition(
            MetricFamily.TPOT, "TPOT", "(c_m − c₁) / (N − 1)",
            "takes one token for the first chunk; ours takes away as many as it carried",
        ),
        Definition(
            MetricFamily.E2E, "E2EL", "c_m − s",
            "from the send, not the plan; to the last chunk with choices, an empty finish chunk included",
        ),
        Definition(
            MetricFamily.OUTPUT_RATE, "Output token throughput", "Σ N / duration",
            "over the whole run with ramp and drain, of successful requests only; ours over the steady window",
        ),
        Definition(
            MetricFamily.REQUEST_RATE, "Request throughput", "successful requests / duration",
            "over the whole run with ramp and drain; ours over the steady window",
        ),
    ),
    view=view,
)  # fmt: skip
