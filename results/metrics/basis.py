"""Observations behind each metric: what one observation is, over which span, and how many a trial has."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from bakeoff.results.metrics import latency, throughput
from bakeoff.results.metrics.catalogue import CATALOGUE, QUANTILES
from bakeoff.results.metrics.trial import latency_observations, share_of, under_load
from bakeoff.results.records import RequestRecord, TelemetryRecord, TrialRecord


class Span(StrEnum):
    """Part of a trial over which observations are counted."""

    WINDOW = "window"
    TRIAL = "whole trial"


class Basis(msgspec.Struct, frozen=True):
    """Observations behind a metric family.

    Attributes:
        observation: what one observation is.
        span: part of the trial over which observations are counted.
    """

    observation: str
    span: Span


_REQUEST = Basis("a request planned in the window; a failed one is later than every success", Span.WINDOW)
_ENERGY = Basis("a reading of a GPU's energy counter", Span.WINDOW)
BASES: dict[str, Basis] = {
    "ttft": _REQUEST,
    "ttft_from_send": _REQUEST,
    "itl": Basis("a token after the first chunk of its answer", Span.WINDOW),
    "chunk_gap": Basis("a gap between two chunks", Span.WINDOW),
    "tpot": Basis(
        "a request planned in the window whose answer has tokens after its first chunk; or a failed one", Span.WINDOW
    ),
    "e2e": _REQUEST,
    "normalized_latency": _REQUEST,
    "send_lag": Basis("a request planned in the window that was sent", Span.WINDOW),
    "output_tokens_per_s": Basis("a token that arrived", Span.WINDOW),
    "prompt_tokens_per_s": Basis("a successful request, as its share inside", Span.WINDOW),
    "uncached_prompt_tokens_per_s": Basis("a successful request, as its share inside", Span.WINDOW),
    "requests_per_s": Basis("a successful request, as its share inside", Span.WINDOW),
    "goodput_per_s": Basis("a request planned in the window", Span.WINDOW),
    "requests_in_flight": Basis("a request that was sent, as its time inside", Span.WINDOW),
    "attainment": Basis("a request planned in the window", Span.WINDOW),
    "failures": Basis("a request planned in the window", Span.WINDOW),
    "tokens_per_chunk": Basis("a read that brought tokens, of requests planned in the window", Span.WINDOW),
    "peak_host_bytes": Basis("a sample of the engine's process tree", Span.TRIAL),
    "peak_gpu_bytes": Basis("a sample of all GPUs", Span.TRIAL),
    "foreign_cpu_share": Basis("a reading of the cores' counters", Span.WINDOW),
    "energy_per_output_token_j": _ENERGY,
    "energy_above_idle_per_output_token_j": _ENERGY,
    "energy_per_request_j": _ENERGY,
}
"""By metric family: the percentiles of one latency form a family, every other metric is its own."""


def family_of(metric: str) -> str:
    """Return the family of a metric: ``ttft_p50_s`` → ``ttft``, ``attainment`` → ``attainment``."""
    return _FAMILIES[metric]


def observation_counts(
    trial: TrialRecord, requests: Sequence[RequestRecord], telemetry: Sequence[TelemetryRecord]
) -> dict[str, int]:
    """Count a trial's observations of each family of :data:`BASES`.

    Args:
        trial: record of the trial.
        requests: decoded, warm-up included.
        telemetry: the trial's samples.
    """
    load, window, counted = under_load(requests), trial.window, share_of(trial)
    inside = throughput.planned_inside(load, window)
    successes = sum(counted(request, window) > 0 for request in load)
    gpu = [record for record in telemetry if record.source.startswith("gpu")]
    energy = sum(window.holds(record.t_ns) for record in gpu if record.values.get("energy_j") is not None)
    return {
        **{name: observations.count for name, observations in latency_observations(load, window).items()},
        "output_tokens_per_s": throughput.tokens_inside(load, window),
        "prompt_tokens_per_s": successes,
        "uncached_prompt_tokens_per_s": successes,
        "requests_per_s": successes,
        "goodput_per_s": len(inside),
        "requests_in_flight": sum(throughput.in_flight_ns(request, window) > 0 for request in load),
        "attainment": len(inside),
        "failures": len(inside),
        "tokens_per_chunk": sum(len(latency.arrivals(request)) for request in inside),
        "peak_host_bytes": sum(
            record.source == "engine" and record.values.get("rss_bytes") is not None for record in telemetry
        ),
        "peak_gpu_bytes": len({record.t_ns for record in gpu if record.values.get("memory_used_bytes") is not None}),
        "foreign_cpu_share": sum(record.source == "cpu" and window.holds(record.t_ns) for record in telemetry),
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
