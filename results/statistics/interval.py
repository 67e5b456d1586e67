"""Confidence intervals of one value per trial; and, without trials, of means over groups and of shares.

Times and rates are positive and their noise is multiplicative, so intervals are computed on the log scale: for
x_1…x_n with logs y_i, mean m and standard deviation s, the interval is exp(m ± t_(n-1) · s / √n) around the geometric
mean exp(m) (Student 1908; coverage at n = 3, 5 and 8 is pinned by a test). The percentile bootstrap is not used:
at n = 3 its 95 % interval covers 79 %.

A share has no log at 0 and is as noisy at 99 % as at 1 %, so its interval is Student's on the values themselves.
Bounds are clipped to possible values: shares to 0…1, other non-negative values to 0 or above.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

import msgspec
import numpy as np

from bakeoff.results.metric import Unit
from bakeoff.results.statistics.distributions import t_quantile


class Interval(msgspec.Struct, frozen=True):
    """A confidence interval in the unit of the values.

    Attributes:
        centre: geometric mean (arithmetic for shares, and if a value is not positive).
        low: lower bound; None for fewer than three trials.
        high: upper bound; None for fewer than three trials.
        n: number of trials, groups or cases.
        reason: why the bounds are absent.
        pair: smaller and larger value of two trials, whose interval would be 13 standard errors wide on each side.
    """

    centre: float
    low: float | None
    high: float | None
    n: int
    reason: str | None = None
    pair: tuple[float, float] | None = None


def interval_of(unit: Unit, values: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Interval of one metric over trials.

    Args:
        unit: of the metric; shares are not log-transformed.
        values: one per trial.
        confidence: two-sided level, 0 < c < 1.

    Returns:
        None without values.
    """
    if unit is not Unit.SHARE:
        return log_t_interval(values, confidence)
    interval = _t_interval(values, confidence) if values else None
    if interval is None or interval.low is None or interval.high is None:
        return interval
    return msgspec.structs.replace(interval, low=max(0.0, interval.low), high=min(1.0, interval.high))


def log_t_interval(values: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Student's t interval of the logs.

    Args:
        values: one per trial.
        confidence: two-sided level, 0 < c < 1.

    Returns:
        None without values. If a value is not positive, the t interval of the values themselves; its lower bound is
        clipped to 0 if no value is negative.
    """
    if not values:
        return None
    if min(values) > 0:
        logs = _t_interval([math.log(value) for value in values], confidence)
        low, high = (None if bound is None else math.exp(bound) for bound in (logs.low, logs.high))
        pair = _pair(values) if logs.pair else None
        return msgspec.structs.replace(logs, centre=math.exp(logs.centre), low=low, high=high, pair=pair)
    interval = _t_interval(values, confidence)
    if min(values) < 0 or interval.low is None:
        return interval
    return msgspec.structs.replace(interval, low=max(0.0, interval.low))


def _t_interval(values: Sequence[float], confidence: float) -> Interval:
    x = np.asarray(values, dtype=np.float64)
    mean, n = float(x.mean()), len(x)
    if n < 2:
        return Interval(mean, None, None, n, "one trial has no interval; three or more give one")
    if n == 2:
        return Interval(mean, None, None, n, "two trials, both shown; three or more give an interval", _pair(values))
    half = t_quantile((1 + confidence) / 2, n - 1) * float(x.std(ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def _pair(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def ratio_interval(sums: Sequence[float], sizes: Sequence[float], confidence: float = 0.95) -> Interval:
    """Student's t interval of a mean over items that come in independent groups, such as tokens in pieces of a text.

    The centre is R = Σ sums / Σ sizes. Its standard error comes from the residuals d = sum − R · size of the n groups:
    √(n / (n − 1) · Σ d²) / Σ sizes (Cochran: Sampling Techniques, 3rd ed. 1977, section 6.4). For groups of one size,
    this is the t interval of their means.

    Args:
        sums: sum over the items of each group; at least one group.
        sizes: number of items of each group, positive.
        confidence: two-sided level, 0 < c < 1.
    """
    numerators, denominators = np.asarray(sums, dtype=np.float64), np.asarray(sizes, dtype=np.float64)
    total, n = float(denominators.sum()), len(numerators)
    centre = float(numerators.sum()) / total
    if n < 2:
        return Interval(centre, None, None, n, "one group has no interval")
    half = t_quantile((1 + confidence) / 2, n - 1) * ratio_error(sums, sizes)
    return Interval(centre, centre - half, centre + half, n)


def ratio_error(sums: Sequence[float], sizes: Sequence[float]) -> float:
    """Standard error of the mean of :func:`ratio_interval`; arguments as there, at least two groups."""
    numerators, denominators = np.asarray(sums, dtype=np.float64), np.asarray(sizes, dtype=np.float64)
    total, n = float(denominators.sum()), len(numerators)
    residuals = numerators - float(numerators.sum()) / total * denominators
    return math.sqrt(n / (n - 1) * float(residuals @ residuals)) / total


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Score interval of a share of independent cases (Wilson, JASA 22 (1927), 209-212).

    Args:
        successes: 0 to n.
        n: cases, at least 1.
        confidence: two-sided level, 0 < c < 1.
    """
    share = successes / n
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    weight = 1 + z * z / n
    middle = (share + z * z / (2 * n)) / weight
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / weight
    # At 0 and n successes a bound is the share itself, but for rounding.
    low, high = (0.0 if not successes else middle - half), (1.0 if successes == n else middle + half)
    return Interval(share, max(0.0, low), min(1.0, high), n)


def reciprocal(interval: Interval) -> Interval:
    """Interval of 1 / x for x > 0. The bounds swap; a lower bound that is not positive gives no upper bound."""
    low = None if interval.high is None else 1 / interval.high
    high = None if interval.low is None or interval.low <= 0 else 1 / interval.low
    pair = (1 / interval.pair[1], 1 / interval.pair[0]) if interval.pair and interval.pair[0] > 0 else None
    return Interval(1 / interval.centre, low, high, interval.n, interval.reason, pair)
