"""Percentiles, given only if there are enough observations.

A tail percentile q needs the smallest n at which, were the true share below it only q, at most one observation
beyond it would be seen with probability at most 1 - 0.99 (MLPerf LoadGen's early-stopping rule with c = 0.99 and
one allowed miss): n = 64 for p90, 130 for p95, 662 for p99 and 6,636 for p99.9. A median needs :data:`MIN_MEDIAN`
observations.
"""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from bakeoff.results.metrics.values import Absence, Value, absent

MIN_MEDIAN = 3
_CONFIDENCE = 0.99


@cache
def required_count(q: float) -> int:
    """Number of observations that percentile ``q`` (0 < q < 1) needs.

    The left side of q^n + n (1-q) q^(n-1) <= 1 - c falls with n, so the smallest n is found by doubling and bisection.
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


def too_few(q: float, count: int) -> Value | None:
    """The absent value of percentile ``q`` if ``count`` observations are too few for it; None if they suffice."""
    need = required_count(q)
    if count >= need:
        return None
    return absent(f"p{q * 100:g} needs {need:,} observations, there are {count:,}", Absence.TOO_FEW)


def percentile(
    values: Sequence[float] | NDArray[np.float64], q: float, failures: int = 0, *, answers: int | None = None
) -> Value:
    """Percentile ``q`` by linear interpolation (numpy's default, type 7 of Hyndman and Fan).

    A failure is later than every success: with x_0 ≤ … ≤ x_(n-1) the successes followed by the failures, and
    h = (n - 1) q, the percentile lies between x_⌊h⌋ and x_⌈h⌉, and is absent where x_⌈h⌉ is a failure.

    Args:
        values: observations in the metric's unit: one per request, or one per token for ITL.
        q: 0 < q < 1.
        failures: requests that failed before having one.
        answers: number of answers that the observations come from, if one has several. The tokens of an answer share
            its pace, so a percentile needs as many answers as observations.

    Returns:
        the percentile, or absent as ``too_few`` or ``among_failures``.
    """
    need, count = required_count(q), len(values) + failures
    name = f"p{q * 100:g}"
    if (few := too_few(q, count)) is not None:
        return few
    if answers is not None and answers < need and q > 0.5:
        return absent(f"{name} needs tokens of {need:,} answers, there are {answers:,}", Absence.TOO_FEW)
    position = (count - 1) * q
    if math.ceil(position) >= len(values):
        return absent(f"{name} lies among the {failures:,} failed of {count:,} requests", Absence.AMONG_FAILURES)
    if not failures:
        return Value(float(np.quantile(np.asarray(values, dtype=np.float64), q)))
    lower = math.floor(position)
    below, above = np.partition(np.asarray(values, dtype=np.float64), (lower, math.ceil(position)))[
        [lower, math.ceil(position)]
    ]
    return Value(float(below + (above - below) * (position - lower)))
