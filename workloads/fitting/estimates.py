"""Estimators for arrival processes: maximum likelihood, moments, and dispersion at several scales."""

import math
from collections.abc import Callable, Mapping

import numpy as np
from scipy import special

from bakeoff.workloads.arrivals.gaps import LEAST_BURSTINESS
from bakeoff.workloads.fitting.samples import Floats
from bakeoff.workloads.fitting.starts import WINDOW_S, Arrivals

_MOST_BURSTINESS = 1e4
_FEWEST_IN_MEMORY = 20
"""Arrivals within a drift's memory, at least; a faster drift counts as burstiness."""
_FEWEST_ARRIVALS = 10
"""Arrivals in a window, at least, so that single gaps do not dominate it."""
_SHORTEST_MEMORY_S, _SHORTEST_MEMORY, _LONGEST_MEMORY = 5.0, 1 / 300, 1 / 6
"""The latter two as fractions of the trace's length. Slower drift cannot be estimated from one trace."""
_STEPS = np.linspace(0.0, 1.0, 201)
_MIDDLES = (_STEPS[1:] + _STEPS[:-1]) / 2
_ROUNDS = 4


def moment_burstiness(gaps_s: Floats) -> float:
    """1/CV² of the gaps."""
    variance = float(gaps_s.var())
    return _bounded(float(gaps_s.mean()) ** 2 / variance if variance else math.inf)


def gamma_burstiness(gaps_s: Floats) -> float:
    """Maximum-likelihood shape of Gamma gaps."""
    gaps = _positive(gaps_s)
    target = math.log(gaps.mean()) - float(np.log(gaps).mean())
    return _bounded(_root(lambda shape: math.log(shape) - float(special.digamma(shape)) - target))


def weibull_burstiness(gaps_s: Floats) -> float:
    """1/CV² of the maximum-likelihood Weibull gaps."""
    gaps = _positive(gaps_s)
    logs = np.log(gaps / gaps.max())

    def excess(shape: float) -> float:
        weights = np.exp(shape * logs)
        return 1 / shape + float(logs.mean()) - float((weights * logs).sum() / weights.sum())

    shape = _root(excess)
    return _bounded(1 / math.expm1(min(math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape), 700.0)))


def drift_options(arrivals: Arrivals) -> Mapping[str, float] | None:
    """``sigma``, ``memory_s`` and ``burstiness`` of a drifting rate, or None if the trace is too short.

    Var N / E N of a window w is 1/b + rate·w·v(w), where v(w) is the variance of the relative rate's mean over w. The
    trace itself cannot show the variance of its own mean, v(span); half of it is subtracted, because the preset will
    run longer than the trace. Burstiness is that of five-minute windows, corrected for drift within them.
    """
    rate, span_s = arrivals.rate_per_s, arrivals.stretch_s
    dispersions = {
        window_s: value
        for window_s, value in arrivals.dispersions.items()
        if value > 0 and window_s * rate >= _FEWEST_ARRIVALS
    }
    if len(dispersions) < 2:
        return None
    cv = arrivals.window_cv or arrivals.gap_cv or 1.0
    windows_s = np.array([*dispersions, span_s, WINDOW_S if arrivals.window_cv else span_s], float)
    sigmas = np.geomspace(0.01, 2.0, 64)
    shortest_s = max(_SHORTEST_MEMORY_S, span_s * _SHORTEST_MEMORY, _FEWEST_IN_MEMORY / rate)
    memories_s = np.geomspace(shortest_s, max(shortest_s, span_s * _LONGEST_MEMORY), 32)
    *rises, lost, inside = np.moveaxis(_mean_variances(windows_s, sigmas, memories_s), -1, 0)
    squared_cv, best = cv * cv, (0, 0)
    for _ in range(_ROUNDS):
        error = np.zeros(lost.shape)
        for (window_s, value), rise in zip(dispersions.items(), rises, strict=True):
            expected = squared_cv + rate * window_s * (rise - lost / 2)
            error += (2 if window_s <= 60 else 1) * np.log(np.maximum(expected, 1e-3) / value) ** 2
        best = np.unravel_index(int(error.argmin()), error.shape)
        drifted = float(sigmas[best[0]] ** 2 - inside[best])
        squared_cv = max((1 + cv * cv) * math.exp(-max(drifted, 0.0)) - 1, 1 / _MOST_BURSTINESS)
    options = {"sigma": float(sigmas[best[0]]), "memory_s": float(memories_s[best[1]])}
    return {**options, "burstiness": _bounded(1 / squared_cv)}


def _mean_variances(windows_s: Floats, sigmas: Floats, memories_s: Floats) -> Floats:
    """Variance of the mean over a window of exp(sigma·x − sigma²/2), x an Ornstein-Uhlenbeck process.

    Returns:
        Array of shape (sigma, memory, window): 2/w² · ∫ (w − t) · (exp(sigma² · exp(−t/memory)) − 1) dt over 0…w.
    """
    correlations = np.exp(-_MIDDLES * windows_s[:, None] / memories_s[:, None, None])
    covariances = np.expm1(np.square(sigmas)[:, None, None, None] * correlations)
    return 2 * (covariances * (1 - _MIDDLES)).mean(axis=-1)


def _positive(gaps_s: Floats) -> Floats:
    """The gaps, with zeros replaced by half of the shortest positive gap."""
    return np.maximum(gaps_s, gaps_s[gaps_s > 0].min() / 2)


def _root(decreasing: Callable[[float], float]) -> float:
    """Zero of a decreasing function, by bisection from 0.001 to 10,000."""
    low, high = 1e-3, _MOST_BURSTINESS
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if decreasing(middle) > 0 else (low, middle)
    return math.sqrt(low * high)


def _bounded(burstiness: float) -> float:
    return min(max(burstiness, 10 * LEAST_BURSTINESS), _MOST_BURSTINESS)
