"""Every metric by name: title, unit, direction and definition. Tables, reports and comparisons all read this."""

from enum import StrEnum

import msgspec


class Unit(StrEnum):
    """Units of stored and computed values; formatting happens at the edge."""

    SECONDS = "s"
    PER_SECOND = "/s"
    TOKENS_PER_SECOND = "tok/s"
    BYTES = "B"
    JOULES = "J"
    COUNT = ""
    SHARE = "share"


class Better(StrEnum):
    """Which way is an improvement."""

    LOWER = "lower"
    HIGHER = "higher"


class Metric(msgspec.Struct, frozen=True):
    """One metric's identity.

    Attributes:
        name: key in frames and JSON; ends in its unit where it has one.
        title: column heading.
        unit: of the value.
        better: which way is an improvement.
        definition: one sentence; the symbols are those of docs/definitions.md.
    """

    name: str
    title: str
    unit: Unit
    better: Better
    definition: str


_LATENCIES = (
    ("ttft", "TTFT", "time to first token, a₁ − p, from the planned start of the request"),
    ("ttft_from_send", "TTFT from send", "a₁ − s: time to first token without the client's own waiting"),
    ("itl", "ITL", "gap between two chunks spread over the tokens it delivered, one value per token, in the window"),
    ("chunk_gap", "chunk gap", "aᵢ − aᵢ₋₁ between token-bearing chunks, in the window, whatever they carry"),
    ("tpot", "TPOT", "(a_k − a₁) / (N − n₁): mean pace of one request after its first chunk"),
    ("e2e", "E2E", "a_k − p: planned start to last token"),
    (
        "normalized_latency",
        "normalised latency",
        "(a_k − p) / N: by which answers of unequal length can be compared (Orca, vLLM)",
    ),
    (
        "send_lag",
        "send lag",
        "s − p: how late this client sent, its own error; a wait under max_in_flight is not counted",
    ),
)
QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))

_OTHERS = (
    Metric("output_tokens_per_s", "output", Unit.TOKENS_PER_SECOND, Better.HIGHER,
           "tokens whose chunk arrived inside the steady window, over its length"),
    Metric("prompt_tokens_per_s", "prompt", Unit.TOKENS_PER_SECOND, Better.HIGHER,
           "prompt tokens of requests whose first token arrived inside the window, over its length"),
    Metric("requests_per_s", "requests", Unit.PER_SECOND, Better.HIGHER,
           "successful requests whose last token arrived inside the window, over its length"),
    Metric("goodput_per_s", "goodput", Unit.PER_SECOND, Better.HIGHER,
           "requests planned inside the window that met every bound of the SLO, over its length"),
    Metric("attainment", "attainment", Unit.SHARE, Better.HIGHER,
           "share of the requests planned that met the SLO; failures are misses"),
    Metric("failures", "failures", Unit.COUNT, Better.LOWER,
           "measured requests that did not end ok"),
    Metric("tokens_per_chunk", "tokens/chunk", Unit.COUNT, Better.LOWER,
           "tokens over token-bearing chunks; above 1 the engine groups tokens, or speculates"),
    Metric("peak_host_bytes", "peak memory", Unit.BYTES, Better.LOWER,
           "largest resident set of the engine's process tree"),
    Metric("peak_gpu_bytes", "peak GPU memory", Unit.BYTES, Better.LOWER,
           "largest memory in use over all GPUs at one instant"),
    Metric("energy_per_output_token_j", "energy/token", Unit.JOULES, Better.LOWER,
           "GPU energy-counter difference over the window per output token, idle draw included"),
    Metric("energy_above_idle_per_output_token_j", "energy above idle/token", Unit.JOULES, Better.LOWER,
           "the same with the idle draw taken away"),
    Metric("energy_per_request_j", "energy/request", Unit.JOULES, Better.LOWER,
           "GPU energy-counter difference over the window per successful request, idle draw included"),
)  # fmt: skip


def _latency_metrics() -> list[Metric]:
    return [
        Metric(f"{key}_{label}_s", f"{title} {label}", Unit.SECONDS, Better.LOWER, f"{label} of {definition}")
        for key, title, definition in _LATENCIES
        for label, _ in QUANTILES
    ]


CATALOGUE: dict[str, Metric] = {metric.name: metric for metric in (*_latency_metrics(), *_OTHERS)}
"""All metrics, in display order."""

HEADLINE = (
    "ttft_p50_s",
    "itl_p50_s",
    "tpot_p50_s",
    "output_tokens_per_s",
    "requests_per_s",
    "failures",
    "peak_host_bytes",
)
"""The columns of the summary table."""
