"""Intervals of latency percentiles over trials, where requests pile up and decay slowly.

Repeats send the same arrivals, so the spread between them does not contain the luck of those arrivals: near an engine's
capacity three repeats agree within a percent on a figure that the next hour halves or doubles. The error of one window
adds to the spread. On the log scale, percentile q of a window with m independent states has the standard error
s √(q (1 − q) / m), where s is the slope of the log quantile function at q, taken from the window, and Student's t has
m − 1 degrees of freedom. Its square and that of the half width over trials are added: repeats share the error.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from bakeoff.results.statistics.distributions import t_quantile
from bakeoff.results.statistics.interval import Interval

_BELOW, _ABOVE = 0.1, 0.05
"""The slope is taken between the percentiles this far below and above q."""
_MIN_DEGREES = 1.0


def queue_interval(
    over_trials: Interval, q: float, trials: Sequence[NDArray[np.float64]], states: float, confidence: float = 0.95
) -> Interval:
    """Widen an interval over trials by the error of their windows.

    Args:
        over_trials: of one percentile.
        q: 0 < q < 1.
        trials: observations of each trial in seconds, infinity for a failed request.
        states: independent states in a window, above 1.
        confidence: two-sided level, 0 < c < 1.

    Returns:
        the interval as given if it has no bounds, or is not of positive values.
    """
    if over_trials.low is None or over_trials.high is None or over_trials.low <= 0:
        return over_trials
    slopes = [slope for values in trials if (slope := _log_slope(values, q)) is not None]
    if not slopes:
        return msgspec.structs.replace(over_trials, low=None, high=None, reason="the upper bound lies among failures")
    quantile = t_quantile((1 + confidence) / 2, max(_MIN_DEGREES, states - 1))
    window = quantile * float(np.mean(slopes)) * math.sqrt(q * (1 - q) / states)
    half = math.hypot(window, math.log(over_trials.high / over_trials.centre))
    low, high = over_trials.centre * math.exp(-half), over_trials.centre * math.exp(half)
    return msgspec.structs.replace(over_trials, low=low, high=high)


def _log_slope(values: NDArray[np.float64], q: float) -> float | None:
    """Slope of the log quantile function at ``q``; None if it is not finite."""
    lower, upper = max(0.0, round(q - _BELOW, 9)), min(1.0, round(q + _ABOVE, 9))
    if not len(values):
        return None
    low, high = np.quantile(values, (lower, upper), method="inverted_cdf")
    return math.log(high / low) / (upper - lower) if low > 0 and math.isfinite(high) else None
