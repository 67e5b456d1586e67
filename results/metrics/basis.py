"""What each metric rests on: what one observation of it is, where it is counted, and how many a trial has."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from results.metrics import throughput
from results.metrics.catalogue import CATALOGUE, QUANTILES
from results.metrics.trial import latency_observations, measured_only
from results.metrics.window import Window
from results.records import RequestRecord, TelemetryRecord


class Span(StrEnum):
    """Which part of a trial is looked at."""

    WINDOW = "steady window"
    MEASURED = "all measured requests"
    TRIAL = "whole trial"


class Basis(msgspec.Struct, frozen=True):
    """What a family of metrics rests on.

    Attributes:
        one: what one observation is.
        span: where observations are counted.
    """

    one: str
    span: Span


_ANSWER = Basis("a request that ended ok with a token", Span.MEASURED)
_REQUEST = Basis("a measured request", Span.MEASURED)
_ENERGY = Basis("a reading of a GPU's energy counter", Span.WINDOW)
BASES: dict[str, Basis] = {
    "ttft": _ANSWER,
    "ttft_from_send": Basis("a request that ended ok and was stamped when it was sent", Span.MEASURED),
    "itl": Basis("a token after the first chunk of its answer", Span.WINDOW),
    "chunk_gap": Basis("a gap between two chunks", Span.WINDOW),
    "tpot": Basis("a request that ended ok with tokens after its first chunk", Span.MEASURED),
    "e2e": _ANSWER,
    "normalized_latency": _ANSWER,
    "send_lag": Basis("a request that was sent", Span.MEASURED),
    "output_tokens_per_s": Basis("a token that arrived", Span.WINDOW),
    "prompt_tokens_per_s": Basis("a request whose first token arrived", Span.WINDOW),
    "requests_per_s": Basis("a request whose last token arrived", Span.WINDOW),
    "goodput_per_s": Basis("a request that was planned", Span.WINDOW),
    "attainment": _REQUEST,
    "failures": _REQUEST,
    "tokens_per_chunk": Basis("a token-bearing chunk", Span.MEASURED),
    "peak_host_bytes": Basis("a sample of the engine's process tree", Span.TRIAL),
    "peak_gpu_bytes": Basis("a sample of all GPUs", Span.TRIAL),
    "energy_per_output_token_j": _ENERGY,
    "energy_above_idle_per_output_token_j": _ENERGY,
    "energy_per_request_j": _ENERGY,
}
"""By family: the percentiles of one latency are one family, every other metric is its own."""


def family_of(metric: str) -> str:
    """The family of a metric: ``ttft_p50_s`` → ``ttft``, ``attainment`` → ``attainment``."""
    return _FAMILIES[metric]


def observation_counts(
    requests: Sequence[RequestRecord], telemetry: Sequence[TelemetryRecord], window: Window
) -> dict[str, int]:
    """How many observations one trial has of each family of :data:`BASES`.

    Args:
        requests: decoded, warm-up included.
        telemetry: the trial's samples.
        window: its steady window.
    """
    measured = measured_only(requests)
    gpu = [record for record in telemetry if record.source.startswith("gpu")]
    energy = sum(window.holds(record.t_ns) for record in gpu if record.values.get("energy_j") is not None)
    return {
        **{name: len(values) for name, values in latency_observations(measured, window).items()},
        "output_tokens_per_s": throughput.tokens_inside(measured, window),
        "prompt_tokens_per_s": len(throughput.begun_inside(measured, window)),
        "requests_per_s": len(throughput.done_inside(measured, window)),
        "goodput_per_s": len(throughput.planned_inside(measured, window)),
        "attainment": len(measured),
        "failures": len(measured),
        "tokens_per_chunk": sum(len(request.chunk_ns) for request in measured),
        "peak_host_bytes": sum(
            record.source == "engine" and record.values.get("rss_bytes") is not None for record in telemetry
        ),
        "peak_gpu_bytes": len({record.t_ns for record in gpu if record.values.get("memory_used_bytes") is not None}),
        **dict.fromkeys((name for name, basis in BASES.items() if basis is _ENERGY), energy),
    }


_FAMILIES = {
    **{name: name for name in CATALOGUE if name in BASES},
    **{
        f"{family}_{label}_s": family
        for family in BASES
        for label, _ in QUANTILES
        if f"{family}_{label}_s" in CATALOGUE
    },
}
