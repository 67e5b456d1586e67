"""Distributions of lengths, times and rates, as written in a file: a table whose ``family`` names one of these.

Each gives its quantiles (``at``), so that a pair of values can be drawn with a wanted rank correlation, and draws
(``sample``), made from :class:`~workloads.rng.Rng` and so the same everywhere. Real token lengths have modes, caps and
gaps that no one family meets: :func:`quantiles_of` keeps their own quantiles.
"""

from workloads.distributions.clipped import Exponential, Lognormal, Weibull
from workloads.distributions.empirical import ks_distance, quantiles_of
from workloads.distributions.families import Fixed, Quantiles, Uniform
from workloads.distributions.mixture import Distribution, Mixture, Part

__all__ = [
    "Distribution",
    "Exponential",
    "Fixed",
    "Lognormal",
    "Mixture",
    "Part",
    "Quantiles",
    "Uniform",
    "Weibull",
    "ks_distance",
    "quantiles_of",
]
