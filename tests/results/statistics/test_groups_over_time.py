"""Differences of ratios over blocks of time: their values by hand, and how rarely chance makes one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.results.statistics.groups_over_time import (
    Difference,
    Floats,
    Ratio,
    block_sums,
    difference,
    ranks_within,
    strata_of,
)
from bakeoff.results.statistics.within import MIN_BLOCKS


def ratio(above: list[float], below: list[float]) -> Ratio:
    return Ratio(np.array(above), np.array(below))


def test_a_ratio_is_one_of_sums_and_not_the_mean_of_ratios() -> None:
    own, others = ratio([1, 9] * 30, [10, 10] * 30), ratio([2, 0] * 30, [1, 9] * 30)
    found = difference(own, others)
    assert found is not None
    assert found.value == pytest.approx(0.5 - 0.2)
    against = difference(own, 0.4)
    assert against is not None
    assert against.value == pytest.approx(0.1)


def test_few_blocks_or_nothing_below_say_nothing() -> None:
    assert difference(ratio([1.0, 2.0], [2.0, 2.0]), 0.5) is None
    assert difference(ratio([0.0] * MIN_BLOCKS, [0.0] * MIN_BLOCKS), 0.5) is None
    slow = np.repeat([0.0, 1.0], 20)  # one excursion, however many blocks
    assert difference(Ratio(slow, np.ones(40)), 0.4) is None


def test_blocks_that_never_vary_differ_or_do_not() -> None:
    same = ratio([1.0] * MIN_BLOCKS, [2.0] * MIN_BLOCKS)
    assert difference(same, 0.5) == Difference(0.0, 1.0)
    assert difference(same, 0.4) == Difference(pytest.approx(0.1), 0.0)


def noise(rng: np.random.Generator, blocks: int, correlation: float) -> Floats:
    steps, series = rng.normal(size=blocks + 50), np.zeros(blocks + 50)
    for at in range(1, len(series)):
        series[at] = correlation * series[at - 1] + steps[at]
    return series[50:]


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.0, 0.4, 0.7])
@pytest.mark.parametrize("blocks", [32, 128])
def test_differences_that_are_none_are_rarely_found_even_if_blocks_depend_on_each_other(
    blocks: int, correlation: float
) -> None:
    rng, trials, found = np.random.default_rng(1), 1_000, 0
    for _ in range(trials):
        own, others = (Ratio(10 + noise(rng, blocks, correlation), np.full(blocks, 10.0)) for _ in range(2))
        result = difference(own, others)
        found += result is not None and result.p_value <= 0.01
    assert found <= 0.02 * trials


def test_a_difference_of_half_a_block_s_noise_is_found() -> None:
    rng, found = np.random.default_rng(2), 0
    for _ in range(100):
        own, others = (Ratio(10 + more + noise(rng, 64, 0.2), np.full(64, 10.0)) for more in (1.0, 0.0))
        result = difference(own, others)
        found += result is not None and result.p_value <= 0.01
    assert found > 80


VALUES = st.lists(st.integers(0, 8).map(float), min_size=1, max_size=60)


@given(VALUES, st.integers(1, 20))
def test_strata_are_large_enough_in_order_and_divide_no_equal_values(values: list[float], size: int) -> None:
    strata = strata_of(np.array(values), size).tolist()
    by_value = sorted(zip(values, strata, strict=True))
    assert [stratum for _, stratum in by_value] == sorted(strata)
    assert all(len({stratum for value, stratum in by_value if value == each}) == 1 for each in values)
    assert min(strata.count(stratum) for stratum in strata) >= min(size, len(values))


@given(VALUES)
def test_ranks_within_strata_count_what_is_below(values: list[float]) -> None:
    strata = [number % 2 for number in range(len(values))]
    ranks = ranks_within(np.array(strata), np.array(values))
    for value, stratum, rank in zip(values, strata, ranks, strict=True):
        alike = [other for other, of in zip(values, strata, strict=True) if of == stratum]
        below = sum(other < value for other in alike) + alike.count(value) / 2
        assert rank == pytest.approx(below / len(alike))


def test_sums_of_a_group_in_each_block() -> None:
    members, blocks = np.array([True, False, True, True]), np.array([0, 0, 2, 2])
    assert block_sums(np.array([1.0, 2.0, 3.0, 4.0]), members, blocks, 4).tolist() == [1, 0, 7, 0]
