"""Boschloo's exact test (1970) of two counts: whether B fails more of its trials than A.

Fisher's p value orders the possible outcomes by how much they speak against B. The p value is the probability of an
outcome at least as extreme, if both sides fail at the same rate, for the rate at which this probability is largest.
It never exceeds Fisher's: of eight trials, three failures against none are significant at 5 % instead of four.
"""

import functools
import math

import numpy as np

from bakeoff.results.statistics.power import MAX_RUNS

Count = tuple[int, int]
"""Failures and trials."""

_RATES = np.linspace(0, 1, 201)[1:-1]
_ROUNDING = 1e-9


@functools.lru_cache(maxsize=4096)
def boschloo(a: Count, b: Count) -> float:
    """One-sided p value of B's failures against A's."""
    (failed_a, n_a), (failed_b, n_b) = a, b
    if failed_b * n_a <= failed_a * n_b:
        return 1.0
    fisher = _fisher(n_a, n_b)
    is_extreme = fisher <= fisher[failed_a, failed_b] * (1 + _ROUNDING)
    return float(((_binomial(n_a) @ is_extreme) * _binomial(n_b)).sum(axis=1).max())


def trials_needed(a: Count, b: Count, level: float) -> int | None:
    """How many trials of each side would be significant if their shares of failures stay as they are.

    Args:
        a: of the baseline.
        b: of the candidate.
        level: one-sided.

    Returns:
        None if it exceeds :data:`~bakeoff.results.statistics.power.MAX_RUNS`, or a side has no trial.
    """
    if not a[1] or not b[1]:
        return None
    for trials in range(min(a[1], b[1]) + 1, MAX_RUNS + 1):
        failed_a, failed_b = (round(failed / whole * trials) for failed, whole in (a, b))
        if boschloo((failed_a, trials), (failed_b, trials)) <= level:
            return trials
    return None


def _fisher(n_a: int, n_b: int) -> np.ndarray:
    """Fisher's one-sided p value of every outcome, shape (A's failures, B's failures)."""
    of_both = _log_choices(n_a)[:, None] + _log_choices(n_b)[None, :]
    together = np.add.outer(np.arange(n_a + 1), np.arange(n_b + 1))
    p_values = np.exp(of_both - _log_choices(n_a + n_b)[together])
    for failed in range(1, n_a + 1):  # one failure moved from A to B is the next more extreme outcome
        p_values[failed, :-1] += p_values[failed - 1, 1:]
    return p_values


def _binomial(n: int) -> np.ndarray:
    """Probability of every count at every rate, shape (rates, counts)."""
    counts = np.arange(n + 1)
    return np.exp(_log_choices(n) + np.log(_RATES)[:, None] * counts + np.log1p(-_RATES)[:, None] * (n - counts))


def _log_choices(n: int) -> np.ndarray:
    logs = np.array([math.lgamma(k + 1) for k in range(n + 1)])
    return logs[n] - logs - logs[::-1]
