"""Intervals of one engine's runs: worked examples, and how often they cover the truth."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.results.metrics import CATALOGUE, Unit
from bakeoff.results.statistics import interval_of, log_t_interval
from bakeoff.results.statistics.interval import Interval, ratio_interval, reciprocal, wilson_interval
from bakeoff.results.text.format import interval_text


def test_worked_interval() -> None:
    """1, 2 and 4: logs 0, ln 2, 2 ln 2 have mean ln 2 and deviation ln 2.

    Centre 2; half-width 4.3027 × ln 2 / √3 = 1.7219; bounds 2 · e^∓1.7219 = 0.357 and 11.19.
    """
    interval = log_t_interval([1.0, 2.0, 4.0])
    assert interval is not None
    assert interval.centre == pytest.approx(2.0)
    assert interval.low == pytest.approx(0.357, abs=1e-3)
    assert interval.high == pytest.approx(11.19, abs=1e-2)
    assert (interval.n, interval.reason) == (3, None)


def test_values_at_zero_get_the_plain_interval() -> None:
    """0, 1 and 2: mean 1, deviation 1, half-width 4.3027 / √3 = 2.484; no value and no bound is negative."""
    interval = log_t_interval([0.0, 1.0, 2.0])
    assert interval is not None
    assert (interval.centre, interval.low, interval.high) == pytest.approx((1.0, 0.0, 3.484), abs=1e-3)
    negative = log_t_interval([-1.0, 0.0, 1.0])
    assert negative is not None
    assert (negative.centre, negative.low) == pytest.approx((0.0, -2.484), abs=1e-3)


@pytest.mark.parametrize(
    ("unit", "values", "expected"),
    [
        (Unit.SHARE, [0.95, 1.0, 1.0], (0.98333, 0.91162, 1.0)),
        (Unit.SHARE, [0.0, 0.0, 0.05], (0.01667, 0.0, 0.08838)),
        (Unit.COUNT, [0.0, 0.0, 3.0], (1.0, 0.0, 5.303)),
        (Unit.SECONDS, [1.0, 2.0, 4.0], (2.0, 0.357, 11.19)),
    ],
)
def test_bounds_stay_where_values_can_be(unit: Unit, values: list[float], expected: tuple[float, ...]) -> None:
    interval = interval_of(unit, values)
    assert interval is not None
    assert (interval.centre, interval.low, interval.high) == pytest.approx(expected, abs=5e-3)
    alone = interval_of(unit, values[:1])
    assert alone is not None
    assert (alone.low, alone.high) == (None, None)
    assert interval_of(unit, []) is None


def test_few_values() -> None:
    assert log_t_interval([]) is None
    interval = log_t_interval([5.0])
    assert interval is not None
    assert interval.centre == pytest.approx(5.0)
    assert (interval.low, interval.high, interval.n) == (None, None, 1)
    assert interval.reason == "one trial has no interval; three or more give one"


def test_two_trials_show_both_values_and_no_interval() -> None:
    """Its bounds would be a factor of 12.7 half-distances away: true and useless."""
    interval = log_t_interval([0.505, 0.489])
    assert interval is not None
    assert interval.centre == pytest.approx(math.sqrt(0.505 * 0.489))
    assert (interval.low, interval.high, interval.pair) == (None, None, (0.489, 0.505))
    assert interval_text(CATALOGUE["ttft_p50_s"], interval) == "497 ms (489 / 505)"
    assert reciprocal(interval).pair == pytest.approx((1 / 0.505, 1 / 0.489))


@pytest.mark.parametrize("n", [3, 5, 8])
def test_interval_covers_the_truth_in_93_to_97_percent(n: int) -> None:
    rng = np.random.default_rng(20261120 + n)
    trials = np.exp(math.log(0.052) + rng.normal(0, 0.08, (2_000, n)))
    covered = 0
    for values in trials:
        interval = log_t_interval(values.tolist())
        assert interval is not None
        assert interval.low is not None
        assert interval.high is not None
        covered += interval.low <= 0.052 <= interval.high
    assert 0.93 <= covered / 2_000 <= 0.97


@given(st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=9), st.floats(1e-3, 1e3))
def test_the_interval_scales_with_the_unit(values: list[float], factor: float) -> None:
    plain, scaled = log_t_interval(values), log_t_interval([v * factor for v in values])
    assert plain is not None
    assert scaled is not None
    assert scaled.centre == pytest.approx(plain.centre * factor, rel=1e-6)
    assert scaled.high == pytest.approx((plain.high or 0) * factor, rel=1e-6)


def test_the_reciprocal_of_an_interval_swaps_its_bounds() -> None:
    """TPOT 10 ms [8, 12.5]: 100 tokens/s [80, 125]."""
    interval = reciprocal(Interval(0.010, 0.008, 0.0125, 3))
    assert (interval.centre, interval.low, interval.high) == pytest.approx((100, 80, 125))
    assert reciprocal(Interval(0.010, None, None, 1)).low is None
    assert reciprocal(Interval(0.010, -0.001, 0.02, 2)).high is None


def test_a_ratio_of_groups_of_one_size_is_the_t_interval_of_their_means():
    means = [1.0, 2.0, 4.0]
    interval = ratio_interval([10 * mean for mean in means], [10, 10, 10])
    # m = 7/3, d = 1.5275, t of two degrees of freedom 4.3027
    assert (interval.centre, interval.n) == (pytest.approx(7 / 3), 3)
    assert interval.high == pytest.approx(7 / 3 + 4.302653 * 1.527525 / math.sqrt(3))
    assert interval.low == pytest.approx(2 * interval.centre - interval.high)


def test_a_ratio_weighs_groups_by_their_size():
    interval = ratio_interval([20.0, 30.0, 10.0], [10, 10, 5])
    assert interval.centre == pytest.approx(2.4)
    assert interval.high == pytest.approx(2.4 + 4.302653 * math.sqrt(3 / 2 * (16 + 36 + 4)) / 25)
    assert ratio_interval([3.0], [2]) == Interval(1.5, None, None, 1, "one group has no interval")


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (99, 100, 0.9455, 0.9982)],
)
def test_wilson_intervals_are_those_of_tables(successes: int, n: int, low: float, high: float):
    interval = wilson_interval(successes, n)
    assert (interval.centre, interval.n) == (successes / n, n)
    assert (interval.low, interval.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))
