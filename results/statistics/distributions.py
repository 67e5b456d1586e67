"""Quantiles and tails of the distributions that this package needs; scipy is imported when one is asked for."""

import functools


def t_quantile(probability: float, degrees: float) -> float:
    """Student's t quantile: ``t_quantile(0.975, 2)`` is 4.303."""
    from scipy.special import stdtrit  # noqa: PLC0415  (scipy costs 0.2 s; --help must not pay)

    return float(stdtrit(degrees, probability))


def t_tails(t: float, degrees: float) -> float:
    """Probability that Student's t is as far from 0 as ``t``, to either side."""
    from scipy.special import stdtr  # noqa: PLC0415

    return float(2 * stdtr(degrees, -abs(t)))


def noncentral_t_tail(t: float, degrees: float, centre: float) -> float:
    """Probability that a noncentral t lies above ``t``: the power of a test whose effect is ``centre`` errors large."""
    from scipy.special import nctdtr  # noqa: PLC0415

    return float(1 - nctdtr(degrees, centre, t))


def f_tail(ratio: float, above: float, below: float) -> float:
    """Probability that an F-distributed ratio of variances is as large as this one."""
    from scipy.special import fdtrc  # noqa: PLC0415

    return float(fdtrc(above, below, ratio))


def chi_square_quantile(probability: float, degrees: float) -> float:
    """Quantile of χ²: ``chi_square_quantile(0.01, 4)`` is 0.297."""
    from scipy.special import chdtri  # noqa: PLC0415

    return float(chdtri(degrees, 1 - probability))


@functools.lru_cache(maxsize=256)
def range_quantile(probability: float, settings: int, degrees: int) -> float:
    """Quantile of the studentised range of equal settings: ``range_quantile(0.95, 3, 10)`` is 3.877."""
    from scipy.stats import studentized_range  # noqa: PLC0415

    return float(studentized_range.ppf(probability, settings, degrees))
