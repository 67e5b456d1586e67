"""How small an effect the data could have shown, and how many runs another one would take.

A two-sided test at level alpha sees an effect of δ standard errors with the probability that a noncentral t with that
centre lies beyond the critical value; the smallest effect is the δ at which that is 90 %.
"""

import functools
import math

from results.statistics.distributions import noncentral_t_tail, t_quantile
from results.statistics.two_sample import Contrast, Method, Scale

POWER = 0.9
MAX_RUNS = 100
"""Of a side; who needs more has to look for the noise instead."""


def smallest_effect(found: Contrast, alpha: float) -> float:
    """The smallest change, as a share, that runs like these show in 9 of 10 cases; 0.05 is 5 %, or 5 points."""
    effect = _errors_needed(round(found.degrees, 1), alpha) * found.standard_error
    return math.expm1(effect) if found.scale is Scale.RATIO else effect


def runs_needed(found: Contrast, alpha: float, effect: float) -> int | None:
    """Runs of each side that show an effect of this share in 9 of 10 cases, if the noise stays as it is.

    Args:
        found: with the noise.
        alpha: two-sided level.
        effect: above 0, such as 0.03.

    Returns:
        None where it is more than :data:`MAX_RUNS`.
    """
    here = 2 / (1 / found.n[0] + 1 / found.n[1])
    wanted = math.log1p(effect) if found.scale is Scale.RATIO else effect
    spread = found.standard_error * math.sqrt(here)  # what one run of each side is uncertain by
    per_run = 1.0 if found.method is Method.PAIRED else 2.0  # degrees of freedom
    for runs in range(2, MAX_RUNS + 1):
        if _errors_needed(per_run * (runs - 1), alpha) * spread / math.sqrt(runs) <= wanted:
            return runs
    return None


@functools.lru_cache(maxsize=1024)
def _errors_needed(degrees: float, alpha: float) -> float:
    """How many standard errors an effect must have."""
    critical = t_quantile(1 - alpha / 2, degrees)
    low, high = 0.0, 4 * critical
    while high - low > 1e-4 * critical:
        middle = (low + high) / 2
        low, high = (middle, high) if noncentral_t_tail(critical, degrees, middle) < POWER else (low, middle)
    return high
