"""Confidence intervals of one number per trial.

Times and rates are positive and their noise is multiplicative, so intervals are made on the log scale: for
x_1…x_n with logs y_i, mean m and standard deviation s, the interval is exp(m ± t_(n-1) · s / √n) around the geometric
mean exp(m) (Student 1908; coverage at n = 3, 5 and 8 is pinned by a test). The percentile bootstrap is not used:
at n = 3 its 95 % interval covers 79 %.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from results.statistics.distributions import t_quantile


class Interval(msgspec.Struct, frozen=True):
    """A centre with its bounds, in the unit of the values.

    Attributes:
        centre: the geometric mean (arithmetic where a value was zero or below).
        low: lower bound, None when fewer than two values were given.
        high: upper bound, likewise.
        n: how many trials it rests on.
        reason: why the bounds are absent.
    """

    centre: float
    low: float | None
    high: float | None
    n: int
    reason: str | None = None


def log_t_interval(values: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Student's t interval on logs.

    Args:
        values: one number per trial; None must have been left out by the caller.
        confidence: two-sided level, 0 < c < 1.

    Returns:
        None for no values. Where a value is not positive the logs do not exist, and the plain t interval is given.
    """
    if not values:
        return None
    x = np.asarray(values, dtype=np.float64)
    logs = bool((x > 0).all())
    y = np.log(x) if logs else x
    back = math.exp if logs else float
    mean = float(y.mean())
    n = len(x)
    if n < 2:
        return Interval(back(mean), None, None, n, "one trial has no interval; raise repeats")
    half = t_quantile((1 + confidence) / 2, n - 1) * float(y.std(ddof=1)) / math.sqrt(n)
    return Interval(back(mean), back(mean - half), back(mean + half), n)
