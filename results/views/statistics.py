"""Percentiles and other statistics as computed by other tools; unlike ours, none refuses a small sample."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from bakeoff.results.metrics import Value, absent
from bakeoff.results.views.base import Figure, MetricFamily

NOTHING = "no request that the tool would have counted"


def linear(values: Sequence[float], q: float) -> float:
    """Linear interpolation between order statistics: numpy's default."""
    return float(np.quantile(np.asarray(values, dtype=np.float64), q))


def rank_of(values: Sequence[float], q: float) -> float:
    """Element ``min(floor(n q), n - 1)`` of the sorted sample, counted from 0."""
    return sorted(values)[min(len(values) - 1, math.floor(len(values) * q))]


def standard_deviation(values: Sequence[float]) -> float:
    """Standard deviation with divisor n: numpy's default."""
    return float(np.std(np.asarray(values, dtype=np.float64)))


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean."""
    return float(np.mean(np.asarray(values, dtype=np.float64)))


def stat_of(values: Sequence[float], stat: str) -> float:
    """One statistic by its name: ``mean``, ``std``, ``min``, ``max``, or ``p50``, ``p99``… (linear).

    Raises:
        ValueError: the sample is empty.
    """
    simple = {"mean": mean, "std": standard_deviation, "min": min, "max": max}
    return float(simple[stat](values)) if stat in simple else linear(values, float(stat[1:]) / 100)


def spread(
    family: MetricFamily, unit: str, values: Sequence[float], names: Mapping[str, str], factor: float = 1.0
) -> dict[str, Figure]:
    """Figures of one distribution with numpy's statistics.

    Args:
        family: what it measures.
        unit: of the figures.
        values: observations.
        names: statistic → its name in the tool.
        factor: from the unit of ``values`` to ``unit``.
    """
    return {
        name: Figure(family, stat, unit, Value(stat_of(values, stat) * factor) if values else absent(NOTHING))
        for stat, name in names.items()
    }


def milliseconds(name: str, family: MetricFamily, values_s: Sequence[float]) -> dict[str, Figure]:
    """A latency as vLLM bench and SGLang print it, from ``Mean TTFT (ms)`` to ``P99 TTFT (ms)``.

    vLLM prints mean, median and the percentiles asked for, and stores the standard deviation.

    Args:
        name: of the latency in the tool.
        family: what it measures.
        values_s: observations, in seconds.
    """
    prefixes = {"mean": "Mean", "p50": "Median", "std": "Std", "p90": "P90", "p95": "P95", "p99": "P99"}
    return spread(family, "ms", values_s, {stat: f"{prefix} {name} (ms)" for stat, prefix in prefixes.items()}, 1e3)


def single(family: MetricFamily, unit: str, value: float | None, reason: str = NOTHING) -> Figure:
    """A figure without a distribution; absent for ``reason`` without a value."""
    return Figure(family, "", unit, absent(reason) if value is None else Value(float(value)))


def rate(count: float, duration_s: float) -> float | None:
    """Count divided by duration; None for a duration of 0."""
    return count / duration_s if duration_s > 0 else None
