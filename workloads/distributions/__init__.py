"""Distributions of lengths, times and rates; in a file, a table whose ``family`` names one of them.

Each has quantiles (``at``), which allow drawing pairs with a given rank correlation, and draws (``sample``) from
:class:`~bakeoff.workloads.rng.Rng`, which are the same on every machine. Real token lengths have modes, caps and gaps
that no parametric family reproduces; :func:`quantiles_of` tabulates their quantiles instead.
"""

from bakeoff.workloads.distributions.clipped import Exponential, Lognormal, Weibull
from bakeoff.workloads.distributions.empirical import ks_distance, quantiles_of
from bakeoff.workloads.distributions.families import Fixed, Quantiles, Uniform
from bakeoff.workloads.distributions.mixture import Distribution, Mixture, Part

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
