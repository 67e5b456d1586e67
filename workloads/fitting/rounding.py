"""Rounded numbers and tables for preset files."""

import numpy as np

from bakeoff.workloads.distributions import Distribution, Fixed, quantiles_of
from bakeoff.workloads.fitting.samples import Floats


def rounded(value: float, digits: int = 4) -> float:
    """``value`` with ``digits`` significant digits."""
    return float(f"{value:.{digits}g}")


def table(values: Floats) -> Distribution:
    """A sample's quantiles, integers exact and others to four digits; ``fixed`` if all values are equal."""
    whole = bool((values == np.round(values)).all())
    short = values if whole else np.array([rounded(value) for value in values.tolist()])
    if short.min() == short.max():
        return Fixed(float(short[0]))
    return quantiles_of(short)
