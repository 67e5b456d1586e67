"""Confidence intervals of one number per trial.

Times and rates are positive and their noise is multiplicative, so intervals are made on the log scale: for
x_1…x_n with logs y_i, mean m and standard deviation s, the interval is exp(m ± t_(n-1) · s / √n) around the geometric
mean exp(m) (Student 1908; coverage at n = 3, 5 and 8 is pinned by a test). The percentile bootstrap is not used:
at n = 3 its 95 % interval covers 79 %.

A share has no logs at 0 and is as noisy at 99 % as at 1 %, so its interval is Student's on the values themselves.
Bounds that no value can have are cut off: a share lies between 0 and 1, and what is never negative stays at or above 0.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from results.metrics.catalogue import Unit
from results.statistics.distributions import t_quantile


class Interval(msgspec.Struct, frozen=True):
    """A centre with its bounds, in the unit of the values.

    Attributes:
        centre: the geometric mean (arithmetic of shares, and where a value was zero or below).
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


def interval_of(unit: Unit, values: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """The interval of one metric over trials.

    Args:
        unit: of the metric; shares are never taken to logs.
        values: one number per trial.
        confidence: two-sided level, 0 < c < 1.

    Returns:
        None for no values.
    """
    if unit is not Unit.SHARE:
        return log_t_interval(values, confidence)
    found = _t_interval(values, confidence) if values else None
    if found is None or found.low is None or found.high is None:
        return found
    return msgspec.structs.replace(found, low=max(0.0, found.low), high=min(1.0, found.high))


def log_t_interval(values: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Student's t interval on logs.

    Args:
        values: one number per trial; None must have been left out by the caller.
        confidence: two-sided level, 0 < c < 1.

    Returns:
        None for no values. Where a value is not positive the logs do not exist, and the plain t interval is given; its
        lower bound is 0 or more where all values are.
    """
    if not values:
        return None
    if min(values) > 0:
        logs = _t_interval([math.log(value) for value in values], confidence)
        low, high = (None if bound is None else math.exp(bound) for bound in (logs.low, logs.high))
        return msgspec.structs.replace(logs, centre=math.exp(logs.centre), low=low, high=high)
    found = _t_interval(values, confidence)
    if min(values) < 0 or found.low is None:
        return found
    return msgspec.structs.replace(found, low=max(0.0, found.low))


def _t_interval(values: Sequence[float], confidence: float) -> Interval:
    x = np.asarray(values, dtype=np.float64)
    mean, n = float(x.mean()), len(x)
    if n < 2:
        return Interval(mean, None, None, n, "one trial has no interval; raise repeats")
    half = t_quantile((1 + confidence) / 2, n - 1) * float(x.std(ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def reciprocal(interval: Interval) -> Interval:
    """The interval of 1 / x for x > 0: the bounds change places, and one at or below zero has no reciprocal."""
    low = None if interval.high is None else 1 / interval.high
    high = None if interval.low is None or interval.low <= 0 else 1 / interval.low
    return Interval(1 / interval.centre, low, high, interval.n, interval.reason)
