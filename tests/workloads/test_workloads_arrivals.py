"""Arrival processes: an open loop is only as honest as its schedule."""

import itertools
import math

import numpy as np
import pytest

from workloads import ARRIVALS, BadOption, Constant, Poisson, UnknownWorkload, arrival

# For exponential gaps the sample's coefficient of variation has a standard error of 1/√n, and the index of dispersion
# of w windows one of √(2/w): these sizes put the wanted bounds (0.02 and 0.2) at four standard errors.
GAPS = 40_000
RATE_PER_S = 5.0
WINDOW_S = 10.0
SEEDS = ("1", "2", "7")


def poisson_offsets(seed: str) -> np.ndarray:
    return np.fromiter(itertools.islice(Poisson(RATE_PER_S).offsets_s(seed), GAPS), float)


@pytest.mark.parametrize("seed", SEEDS)
def test_poisson_gaps_have_a_coefficient_of_variation_of_one(seed: str) -> None:
    gaps = np.diff(poisson_offsets(seed), prepend=0.0)
    assert gaps.std(ddof=1) / gaps.mean() == pytest.approx(1.0, abs=0.02)
    assert gaps.mean() == pytest.approx(1 / RATE_PER_S, rel=0.02)


@pytest.mark.parametrize("seed", SEEDS)
def test_poisson_counts_of_ten_seconds_have_a_dispersion_of_one(seed: str) -> None:
    """Gaps that are right one by one but come in clusters would pass the test above and fail this one."""
    offsets = poisson_offsets(seed)
    windows = int(offsets[-1] // WINDOW_S)
    counts = np.bincount((offsets // WINDOW_S).astype(int))[:windows]
    assert windows > 750
    assert counts.var(ddof=1) / counts.mean() == pytest.approx(1.0, abs=0.2)


def test_poisson_is_fixed_by_its_seed_and_rising() -> None:
    offsets = poisson_offsets("1")
    assert (np.diff(offsets) > 0).all()
    assert offsets[0] > 0
    assert (offsets == poisson_offsets("1")).all()
    assert (offsets != poisson_offsets("2")).all()
    assert list(itertools.islice(Poisson(2.0).offsets_s("7"), 3)) == pytest.approx(
        [0.4833176746744483, 1.2349938063597414, 1.672363827262238], rel=1e-12
    )


def test_a_faster_poisson_is_the_same_one_compressed() -> None:
    slow = list(itertools.islice(Poisson(1.0).offsets_s("7"), 50))
    fast = list(itertools.islice(Poisson(4.0).offsets_s("7"), 50))
    assert fast == pytest.approx([offset / 4 for offset in slow])


def test_constant_is_exact_however_long_it_runs() -> None:
    offsets = list(itertools.islice(Constant(3.0).offsets_s("any"), 100_001))
    assert offsets[:3] == [0.0, 1 / 3, 2 / 3]
    assert offsets[3_000] == 1000.0
    assert offsets == [i / 3 for i in range(100_001)], "no rounding may add up"
    assert offsets == list(itertools.islice(Constant(3.0).offsets_s("other"), 100_001))


def test_arrivals_are_made_by_name() -> None:
    assert ARRIVALS == ("constant", "poisson")
    assert arrival("constant", 2.0) == Constant(2.0)
    assert arrival("poisson", 0.5) == Poisson(0.5)


def test_an_unknown_process_names_the_nearest() -> None:
    with pytest.raises(UnknownWorkload, match=r"^unknown arrival process 'poison'; did you mean 'poisson'\? known: "):
        arrival("poison", 1.0)


@pytest.mark.parametrize("rate_per_s", [0.0, -1.0, math.inf, math.nan])
def test_a_rate_that_is_no_positive_number_is_refused(rate_per_s: float) -> None:
    with pytest.raises(BadOption, match="rate_per_s must be above 0"):
        arrival("poisson", rate_per_s)
