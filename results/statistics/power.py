"""Power analysis: the smallest detectable effect, and the runs needed to detect a given effect.

The power of a two-sided t test at level alpha against an effect of δ standard errors is the probability that a
noncentral t with noncentrality δ exceeds the critical value. The smallest detectable effect has a power of 90 %. Its
standard error is itself an estimate from few runs, whose square has a χ² distribution: where it comes out small, so
does the effect, which would then be found less often. So the power is the mean over that distribution.
"""

import bisect
import functools
import math
import statistics

from bakeoff.results.statistics.distributions import chi_square_quantile, noncentral_t_tail, t_quantile
from bakeoff.results.statistics.two_sample import LARGEST_LOG, Contrast, Method, Scale

POWER = 0.9
_NODES = 16
"""Quantiles that stand for the distribution of a standard error."""
MAX_RUNS = 100
"""Limit per side; beyond it, reducing the noise is the better remedy."""


def smallest_effect(contrast: Contrast, alpha: float) -> float:
    """Smallest effect that runs like these detect with 90 % power: 0.05 is 5 %, or 5 points of a share."""
    effect = _errors_needed(round(contrast.degrees, 1), alpha) * contrast.standard_error
    return math.expm1(min(effect, LARGEST_LOG)) if contrast.scale is Scale.RATIO else effect


def runs_needed(contrast: Contrast, alpha: float, effect: float) -> int | None:
    """Runs per side needed to detect an effect with 90 % power, at the present noise.

    Args:
        contrast: contrast that gives the noise.
        alpha: two-sided level.
        effect: positive, such as 0.03.

    Returns:
        None if it exceeds :data:`MAX_RUNS`.
    """
    runs_per_side = 2 / (1 / contrast.n[0] + 1 / contrast.n[1])
    target = math.log1p(effect) if contrast.scale is Scale.RATIO else effect
    spread = contrast.standard_error * math.sqrt(runs_per_side)  # standard error with one run per side
    per_run = 1.0 if contrast.method in {Method.PAIRED, Method.PIECES} else 2.0  # degrees of freedom

    def detects(runs: int) -> bool:
        return _errors_needed(per_run * (runs - 1), alpha) * spread / math.sqrt(runs) <= target

    runs = 2 + bisect.bisect_left(range(2, MAX_RUNS + 1), True, key=detects)
    return runs if runs <= MAX_RUNS else None


@functools.lru_cache(maxsize=1024)
def _errors_needed(degrees: float, alpha: float) -> float:
    """Smallest detectable effect in estimated standard errors."""
    middles = ((i + 0.5) / _NODES for i in range(_NODES))
    errors = [math.sqrt(chi_square_quantile(middle, degrees) / degrees) for middle in middles]
    critical = t_quantile(1 - alpha / 2, degrees)
    low, high = 0.0, 4 * critical / min(errors)
    while high - low > 1e-4 * critical:
        middle = (low + high) / 2
        power = statistics.fmean(noncentral_t_tail(critical, degrees, middle * error) for error in errors)
        low, high = (middle, high) if power < POWER else (low, middle)
    return high
