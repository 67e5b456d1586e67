"""Renewal processes in operational time: independent gaps of mean 1, from even to very bursty.

Burstiness is vLLM's (``--burstiness``): b = 1/CV², where CV is the standard deviation of the gaps over their mean. 1 is
a Poisson process, below 1 is burstier, infinity is even spacing. It is not the index of dispersion of counts, and not
the shape that a maximum-likelihood fit would give.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Literal

from workloads.rng import Rng

GapFamily = Literal["gamma", "weibull"]
LEAST_BURSTINESS = 1e-4
"""A coefficient of variation of 100: beyond it, gaps are zeros and one eternity."""


def check_burstiness(burstiness: float) -> None:
    """Complain of a burstiness that gives no gaps.

    Raises:
        ValueError: it is below 0.0001, or no number.
    """
    if not burstiness >= LEAST_BURSTINESS:
        raise ValueError(f"burstiness must be at least {LEAST_BURSTINESS:g}, not {burstiness}")


def renewals(rng: Rng, burstiness: float, family: GapFamily = "gamma") -> Iterator[float]:
    """Yield the operational times of an endless renewal process with gaps of mean 1, seen from a random moment.

    The first gap is what is left of the gap around that moment, a uniform part of a gap drawn in proportion to its
    length (Cox, "Renewal Theory", 1962, chapter 5), so that on average n arrivals fall into any stretch of n.
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
    """Gamma(shape)/shape; in proportion to its length, a Gamma gap is one of shape + 1."""
    yield rng.uniform() * rng.gamma(shape + 1) / shape
    while shape == 1:
        yield rng.exponential(1.0)
    while True:
        yield rng.gamma(shape) / shape


def _weibull_gaps(rng: Rng, burstiness: float) -> Iterator[float]:
    """Weibull(shape)/Γ(1 + 1/shape); in proportion to its length, gap^shape is a Gamma variable of 1 + 1/shape."""
    shape = weibull_shape(burstiness)
    mean = math.gamma(1 + 1 / shape)
    yield rng.uniform() * rng.gamma(1 + 1 / shape) ** (1 / shape) / mean
    while True:
        yield rng.weibull(shape) / mean


def weibull_shape(burstiness: float) -> float:
    """The shape k of the Weibull gaps with CV² = 1/burstiness, from CV² = Γ(1 + 2/k)/Γ(1 + 1/k)² − 1 by bisection."""
    low, high = 0.1, 1e6
    while low < (middle := math.sqrt(low * high)) < high and high - low > 1e-12 * low:
        squared_cv = math.expm1(math.lgamma(1 + 2 / middle) - 2 * math.lgamma(1 + 1 / middle))
        low, high = (middle, high) if squared_cv * burstiness > 1 else (low, middle)
    return middle
