"""Renewal processes in operational time: independent gaps of mean 1, from evenly spaced to very bursty.

Burstiness is defined as in vLLM (``--burstiness``): b = 1/CV², where CV is the gaps' standard deviation over their
mean. 1 is a Poisson process, below 1 is burstier, infinity is even spacing. It is neither the index of dispersion of
counts nor the shape of a maximum-likelihood fit.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Literal

from bakeoff.workloads.rng import Rng

GapFamily = Literal["gamma", "weibull"]
LEAST_BURSTINESS = 1e-4
"""Coefficient of variation 100. Burstier gaps are all zero except for one that exceeds every load."""


def check_burstiness(burstiness: float) -> None:
    """Check that a process with this burstiness can be drawn.

    Raises:
        ValueError: ``burstiness`` is below 0.0001, or NaN.
    """
    if not burstiness >= LEAST_BURSTINESS:
        raise ValueError(f"burstiness must be at least {LEAST_BURSTINESS:g}, not {burstiness}")


def renewals(rng: Rng, burstiness: float, family: GapFamily = "gamma") -> Iterator[float]:
    """Yield the operational times of an endless stationary renewal process with gaps of mean 1.

    The first time is a residual gap: a uniform fraction of a length-biased gap (Cox, "Renewal Theory", 1962,
    chapter 5). So the expected number of arrivals in any interval equals its length.
    """
    if burstiness == math.inf:
        gaps = _even_gaps(rng)
    else:
        gaps = _gamma_gaps(rng, burstiness) if family == "gamma" else _weibull_gaps(rng, burstiness)
    return itertools.accumulate(gaps)


def _even_gaps(rng: Rng) -> Iterator[float]:
    yield rng.uniform()
    while True:
        yield 1.0


def _gamma_gaps(rng: Rng, shape: float) -> Iterator[float]:
    """Gamma(shape)/shape; length-biased, a Gamma gap has shape + 1."""
    yield rng.uniform() * rng.gamma(shape + 1) / shape
    while shape == 1:
        yield rng.exponential(1.0)
    while True:
        yield rng.gamma(shape) / shape


def _weibull_gaps(rng: Rng, burstiness: float) -> Iterator[float]:
    """Weibull(shape)/Γ(1 + 1/shape); length-biased, gap^shape is Gamma(1 + 1/shape)."""
    shape = weibull_shape(burstiness)
    mean = math.gamma(1 + 1 / shape)
    yield rng.uniform() * rng.gamma(1 + 1 / shape) ** (1 / shape) / mean
    while True:
        yield rng.weibull(shape) / mean


def weibull_shape(burstiness: float) -> float:
    """Shape k of Weibull gaps with CV² = 1/burstiness: solves CV² = Γ(1 + 2/k)/Γ(1 + 1/k)² − 1 by bisection."""
    low, high = 0.1, 1e6
    while low < (middle := math.sqrt(low * high)) < high and high - low > 1e-12 * low:
        squared_cv = math.expm1(math.lgamma(1 + 2 / middle) - 2 * math.lgamma(1 + 1 / middle))
        low, high = (middle, high) if squared_cv * burstiness > 1 else (low, middle)
    return middle
