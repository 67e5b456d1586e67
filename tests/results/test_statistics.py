"""Intervals and comparisons: known quantiles, worked examples, and verdicts that do not cry wolf.

The simulations of `benchmarks/statistics/verdicts.py` count the false alarms; here are a few of them, small.
"""

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.metrics import CATALOGUE
from results.statistics import Judgement, compare_runs, guardrails, log_t_interval
from results.statistics.distributions import t_quantile
from results.statistics.multiplicity import holm
from results.statistics.permutation import permutation_test
from results.statistics.power import runs_needed, smallest_effect
from results.statistics.sequential import looks_of, nominal_levels
from results.statistics.two_sample import Contrast, Method, contrast

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


def _runs(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


def _sides(
    rng: np.random.Generator, effect: float = 1.0, *, count: int = 8, cv: float = 0.02, shared: float = 0.0
) -> tuple[dict[int, float], dict[int, float]]:
    """Runs with a noise of ``cv`` of their own and one that the two of a repeat share."""
    common = rng.normal(0, shared, count)
    a, b = (np.exp(common + rng.normal(0, cv, count)) for _ in range(2))
    return dict(enumerate(a.tolist())), dict(enumerate((b * effect).tolist()))


def test_welch_worked_by_hand() -> None:
    """Logs 0, 1, 2 and 3, 5: means 1 and 4, variances 1 and 2.

    Error √(1/3 + 2/2) = 1.1547; degrees (4/3)² / ((1/3)²/2 + 1²/1) = 1.6842.
    """
    found = contrast(_runs(*np.exp([0, 1, 2])), _runs(*np.exp([3, 5])), interleaved=False)
    assert found is not None
    assert found.method is Method.WELCH
    assert (found.log_ratio, found.standard_error) == pytest.approx((3.0, math.sqrt(4 / 3)))
    assert found.degrees == pytest.approx((4 / 3) ** 2 / (1 / 18 + 1))
    assert found.n == (3, 2)


def test_pairs_worked_by_hand() -> None:
    """Differences 0.01, 0.02, 0.03 under a noise of 10 that both share: mean 0.02, error 0.01/√3, two degrees."""
    logs = [0.0, 10.0, -10.0]
    a = _runs(*np.exp(logs))
    b = _runs(*np.exp([log + shift for log, shift in zip(logs, (0.01, 0.02, 0.03), strict=True)]))
    found = contrast(a, b, interleaved=True)
    assert found is not None
    assert (found.method, found.degrees) == (Method.PAIRED, 2)
    assert (found.log_ratio, found.standard_error) == pytest.approx((0.02, 0.01 / math.sqrt(3)))
    apart = contrast(a, b, interleaved=False)
    assert apart is not None
    assert apart.method is Method.WELCH, "runs that were not made side by side are no pairs"


def test_pairs_are_only_those_that_both_have() -> None:
    a, b = _runs(1.0, 10.0, 100.0, 1000.0), {0: 1.01, 1: 10.2, 3: 1030.0, 7: 5.0}
    found = contrast(a, b, interleaved=True)
    assert found is not None
    assert (found.method, found.n) == (Method.PAIRED, (3, 3))
    alone = contrast(_runs(1.0, 2.0), {7: 1.0, 8: 2.0, 9: 2.0}, interleaved=True)
    assert alone is not None
    assert (alone.method, alone.n) == (Method.WELCH, (2, 3))


def test_runs_without_noise() -> None:
    """What takes the same bytes each time differs or it does not."""
    same = contrast(_runs(3.0, 3.0, 3.0), _runs(3.0, 3.0), interleaved=False)
    assert same is not None
    assert (same.p_value, same.standard_error) == (1.0, 0.0)
    other = contrast(_runs(3.0, 3.0, 3.0), _runs(6.0, 6.0, 6.0), interleaved=True)
    assert other is not None
    assert other.p_value == 0.0
    interval = other.interval(0.99)
    assert (interval.low, interval.high) == pytest.approx((2.0, 2.0))


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=6), st.lists(st.floats(0.1, 10), min_size=2, max_size=6))
def test_swapping_the_sides_turns_the_ratio_over(a: list[float], b: list[float]) -> None:
    for interleaved in (True, False):
        there, back = (contrast(_runs(*x), _runs(*y), interleaved=interleaved) for x, y in ((a, b), (b, a)))
        assert there is not None
        assert back is not None
        assert there.log_ratio == pytest.approx(-back.log_ratio, abs=1e-12)
        assert there.standard_error == pytest.approx(back.standard_error, abs=1e-12)
        assert there.p_value == pytest.approx(back.p_value)


@pytest.mark.parametrize(("shared", "most"), [(0.0, 30), (0.01, 30), (0.15, 30)])
def test_equal_engines_are_called_different_in_at_most_one_and_a_half_percent(shared: float, most: int) -> None:
    rng = np.random.default_rng(1)
    drawn = (_sides(rng, shared=shared) for _ in range(2_000))
    words = [compare_runs(TTFT, "c=8", a, b, interleaved=True, band=0.001).judgement for a, b in drawn]
    assert sum(word in {Judgement.BETTER, Judgement.WORSE} for word in words) <= most


@pytest.mark.parametrize(
    ("count", "effect", "shared", "seen"), [(8, 1.05, 0.0, 0.9), (8, 1.1, 0.15, 0.95), (5, 1.1, 0, 0.95)]
)
def test_what_is_slower_is_seen(count: int, effect: float, shared: float, seen: float) -> None:
    """At 2 % from run to run; 15 % that both sides share cost little, since pairs take them out."""
    rng = np.random.default_rng(2)
    drawn = (_sides(rng, effect, count=count, shared=shared) for _ in range(400))
    words = [compare_runs(TTFT, "c=8", a, b, interleaved=True).judgement for a, b in drawn]
    assert words.count(Judgement.WORSE) >= seen * 400
    assert Judgement.BETTER not in words


def test_which_way_is_better_belongs_to_the_metric() -> None:
    a, b = _runs(1.0, 1.01, 0.99), _runs(2.0, 2.02, 1.98)
    assert compare_runs(TTFT, "c=1", a, b, interleaved=False).judgement is Judgement.WORSE
    assert compare_runs(OUTPUT, "c=1", a, b, interleaved=False).judgement is Judgement.BETTER
    assert compare_runs(TTFT, "c=1", b, a, interleaved=False).judgement is Judgement.BETTER


def test_same_means_the_whole_interval_lies_in_the_band() -> None:
    a = _runs(1.0, 1.2, 0.8)
    b = {repeat: value * (1.01 + repeat / 10_000) for repeat, value in a.items()}
    same = compare_runs(TTFT, "c=1", a, b, interleaved=True)
    assert same.judgement is Judgement.SAME
    assert same.why == "the whole 99% interval of 3 pairs lies within ±3%"
    assert compare_runs(TTFT, "c=1", a, b, interleaved=True, band=0.005).judgement is Judgement.WORSE


def test_what_is_too_little_says_what_would_show_and_how_many_runs_are_missing() -> None:
    wide = compare_runs(TTFT, "c=1", _runs(1.0, 1.02, 0.97), _runs(1.01, 0.98, 1.03), interleaved=False)
    assert wide.judgement is Judgement.UNCLEAR
    assert wide.evidence is not None
    assert wide.evidence.runs_needed is not None
    missing = wide.evidence.runs_needed - 3
    assert f"about {missing} more runs of each side would show 3%" in wide.why
    assert f"a change of {wide.evidence.smallest_effect:.1%} would have shown" in wide.why
    noisy = compare_runs(TTFT, "c=1", _runs(1.0, 2.0), _runs(0.7, 1.4), interleaved=False)
    assert noisy.why.endswith("the noise is too large for ±3%")


def test_too_few_runs_and_zeros_have_no_verdict() -> None:
    single = compare_runs(TTFT, "c=1", _runs(1.0, 1.0), {1: 2.0}, interleaved=True)
    assert single.judgement is Judgement.UNCLEAR
    assert single.why == "needs 2 runs of each side, there are 2 and 1"
    assert single.ratio is not None
    assert (single.ratio.centre, single.ratio.low) == (2.0, None)
    nothing = compare_runs(TTFT, "c=1", {}, _runs(1.0), interleaved=True)
    assert (nothing.ratio, nothing.judgement) == (None, Judgement.UNCLEAR)
    zero = compare_runs(OUTPUT, "c=1", _runs(0.0, 1.0), _runs(1.0, 1.0), interleaved=True)
    assert zero.why == "a run has 0 of it, and 0 has no ratio"


def test_a_difference_within_the_instruments_error_is_none() -> None:
    """20.0 against 20.3 ms, repeatable to a tenth of that: told apart by an error of 0.2 ms, not by one of 0.5 ms."""
    a = {1: 0.0200, 2: 0.0201, 3: 0.0199}
    b = {repeat: value * 1.015 for repeat, value in a.items()}

    def found(b: dict[int, float], a: dict[int, float], error: float) -> tuple[Judgement, str]:
        one = compare_runs(TTFT, "c=8", a, b, interleaved=True, band=0.01, error=error)
        return one.judgement, one.why

    assert found(b, a, 0.0002)[0] is Judgement.WORSE
    assert found(b, a, 0.0005) == (
        Judgement.UNCLEAR, "the difference of 0.3 ms is within the client's own error of ± 0.5 ms",
    )  # fmt: skip
    assert found(a, b, 0.0005)[0] is Judgement.UNCLEAR
    assert found(a, a, 0.0005)[0] is Judgement.SAME


def test_all_divisions_are_counted() -> None:
    """1, 2 against 4, 8: of six divisions of four logs two are as far apart as this one."""
    a, b = _runs(1.0, 2.0), _runs(4.0, 8.0)
    found = contrast(a, b, interleaved=False)
    assert found is not None
    test = permutation_test(a, b, found)
    assert (test.p_value, test.least) == pytest.approx((2 / 6, 2 / 6))
    assert test.agrees(0.01), "it cannot say more with so few runs"
    uneven = permutation_test(_runs(1.0), _runs(2.0, 4.0), found)
    assert uneven.least == pytest.approx(1 / 3)


def test_pairs_are_turned_over() -> None:
    """Differences 1, 2 and -3 of logs: of eight choices of signs, all sum to 0 or more in size."""
    found = Contrast(0.0, 1.0, 2, Method.PAIRED, (3, 3))
    a = _runs(1.0, 1.0, 1.0)
    none = permutation_test(a, _runs(*np.exp([1, 2, -3])), found)
    assert (none.p_value, none.least) == (1.0, 0.25)
    all_up = permutation_test(a, _runs(*np.exp([1, 2, 3])), found)
    assert all_up.p_value == 0.25, "all up and all down"


def test_many_runs_are_divided_by_lot_and_always_the_same() -> None:
    rng = np.random.default_rng(3)
    a, b = _sides(rng, 1.05, count=12)
    found = contrast(a, b, interleaved=False)
    assert found is not None
    tests = [permutation_test(a, b, found) for _ in range(2)]
    assert tests[0] == tests[1]
    assert tests[0].p_value < 0.01
    equal = permutation_test(a, a, found)
    assert equal.p_value == 1.0


def test_an_outlier_that_the_t_test_alone_believes_is_no_verdict() -> None:
    """The worse side wins one pair in six: Student's t sees six similar differences, the signs do not agree."""
    logs = np.array([0.0, 3.0, -3.0, 6.0, -6.0, 9.0])
    shifts = np.array([0.05, 0.05, 0.05, 0.05, 0.05, 0.004])
    a, b = _runs(*np.exp(logs)), _runs(*np.exp(logs + shifts))
    found = compare_runs(TTFT, "c=8", a, b, interleaved=True, band=0.001)
    assert found.judgement is Judgement.WORSE
    b[5] = a[5] * math.exp(-0.001)
    found = compare_runs(TTFT, "c=8", a, b, interleaved=True, band=0.001, alpha=0.02)
    assert found.judgement is Judgement.UNCLEAR
    assert "the permutation test does not (p 0.062); a run may be an outlier" in found.why


def test_power_is_what_it_says() -> None:
    """Runs with an effect of just the stated size are told apart in about 9 of 10 cases; and with the stated number."""
    rng = np.random.default_rng(4)
    known = Contrast(0.0, 0.02 * math.sqrt(2 / 8), 14, Method.WELCH, (8, 8))
    effect = smallest_effect(known, 0.01)
    assert effect == pytest.approx(0.0447, abs=5e-4)
    drawn = (_sides(rng, 1 + effect) for _ in range(1_000))
    told = sum((contrast(a, b, interleaved=False) or known).p_value <= 0.01 for a, b in drawn)
    assert told == pytest.approx(900, abs=40)
    assert runs_needed(known, 0.01, effect) == 8
    assert runs_needed(known, 0.01, 0.001) is None


def test_holm_worked_by_hand() -> None:
    """0.01, 0.02 and 0.03 of three: 0.03, 0.04, and 0.03 lifted to the one before it."""
    assert holm({"b": 0.02, "a": 0.01, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.04, "c": 0.04})
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}
    assert holm({}) == {}


def test_one_alarm_among_many_guardrails_is_chance() -> None:
    rng = np.random.default_rng(5)
    quiet = [compare_runs(TTFT, f"c={n}", *_sides(rng), interleaved=True, band=0.001) for n in range(30)]
    a, b = _runs(1.00, 1.01, 0.99, 1.02), _runs(1.05, 1.06, 1.03, 1.07)
    alone = compare_runs(TTFT, "c=99", a, b, interleaved=False)
    assert alone.judgement is Judgement.WORSE
    assert guardrails([alone]) == [alone]
    among = guardrails([*quiet, alone])[-1]
    assert among.judgement is Judgement.UNCLEAR
    assert among.why.startswith("among 31 metrics one such interval is chance (Holm: p 0.")
    clear = compare_runs(TTFT, "c=99", a, _runs(2.0, 2.01, 1.99, 2.02), interleaved=False)
    assert guardrails([*quiet, clear])[-1] == clear


def test_looks_spend_alpha_and_no_more() -> None:
    """One look spends all; a Brownian motion that is held to the levels leaves its bounds with alpha in all."""
    assert nominal_levels(0.01, [8]) == pytest.approx([0.01])
    looks = looks_of(8)
    assert looks == [4, 6, 8]
    assert looks_of(3) == [3]
    assert looks_of(5) == [3, 5]
    levels = nominal_levels(0.05, looks)
    assert levels[0] == pytest.approx(0.05 / 8)
    steps = np.random.default_rng(6).normal(0, 1, (200_000, 8)).cumsum(axis=1)
    crossed = np.zeros(len(steps), bool)
    for look, level in zip(looks, levels, strict=True):
        crossed |= np.abs(steps[:, look - 1]) / math.sqrt(look) > -NormalDist().inv_cdf(level / 2)
    assert crossed.mean() == pytest.approx(0.05, abs=0.002)
