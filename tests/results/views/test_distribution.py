"""GuideLLM's statistics: weighted samples whose percentiles are always one of their values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.results.views.distribution import QUANTILES, Summary, in_flight, plain, rates, summary


def test_a_percentile_is_the_first_value_whose_share_reaches_it() -> None:
    statistics = plain([4, 1, 3, 2])
    assert (statistics.median, statistics.mean, statistics.min, statistics.max, statistics.count) == (2, 2.5, 1, 4, 4)
    assert statistics.percentiles["p25"] == 1
    assert statistics.percentiles["p75"] == 3
    assert statistics.percentiles["p99"] == 4
    assert statistics.variance == 1.25
    assert statistics.total_sum == 10


def test_weights_count_as_so_many_values() -> None:
    weighted = summary([(10.0, 1.0), (20.0, 3.0)])
    unweighted = plain([10, 20, 20, 20])
    assert weighted == unweighted
    assert weighted.mode == 20


def test_values_without_weight_do_not_count_unless_there_are_no_others() -> None:
    assert summary([(1.0, 0.0), (5.0, 2.0)]).min == 5
    assert summary([(1.0, 0.0), (5.0, 0.0)]).mean == 3


def test_an_empty_sample_is_all_zeros() -> None:
    assert plain([]) == Summary()
    assert rates([]) == Summary()
    assert in_flight([]) == Summary()


def test_the_mean_rate_is_the_sum_over_the_window() -> None:
    statistics = rates([(1.0, 2.0), (2.0, 4.0), (9.0, 100.0)], (0.0, 4.0))
    assert statistics.mean == pytest.approx(6 / 4)
    assert statistics.count == 6


def test_events_at_one_instant_are_one() -> None:
    assert rates([(0.0, 1.0), (1.0, 1.0), (1.00005, 1.0), (2.0, 1.0)]) == rates([(0.0, 1.0), (1.0, 2.0), (2.0, 1.0)])


def test_in_flight_is_weighted_by_how_long_it_lasted() -> None:
    """One request from 0 to 10, another from 4 to 6: two in flight for 2 of 10 seconds."""
    statistics = in_flight([(0.0, 10.0, 1.0), (4.0, 6.0, 1.0)])
    assert statistics.mean == pytest.approx(1.2)
    assert statistics.median == 1
    assert (statistics.max, statistics.count) == (2, 2)
    assert in_flight([(0.0, 10.0, 1.0), (4.0, 6.0, 1.0)], (4.0, 8.0)).mean == pytest.approx(1.5)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0.001, 1e3)), min_size=1, max_size=40))
def test_percentiles_rise_and_are_values_of_the_sample(sample: list[tuple[float, float]]) -> None:
    percentiles = [summary(sample).percentiles[name] for name in QUANTILES]
    assert percentiles == sorted(percentiles)
    assert set(percentiles) <= {value for value, _ in sample}
