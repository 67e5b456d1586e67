"""Catalogue of metrics: name, title, unit, direction and definition, shared by tables, reports and comparisons."""

from collections.abc import Container

from bakeoff.results.metric import Better, Metric, Unit

DEFINITIONS = 3
"""Version of the definitions; values of different versions are not compared. Raise it whenever a definition changes."""


_LATENCIES = (
    ("ttft", "TTFT", "time to first token, a₁ − p, from the planned start of the request"),
    ("ttft_from_send", "TTFT from send", "a₁ − s: time to first token without the client's own waiting"),
    ("itl", "ITL", "gap between two reads spread over the tokens it delivered, one value per token, in the window"),
    ("chunk_gap", "chunk gap", "aᵢ − aᵢ₋₁ between reads that brought tokens, in the window, however many"),
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
        (
            "s − p: how late this client sent, its own error; neither a wait under max_in_flight nor the opening of a "
            "connection is counted"
        ),
    ),
)
QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))

_OTHERS = (
    Metric("output_tokens_per_s", "output", Unit.TOKENS_PER_SECOND, Better.HIGHER,
           "tokens that arrived inside the window, over its length"),
    Metric("prompt_tokens_per_s", "prompt", Unit.TOKENS_PER_SECOND, Better.HIGHER,
           "prompt tokens of successful requests, each times its share inside the window, over its length"),
    Metric("uncached_prompt_tokens_per_s", "prompt, uncached", Unit.TOKENS_PER_SECOND, Better.HIGHER,
           "the same without the tokens that came from the prefix cache"),
    Metric("requests_per_s", "requests", Unit.PER_SECOND, Better.HIGHER,
           "successful requests, each as the share of [planned, last token] inside the window, over its length"),
    Metric("goodput_per_s", "goodput", Unit.PER_SECOND, Better.HIGHER,
           "requests planned inside the window that met every bound of the SLO, over its length"),
    Metric("attainment", "attainment", Unit.SHARE, Better.HIGHER,
           "share of the requests planned inside the window that met the SLO; failures are misses"),
    Metric("requests_in_flight", "in flight", Unit.COUNT, Better.LOWER,
           "mean number of requests that were sent and had not ended, over the window; sessions that pause have none"),
    Metric("failures", "failures", Unit.COUNT, Better.LOWER,
           "requests planned inside the window that failed"),
    Metric("tokens_per_chunk", "tokens/chunk", Unit.COUNT, Better.LOWER,
           "tokens over reads that brought any; above 1 the engine groups tokens, or speculates"),
    Metric("peak_host_bytes", "peak memory", Unit.BYTES, Better.LOWER,
           "largest resident set of the engine's process tree, what its processes share counted once"),
    Metric("peak_gpu_bytes", "peak GPU memory", Unit.BYTES, Better.LOWER,
           "largest memory in use over all GPUs at one instant"),
    Metric("foreign_cpu_share", "foreign load", Unit.SHARE, Better.LOWER,
           "share of the time of all cores, over the window, that neither the engine nor the harness used"),
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

PERPLEXITY = Metric(
    "perplexity", "perplexity", Unit.COUNT, Better.LOWER, "exp of the mean of −ln p over the tokens of a text"
)
"""Metric of evaluations (``bakeoff models eval``), not of trials."""
COMPARED: dict[str, Metric] = {**CATALOGUE, PERPLEXITY.name: PERPLEXITY}
"""All metrics that a comparison can have: those of trials, and that of evaluations."""

HEADLINE = (
    "ttft_p50_s",
    "itl_p50_s",
    "tpot_p50_s",
    "output_tokens_per_s",
    "requests_per_s",
    "failures",
    "peak_host_bytes",
)
"""Columns of the summary table of a run without a GPU, and the metrics compared by default."""


def headline(known: Container[str]) -> tuple[str, ...]:
    """Return the columns of a summary table; memory is GPU memory if any engine used it.

    Args:
        known: names of metrics that any cell of the table has.
    """
    memory = "peak_gpu_bytes" if "peak_gpu_bytes" in known else "peak_host_bytes"
    return tuple(memory if name == "peak_host_bytes" else name for name in HEADLINE)
