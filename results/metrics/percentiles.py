"""Percentiles that are only given when the data can bear them.

A tail percentile q needs the smallest n at which, were the true share below it only q, at most one observation
beyond it would be seen with probability at most 1 - 0.99 (MLPerf LoadGen's early-stopping rule with c = 0.99 and
one allowed miss): n = 64 for p90, 130 for p95, 662 for p99 and 6,636 for p99.9. A median needs :data:`MIN_MEDIAN`
observations.
"""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from results.metrics.values import Value, absent

MIN_MEDIAN = 3
_CONFIDENCE = 0.99


@cache
def required_count(q: float) -> int:
    """Observations that percentile ``q`` (0 < q < 1) needs.

    The condition is q^n + n (1-q) q^(n-1) <= 1 - c, which falls with n, so the smallest n is found by doubling and
    bisection.
    """
    if q <= 0.5:
        return MIN_MEDIAN

    def enough(n: int) -> bool:
        return math.exp(n * math.log(q)) + n * (1 - q) * math.exp((n - 1) * math.log(q)) <= 1 - _CONFIDENCE

    high = 1
    while not enough(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def percentile(values: Sequence[float], q: float) -> Value:
    """Percentile ``q`` by linear interpolation (numpy's default, type 7 of Hyndman and Fan).

    Args:
        values: observations in the metric's unit: one per request, or one per token for ITL.
        q: 0 < q < 1.

    Returns:
        the percentile, or absent with the count that is missing.
    """
    need = required_count(q)
    if len(values) < need:
        return absent(f"p{q * 100:g} needs {need:,} observations, there are {len(values):,}")
    return Value(float(np.quantile(np.asarray(values, dtype=np.float64), q)))
