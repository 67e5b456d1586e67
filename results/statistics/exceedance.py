"""The load at which a given share of requests exceeds a bound, from counts of several trials.

A percentile of one window is a poor witness near the capacity: requests wait in clusters, so most windows have few late
requests and some have many, and the majority of windows meets a bound that the long run misses. The share of late
requests, pooled over trials, has the right mean at any length of the window. It is modelled as

    logit P(late | load x) = logit p + s · d · e^d,  d = log x − θ,

where p is the allowed share, θ the log of the capacity and s the slope there, which grows with the load: a part of the
requests is late at any load, and P(late) of queues falls with the exponential of the load that is left. That holds only
near the capacity. A trial that lies further away than :data:`_BAND` says that the share there is at least, or at most,
what a slope of :data:`_FAR_SLOPE` leads to: 69 of 188 late at 12 exclude a capacity of 53, and leave the slope near it
alone.

Requests of a trial are not independent: in queues a window without any late request, and one with late ones only, are
both common at one load. The likelihood is a quasi-likelihood (McCullagh and Nelder, Generalized Linear Models, 1989,
ch. 9), so that only mean and variance of the counts matter. Their variance is φ times that of independent requests at
the capacity, and grows with the root of the share beyond that, as it does in queues with one to eight servers. φ has a
scaled inverse χ² prior with :data:`_PRIOR_FREEDOM` degrees of freedom, so that few trials have an interval and many
tell it themselves. Its scale is how late requests cluster within trials (the integrated autocorrelation time of their
series), times :data:`_UNSEEN`, since windows of queues show a quarter to two thirds of it. The interval of θ has the
posterior between its ends, with φ and s integrated out: a Student's t in the deviance. ``benchmarks/truth/capacity.py``
measures bias, coverage and width.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

_BAND, _FAR_SLOPE = 0.3, 3.0
"""Largest log distance from the capacity at which the model holds, and its least slope beyond."""
_SLOPES = np.exp(np.linspace(math.log(2.5), math.log(400.0), 18))
_SLOPE_PRIOR = -np.log1p(((np.log(_SLOPES) - math.log(9.0)) / 0.7) ** 2)
"""Log prior of s, of Cauchy: 5 to 10 for queues with one to eight servers at 60 to 95 % of their capacity, and far
more where every request has the same latency, so that all are late or none."""
_PRIOR_FREEDOM, _UNSEEN, _LEAST_DISPERSION = 4.0, 3.0, 8.0
"""In windows of 30 s, φ is 13 (M/D/8), 23 (M/M/8) or 32 (M/M/4), and 8 to 9 within them."""
_LEAST_GROWTH = 0.3
"""Least dispersion over φ in the prior's scale: that at a tenth of the allowed share."""
_PLATEAU = 0.05
"""Loads whose log posterior is this near to the maximum are equally good."""
_ROUNDING = 1e-6
_Floats = NDArray[np.float64]


class Counted(msgspec.Struct, frozen=True):
    """One trial.

    Attributes:
        level: its load.
        late: how many of its requests or tokens exceeded the bound.
        total: how many there were.
        clustered: how many times as much ``late`` varies as if they were independent; 1 if that is not known.
    """

    level: float
    late: int
    total: int
    clustered: float = 1.0


class Threshold(msgspec.Struct, frozen=True):
    """Log load at which the allowed share is late, and its interval."""

    low: float
    middle: float
    high: float
    near: int
    """Trials near it."""


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
    log = _log_posterior(trials, allowed, grid)
    posterior, profile = np.exp(log).sum(axis=1), log.max(axis=1)
    best = grid[profile >= -_PLATEAU]  # between a load without late requests and one with late ones only
    middle = float(best[0] + best[-1]) / 2
    below = np.cumsum(posterior) / posterior.sum()
    ends = (alpha / 2, 1 - alpha / 2)
    lower, upper = (float(grid[min(int(np.searchsorted(below, q)), len(grid) - 1)]) for q in ends)
    near = sum(abs(math.log(trial.level) - middle) <= _BAND for trial in trials)
    return Threshold(min(lower - step / 2, middle), middle, max(upper + step / 2, middle), near)


def _log_posterior(trials: Sequence[Counted], allowed: float, grid: _Floats) -> _Floats:
    """Log posterior of the thresholds of a grid and of slopes, of which the greatest is 0: [thresholds, slopes]."""
    names = ("level", "late", "total", "clustered")
    level, late, total, clustered = (np.array([getattr(trial, name) for trial in trials], np.float64) for name in names)
    share = _shares(level, late / total, allowed, grid)
    scale = max(_LEAST_DISPERSION, _UNSEEN * _clustered_at(late, total, clustered, allowed))
    seen = np.clip(late / total, _ROUNDING, 1 - _ROUNDING)
    deviance = 2 * total * (_quasi_likelihood(seen, seen) - _quasi_likelihood(seen, share)) * math.sqrt(allowed)
    spread = np.log1p(deviance.sum(axis=2) / (_PRIOR_FREEDOM * scale))
    log = _SLOPE_PRIOR - (_PRIOR_FREEDOM + len(trials)) * spread / 2
    return log - log.max()


def _shares(level: _Floats, seen: _Floats, allowed: float, grid: _Floats) -> _Floats:
    """The shares that the model expects in trials: [thresholds, slopes, trials].

    Args:
        level: loads of the trials.
        seen: their shares.
        allowed: the share at the threshold.
        grid: log thresholds.
    """
    from scipy.special import expit, logit  # noqa: PLC0415  (scipy costs 0.2 s; --help must not pay)

    distance = np.log(level)[None, :] - grid[:, None]
    near = np.clip(distance, -_BAND, _BAND)
    rise = _SLOPES[None, :, None] * (near * np.exp(near))[:, None, :] + _FAR_SLOPE * (distance - near)[:, None, :]
    share = expit(logit(allowed) + rise)
    share = np.where((distance > _BAND)[:, None, :], np.maximum(share, seen), share)
    share = np.where((distance < -_BAND)[:, None, :], np.minimum(share, seen), share)
    return np.clip(share, _ROUNDING, 1 - _ROUNDING)


def _growth(share: _Floats, allowed: float) -> _Floats:
    """Dispersion at shares, over that at the capacity."""
    return np.maximum(np.sqrt(share / allowed), _LEAST_GROWTH)


def _clustered_at(late: _Floats, total: _Floats, clustered: _Floats, allowed: float) -> float:
    """How clustered late requests are at the capacity; trials tell as much as the variance that their counts have."""
    weight = late * (1 - late / total)
    if not weight.any():
        return 1.0
    return float(np.average(clustered / _growth(late / total, allowed), weights=weight))


def _quasi_likelihood(seen: _Floats, share: _Floats) -> _Floats:
    """How well a share agrees with the seen one: the integral of (seen − p) / (p^1.5 (1 − p)) over p up to it."""
    root = np.sqrt(share)
    return 2 * (seen * (np.arctanh(root) - 1 / root) - np.arctanh(root))
