"""Numbers as a person would write them into a file."""

import numpy as np

from workloads.distributions import Distribution, Fixed, quantiles_of
from workloads.fitting.samples import Floats


def rounded(value: float, digits: int = 4) -> float:
    """To so many significant digits."""
    return float(f"{value:.{digits}g}")


def table(values: Floats) -> Distribution:
    """A sample's quantiles, whole numbers as they are and others to four digits; one value alone as ``fixed``."""
    whole = bool((values == np.round(values)).all())
    short = values if whole else np.array([rounded(value) for value in values.tolist()])
    if short.min() == short.max():
        return Fixed(float(short[0]))
    return quantiles_of(short)
