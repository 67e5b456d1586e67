"""The ratio of two sides: Welch's test and pairs, worked by hand."""

import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bakeoff.results.statistics import Interval
from bakeoff.results.statistics.power import smallest_effect
from bakeoff.results.statistics.two_sample import Method, Scale, contrast
from tests.results.runs import runs


def test_welch_worked_by_hand() -> None:
    """Logs 0, 1, 2 and 3, 5: means 1 and 4, variances 1 and 2.

    Error √(1/3 + 2/2) = 1.1547; degrees (4/3)² / ((1/3)²/2 + 1²/1) = 1.6842.
    """
    effect = contrast(runs(*np.exp([0, 1, 2])), runs(*np.exp([3, 5])), interleaved=False)
    assert effect is not None
    assert effect.method is Method.WELCH
    assert (effect.difference, effect.standard_error) == pytest.approx((3.0, math.sqrt(4 / 3)))
    assert effect.degrees == pytest.approx((4 / 3) ** 2 / (1 / 18 + 1))
    assert effect.n == (3, 2)


@pytest.mark.parametrize("unit", [1.0, 1e-3])
def test_welch_is_scipys(unit: float) -> None:
    a, b = unit * np.array([0.3, 0.1, 0.9, 0.4]), unit * np.array([1.1, 1.3, 1.0])
    effect = contrast(runs(*np.exp(a)), runs(*np.exp(b)), interleaved=False)
    assert effect is not None
    expected = stats.ttest_ind(b, a, equal_var=False)
    assert (effect.degrees, effect.p_value) == pytest.approx((expected.df, expected.pvalue))
    low, high = np.exp(expected.confidence_interval(0.99))
    assert effect.interval(0.99) == Interval(
        pytest.approx(math.exp(b.mean() - a.mean())), pytest.approx(low), pytest.approx(high), n=3
    )


def test_pairs_worked_by_hand() -> None:
    """Differences 0.01, 0.02, 0.03 under a noise of 10 that both share: mean 0.02, error 0.01/√3, two degrees."""
    logs = [0.0, 10.0, -10.0]
    a = runs(*np.exp(logs))
    b = runs(*np.exp([log + shift for log, shift in zip(logs, (0.01, 0.02, 0.03), strict=True)]))
    effect = contrast(a, b, interleaved=True)
    assert effect is not None
    assert (effect.method, effect.degrees) == (Method.PAIRED, 2)
    assert (effect.difference, effect.standard_error) == pytest.approx((0.02, 0.01 / math.sqrt(3)))
    apart = contrast(a, b, interleaved=False)
    assert apart is not None
    assert apart.method is Method.WELCH, "runs that were not made side by side are no pairs"
    expected = stats.ttest_rel(np.log(list(b.values())), np.log(list(a.values())))
    assert effect.p_value == pytest.approx(expected.pvalue)


@pytest.mark.parametrize("runs_each", [4, 8, 20])
@pytest.mark.parametrize(("over", "method"), [(1.01, Method.PAIRED), (0.99, Method.WELCH)])
def test_pairs_are_used_if_they_share_more_noise_than_chance(runs_each: int, over: float, method: Method) -> None:
    """The sums vary more than the differences, by the 99 % quantile of F, to within a hundredth."""
    own = np.tile([1.0, -1.0], runs_each // 2)
    shared = np.tile([1.0, 1.0, -1.0, -1.0], runs_each // 4)  # of the same size, and uncorrelated
    shared *= math.sqrt(over * stats.f.isf(0.01, runs_each - 1, runs_each - 1))
    effect = contrast(runs(*np.exp(shared + own)), runs(*np.exp(shared - own)), interleaved=True)
    assert effect is not None
    assert effect.method is method


def test_other_loads_tell_whether_pairs_share_noise() -> None:
    """Three pairs whose sums vary 36 times as much as their differences: p 0.027 alone, 0.004 with a load alike."""
    shared, own = np.array([6.0, -6.0, 0.0]), np.array([1.0, 1.0, -2.0]) / math.sqrt(3)
    load = runs(*np.exp((shared - own) / 100)), runs(*np.exp((shared + own) / 100))
    alone, together = contrast(*load, interleaved=True), contrast(*load, interleaved=True, other_loads=[load])
    assert alone is not None
    assert together is not None
    assert (alone.method, together.method) == (Method.WELCH, Method.PAIRED)
    against = runs(*np.exp(shared + own)), runs(*np.exp(own - shared))
    apart = contrast(*load, interleaved=True, other_loads=[against])
    assert apart is not None
    assert apart.method is Method.WELCH
    zeros = runs(0.0, 0.0, 1.0), runs(1.0, 2.0, 3.0)
    without = contrast(*load, interleaved=True, other_loads=[zeros, load])
    assert without == together, "what has no log is ignored"


def test_the_methods_are_those_of_the_json() -> None:
    assert [method.value for method in Method] == ["welch", "paired", "between runs", "noise floor", "pieces"]


def test_shares_are_subtracted() -> None:
    """Misses of 0, 0 and 0.3 % against 2, 2 and 2.6 %: 2.1 points, error √(0.03 + 0.12) / √3 points."""
    a, b = runs(1.0, 1.0, 0.997), runs(0.98, 0.98, 0.974)
    effect = contrast(a, b, interleaved=False, scale=Scale.DIFFERENCE)
    assert effect is not None
    assert (100 * effect.difference, 100 * effect.standard_error) == pytest.approx((-2.1, math.sqrt(0.15 / 3)))
    interval = effect.interval(0.95)
    assert interval.centre == effect.difference
    floored = contrast(a, b, interleaved=False, scale=Scale.DIFFERENCE, min_error=0.1)
    assert floored is not None
    assert floored.standard_error == 0.1


def test_repeats_of_several_sessions_are_compared_only_in_pairs() -> None:
    """Sessions are 10 % apart, and B is 1 % above A in each repeat; pairs show that even if they share little."""
    a = runs(1.0, 1.0, 1.1, 1.1)
    b = {repeat: value * (1.01 + repeat / 1000) for repeat, value in a.items()}
    effect = contrast(a, b, interleaved=True, only_pairs=True)
    assert effect is not None
    assert (effect.method, effect.n) == (Method.PAIRED, (4, 4))
    alike = contrast(runs(1.0, 1.1, 0.9), runs(1.0, 0.9, 1.1), interleaved=True, only_pairs=True)
    assert alike is not None
    assert alike.method is Method.PAIRED
    assert contrast(a, {0: 1.0, 1: 1.0, 8: 1.0}, interleaved=True, only_pairs=True) is None, "two pairs are too few"


def test_pairs_are_only_those_that_both_have() -> None:
    a, b = runs(1.0, 10.0, 100.0, 1000.0), {0: 1.01, 1: 10.2, 3: 1030.0, 7: 5.0}
    effect = contrast(a, b, interleaved=True)
    assert effect is not None
    assert (effect.method, effect.n) == (Method.PAIRED, (3, 3))
    alone = contrast(runs(1.0, 2.0), {7: 1.0, 8: 2.0, 9: 2.0}, interleaved=True)
    assert alone is not None
    assert (alone.method, alone.n) == (Method.WELCH, (2, 3))


def test_ratios_that_no_float_holds_are_bounded() -> None:
    """One degree of freedom: at a level of 0.1 % the half-width is 637 standard errors of 1.4."""
    effect = contrast({1: 1.0, 2: 1.0}, {1: 1.0, 2: math.exp(2.8)}, interleaved=False)
    assert effect is not None
    assert effect.degrees == 1
    interval = effect.interval(0.999)
    assert interval.low == pytest.approx(0)
    assert interval.high == pytest.approx(sys.float_info.max, rel=1e-9)
    assert smallest_effect(effect, 0.001) == pytest.approx(sys.float_info.max, rel=1e-9)


def test_runs_without_noise() -> None:
    """What takes the same bytes each time differs or it does not."""
    same = contrast(runs(3.0, 3.0, 3.0), runs(3.0, 3.0, 3.0), interleaved=False)
    assert same is not None
    assert (same.p_value, same.standard_error, same.degrees) == (1.0, 0.0, 4)
    other = contrast(runs(3.0, 3.0, 3.0), runs(6.0, 6.0, 6.0), interleaved=True)
    assert other is not None
    assert (other.p_value, other.method) == (0.0, Method.WELCH), "there is no noise that pairs could share"
    interval = other.interval(0.99)
    assert (interval.low, interval.high) == pytest.approx((2.0, 2.0))


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=6), st.lists(st.floats(0.1, 10), min_size=2, max_size=6))
def test_swapping_the_sides_turns_the_ratio_over(a: list[float], b: list[float]) -> None:
    for interleaved in (True, False):
        forward, back = (contrast(runs(*x), runs(*y), interleaved=interleaved) for x, y in ((a, b), (b, a)))
        assert forward is not None
        assert back is not None
        assert forward.difference == pytest.approx(-back.difference, abs=1e-12)
        assert forward.standard_error == pytest.approx(back.standard_error, abs=1e-12)
        assert forward.p_value == pytest.approx(back.p_value)


def test_two_trials_that_are_close_by_chance_have_few_degrees() -> None:
    """The variances of the means are equal: Satterthwaite's degrees would be near those of the eight trials."""
    effect = contrast(runs(*[1.0, 1.02] * 4), runs(1.1, 1.101), interleaved=False)
    assert effect is not None
    assert effect.degrees == 2
