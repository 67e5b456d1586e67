"""Renewal processes: the wanted variation of the gaps, and no burst when the load begins."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import gamma as gamma_law
from scipy.stats import kstest, weibull_min

from bakeoff.workloads.arrivals import Arrival, Gamma, Weibull
from bakeoff.workloads.arrivals.gaps import weibull_shape
from bakeoff.workloads.dispersion import ArrivalStatistics

COUNT = 40_000
RATE_PER_S = 5.0
SEEDS = ("1", "2", "7")


def gaps_of(process: Arrival, seed: str) -> np.ndarray:
    return np.diff(np.fromiter(itertools.islice(process.offsets_s(seed), COUNT), float))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("burstiness", [0.2, 0.5, 1.0, 4.0])
def test_gamma_gaps_follow_their_law(seed: str, burstiness: float) -> None:
    gaps = gaps_of(Gamma(RATE_PER_S, burstiness), seed)
    law = gamma_law(burstiness, scale=1 / (burstiness * RATE_PER_S))
    assert kstest(gaps, law.cdf).statistic < 1.95 / math.sqrt(COUNT)
    # The squared CV of Gamma gaps has a relative standard error below √(2 (1 + 3/b)/n): 4 % for b = 0.2.
    error = math.sqrt(2 * (1 + 3 / burstiness) / COUNT)
    assert (gaps.std() / gaps.mean()) ** 2 * burstiness == pytest.approx(1.0, abs=4 * error)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("burstiness", [0.1, 0.5, 4.0])
def test_weibull_gaps_follow_the_law_of_the_same_variation(seed: str, burstiness: float) -> None:
    gaps, shape = gaps_of(Weibull(RATE_PER_S, burstiness), seed), weibull_shape(burstiness)
    law = weibull_min(shape, scale=1 / (RATE_PER_S * math.gamma(1 + 1 / shape)))
    assert kstest(gaps, law.cdf).statistic < 1.95 / math.sqrt(COUNT)
    assert law.std() / law.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=1e-9)


@pytest.mark.parametrize(
    ("burstiness", "shape"), [(1.0, 1.0), (0.2, 0.5), (1 / 19, 1 / 3), (math.pi / (4 - math.pi), 2.0)]
)
def test_the_weibull_shape_is_that_of_the_textbook(burstiness: float, shape: float) -> None:
    """Shapes 1, 1/2 and 1/3 are powers of an exponential, and shape 2 is Rayleigh's."""
    assert weibull_shape(burstiness) == pytest.approx(shape, rel=1e-9)


@pytest.mark.parametrize("burstiness", [1e-4, 1e-3, 100.0, 1e6])
def test_the_weibull_shape_is_found_far_out(burstiness: float) -> None:
    shape = weibull_shape(burstiness)
    squared_cv = math.expm1(math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape))
    assert squared_cv * burstiness == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("process", [Gamma(4.0, math.inf), Weibull(4.0, math.inf)], ids=repr)
def test_infinite_burstiness_is_even_spacing(process: Arrival) -> None:
    offsets = list(itertools.islice(process.offsets_s("7"), 100))
    assert 0 <= offsets[0] < 0.25
    assert np.diff(offsets) == pytest.approx(0.25)


@pytest.mark.parametrize(
    "process", [Gamma(1.0, 0.05), Gamma(1.0, 1.0), Gamma(1.0, 9.0), Gamma(1.0, math.inf), Weibull(1.0, 0.05)], ids=repr
)
def test_a_load_begins_without_a_crowd(process: Arrival) -> None:
    """A process has the wanted rate from its first second on.

    Started with a whole gap of CV² = 20, ten more arrivals would come in the first seconds; with even gaps half an
    arrival would be missing.
    """
    starts = [sum(1 for _ in itertools.takewhile(lambda t: t < 20, process.offsets_s(str(i)))) for i in range(2_000)]
    error = float(np.std(starts)) / math.sqrt(len(starts))
    assert np.mean(starts) == pytest.approx(20.0, abs=max(4 * error, 1e-9))


@pytest.mark.parametrize("seed", SEEDS)
def test_dispersion_over_long_windows_is_the_squared_variation(seed: str) -> None:
    """The counts of a renewal process tend to a dispersion of CV² (Cox 1962): bursty gaps alone never drift."""
    statistics = ArrivalStatistics()
    statistics.add_all(itertools.islice(Gamma(RATE_PER_S, 0.25).offsets_s(seed), 100_000))
    windows = statistics.span_s / 60
    assert statistics.dispersion(60) == pytest.approx(4.0, rel=4 * math.sqrt(2 / windows))
