"""The load at which a given share of requests exceeds a bound, from counts of several trials.

A percentile of one window is a poor witness near the capacity: requests wait in clusters, so most windows have few late
requests and some have many, and the majority of windows meets a bound that the long run misses. The share of late
requests, pooled over trials, has the right mean at any length of the window. It is modelled as

    logit P(late | load x) = logit p + s · (log x − θ),

where p is the allowed share, θ the log of the capacity and s the slope. Requests of a trial are not independent, so the
likelihood is a quasi-likelihood: the binomial log likelihood over the dispersion φ, Pearson's χ² per degree of freedom
(McCullagh and Nelder, Generalized Linear Models, 1989, sections 4.5 and 9.2). Queues are more dispersed the closer they
are to the capacity, so each trial counts in φ as much as it informs about the threshold: by its binomial variance. The
interval of θ is that of the profile likelihood, with Student's t for the estimated φ. The logit is straight only near
the capacity, so trials further away than :data:`_BAND` do not count once nearer ones exist.
``benchmarks/truth/capacity.py`` measures bias and coverage.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from bakeoff.results.statistics.distributions import t_quantile

_BAND = 0.3
"""Largest log distance of a trial from the capacity."""
_MIN_TRIALS = 3
_SLOPES = np.exp(np.linspace(math.log(1.5), math.log(60.0), 40))
_SLOPE_PRIOR = -0.5 * ((np.log(_SLOPES) - math.log(9.0)) / 0.9) ** 2
"""Log prior of s: 8 to 10 for queues with one to sixteen servers at 60 to 95 % of their capacity."""
_WIDENED = 0.6
"""The interval uses this part of alpha: the search stops when the interval happens to be narrow (Chow and Robbins
1965), and the dispersion of few trials is estimated too small more often than too large."""
_MIN_VARIANCE = 0.3
"""Least binomial variance of a trial in Pearson's χ²: one late request where none is expected is no outlier."""
_PLATEAU = 0.05
"""Loads whose log likelihood is this near to the maximum are equally good."""
_Floats = NDArray[np.float64]


class Counted(msgspec.Struct, frozen=True):
    """One trial: its load, and how many of its requests or tokens exceeded the bound."""

    level: float
    late: int
    total: int


class Threshold(msgspec.Struct, frozen=True):
    """Log load at which the allowed share is late, and its interval."""

    low: float
    middle: float
    high: float
    near: int
    """Trials that decided it."""


def threshold(
    trials: Sequence[Counted], allowed: float, *, low: float, high: float, step: float, alpha: float = 0.05
) -> Threshold:
    """Estimate the threshold.

    Args:
        trials: at least one.
        allowed: share that may be late, between 0 and 1.
        low: least log load considered.
        high: greatest log load considered.
        step: of the grid of log loads.
        alpha: 1 − coverage of the interval.
    """
    grid = np.arange(low, high + step, step)
    x = np.array([math.log(trial.level) for trial in trials])
    late, total = (np.array([getattr(trial, name) for trial in trials], dtype=np.float64) for name in ("late", "total"))
    used = np.arange(len(x))
    while True:  # fewer trials each time
        profile, middle, freedom = _profile(x[used], late[used], total[used], allowed, grid)
        near = _near(x[used], middle)
        if near.all():
            break
        used = used[near]
    inside = np.flatnonzero(profile >= profile.max() - _critical(freedom, alpha))
    return Threshold(float(grid[inside[0]]), middle, float(grid[inside[-1]]), len(used))


def _profile(x: _Floats, late: _Floats, total: _Floats, allowed: float, grid: _Floats) -> tuple[_Floats, float, float]:
    """Profile of the quasi-likelihood over the grid, its maximum, and the degrees of freedom of the dispersion."""
    from scipy.special import expit, logit  # noqa: PLC0415  (scipy costs 0.2 s; --help must not pay)

    logits = logit(allowed) + _SLOPES[None, :, None] * (x[None, None, :] - grid[:, None, None])
    share = np.clip(expit(logits), 1e-9, 1 - 1e-9)
    likelihood = (late * np.log(share) + (total - late) * np.log1p(-share)).sum(axis=2)
    most = total * (allowed * (1 - allowed))
    penalised, freedom = likelihood + _SLOPE_PRIOR, 1.0
    for _ in range(3):  # the dispersion at the maximum, which hardly depends on the dispersion
        at, slope = np.unravel_index(int(penalised.argmax()), penalised.shape)
        expected = total * share[at, slope]
        variance = np.maximum(expected * (1 - share[at, slope]), _MIN_VARIANCE)
        weight = np.minimum(variance, most)
        count = float(weight.sum() ** 2 / (weight**2).sum())  # Kish's effective number of trials
        freedom = max(1.0, count - 2)
        chi_squared = count * float((weight * (late - expected) ** 2 / variance).sum() / weight.sum())
        penalised = likelihood / max(1.0, chi_squared / freedom) + _SLOPE_PRIOR
    profile = penalised.max(axis=1)
    best = grid[profile >= profile.max() - _PLATEAU]  # between a load without late requests and one with late ones only
    return profile, float(best[0] + best[-1]) / 2, freedom


def _near(x: _Floats, middle: float) -> NDArray[np.bool_]:
    distance = np.abs(x - middle)
    near = distance <= _BAND
    if near.sum() < _MIN_TRIALS:
        near = distance <= np.sort(distance)[min(_MIN_TRIALS, len(x)) - 1]
    return near


def _critical(freedom: float, alpha: float) -> float:
    return 0.5 * t_quantile(1 - _WIDENED * alpha / 2, freedom) ** 2
