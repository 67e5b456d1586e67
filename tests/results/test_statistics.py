"""Intervals and comparisons: known quantiles, real coverage, and verdicts that do not cry wolf."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.metrics import CATALOGUE
from results.statistics import Judgement, compare_paired, log_t_interval
from results.statistics.interval import t_quantile

TTFT = CATALOGUE["ttft_p50_s"]
OUTPUT = CATALOGUE["output_tokens_per_s"]


@pytest.mark.parametrize(
    ("probability", "degrees", "table"),
    [
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 4, 2.776),
        (0.975, 7, 2.365),
        (0.995, 7, 3.499),
        (0.975, 30, 2.042),
    ],
)
def test_t_quantile_matches_the_printed_table(probability: float, degrees: int, table: float) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(table, abs=5e-4)


def test_worked_interval() -> None:
    """1, 2 and 4: logs 0, ln 2, 2 ln 2 have mean ln 2 and deviation ln 2.

    Centre 2; half-width 4.3027 × ln 2 / √3 = 1.7219; bounds 2 · e^∓1.7219 = 0.357 and 11.19.
    """
    interval = log_t_interval([1.0, 2.0, 4.0])
    assert interval is not None
    assert interval.centre == pytest.approx(2.0)
    assert interval.low == pytest.approx(0.357, abs=1e-3)
    assert interval.high == pytest.approx(11.19, abs=1e-2)
    assert interval.n == 3


def test_values_at_zero_get_the_plain_interval() -> None:
    """0, 1 and 2: mean 1, deviation 1, half-width 4.3027 / √3 = 2.484."""
    interval = log_t_interval([0.0, 1.0, 2.0])
    assert interval is not None
    assert (interval.centre, interval.low) == pytest.approx((1.0, -1.484), abs=1e-3)


def test_few_values() -> None:
    assert log_t_interval([]) is None
    one = log_t_interval([5.0])
    assert one is not None
    assert one.centre == pytest.approx(5.0)
    assert (one.low, one.high, one.n) == (None, None, 1)
    assert one.reason == "one trial has no interval; raise repeats"


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


@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=9), st.floats(1e-3, 1e3))
def test_the_interval_scales_with_the_unit(values: list[float], factor: float) -> None:
    plain, scaled = log_t_interval(values), log_t_interval([v * factor for v in values])
    assert plain is not None
    assert scaled is not None
    assert scaled.centre == pytest.approx(plain.centre * factor, rel=1e-6)
    assert scaled.high == pytest.approx((plain.high or 0) * factor, rel=1e-6)


def _pairs(
    rng: np.random.Generator, effect: float, *, count: int = 8, cv: float = 0.02, shared: float = 0.5
) -> tuple[dict[int, float], dict[int, float]]:
    """Repeats with a run-to-run noise of ``cv``; ``shared`` of its variance is common to both sides."""
    common = rng.normal(0, cv * shared**0.5, count)
    a, b = (np.exp(common + rng.normal(0, cv * (1 - shared) ** 0.5, count)) for _ in range(2))
    return dict(enumerate(a.tolist())), dict(enumerate((b * effect).tolist()))


@pytest.mark.parametrize("shared", [0.0, 0.5])
def test_equal_engines_are_called_different_in_at_most_one_and_a_half_percent(shared: float) -> None:
    rng = np.random.default_rng(1)
    words = [compare_paired(TTFT, "c=8", *_pairs(rng, 1.0, shared=shared)).judgement for _ in range(2_000)]
    wrong = sum(word in {Judgement.BETTER, Judgement.WORSE} for word in words)
    assert wrong <= 0.015 * 2_000


@pytest.mark.parametrize(("count", "shared", "seen"), [(8, 0.5, 0.9), (8, 0.0, 0.8), (10, 0.0, 0.9)])
def test_five_percent_slower_is_seen(count: int, shared: float, seen: float) -> None:
    """At a noise of 2 %: 8 pairs see it in 9 of 10 when the sides share half the noise; else it takes 10 pairs."""
    rng = np.random.default_rng(2)
    drawn = (_pairs(rng, 1.05, count=count, shared=shared) for _ in range(400))
    words = [compare_paired(TTFT, "c=8", a, b).judgement for a, b in drawn]
    assert words.count(Judgement.WORSE) >= seen * 400
    assert Judgement.BETTER not in words


def test_which_way_is_better_belongs_to_the_metric() -> None:
    a, b = {0: 1.0, 1: 1.01, 2: 0.99}, {0: 2.0, 1: 2.02, 2: 1.98}
    assert compare_paired(TTFT, "c=1", a, b).judgement is Judgement.WORSE
    assert compare_paired(OUTPUT, "c=1", a, b).judgement is Judgement.BETTER
    assert compare_paired(TTFT, "c=1", b, a).judgement is Judgement.BETTER


def test_same_means_the_whole_interval_lies_in_the_band() -> None:
    a = {0: 1.0, 1: 1.2, 2: 0.8}
    b = {repeat: value * (1.01 + repeat / 10_000) for repeat, value in a.items()}
    same = compare_paired(TTFT, "c=1", a, b)
    assert same.judgement is Judgement.SAME
    assert same.why == "the whole 99% interval lies within ±3%"
    assert compare_paired(TTFT, "c=1", a, b, band=0.005).judgement is Judgement.WORSE


def test_wide_intervals_and_single_pairs_are_unclear() -> None:
    wide = compare_paired(TTFT, "c=1", {0: 1.0, 1: 1.0}, {0: 0.7, 1: 1.4})
    assert wide.judgement is Judgement.UNCLEAR
    assert "holds 1" in wide.why
    single = compare_paired(TTFT, "c=1", {0: 1.0, 1: 1.0}, {1: 2.0, 2: 2.0})
    assert single.judgement is Judgement.UNCLEAR
    assert single.why == "needs 2 paired repeats, there are 1"
    assert compare_paired(TTFT, "c=1", {0: 0.0}, {0: 1.0}).ratio is None


def test_a_difference_within_the_instruments_error_is_none() -> None:
    """20.0 against 20.3 ms, repeatable to a tenth of that: told apart by an error of 0.2 ms, not by one of 0.5 ms."""
    a = {1: 0.0200, 2: 0.0201, 3: 0.0199}
    b = {repeat: value * 1.015 for repeat, value in a.items()}
    assert compare_paired(TTFT, "c=8", a, b, band=0.01, error=0.0002).judgement is Judgement.WORSE
    found = compare_paired(TTFT, "c=8", a, b, band=0.01, error=0.0005)
    assert found.judgement is Judgement.UNCLEAR
    assert found.why == "the difference of 0.3 ms is within the client's own error of ± 0.5 ms"
    assert compare_paired(TTFT, "c=8", b, a, band=0.01, error=0.0005).judgement is Judgement.UNCLEAR
    assert compare_paired(TTFT, "c=8", a, a, error=0.0005).judgement is Judgement.SAME
