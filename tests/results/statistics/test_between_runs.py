"""Sides of different runs, worked by hand, and the noise between runs of different days."""

import math

import numpy as np
import pytest

from bakeoff.results.compare.noise import caveat_text
from bakeoff.results.compare.text import reason_text
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.statistics import Judgement, compare_sessions
from bakeoff.results.statistics.between_runs import NoiseFloor, between_runs, upper_bound
from bakeoff.results.statistics.comparison import Criteria, Reason
from bakeoff.results.statistics.two_sample import Method, Scale

TTFT, ATTAINMENT = CATALOGUE["ttft_p50_s"], CATALOGUE["attainment"]


def test_one_run_against_three_worked_by_hand() -> None:
    """Means 1, 2, 3 against 6: v = 1, SE = √(1 + 1/3), two degrees. Differences inside the runs add nothing."""
    a = [[0.5, 1.5], [1.5, 2.5], [2.5, 3.5]]
    effect = between_runs(a, [[5.5, 6.5]], scale=Scale.DIFFERENCE)
    assert effect is not None
    assert (effect.difference, effect.standard_error, effect.degrees) == pytest.approx((4.0, math.sqrt(4 / 3), 2))
    assert (effect.method, effect.n) == (Method.BETWEEN_RUNS, (3, 1))
    logs = between_runs([[math.exp(value) for value in run] for run in a], [[math.exp(value) for value in (5.5, 6.5)]])
    assert logs is not None
    assert (logs.difference, logs.standard_error) == pytest.approx((4.0, math.sqrt(4 / 3)))


def test_a_candidate_of_several_runs_shows_noise_too() -> None:
    """Means 1, 2, 3 and 5, 7: squares 2 + 2 over three degrees."""
    effect = between_runs([[1.0], [2.0], [3.0]], [[5.0], [7.0]], scale=Scale.DIFFERENCE)
    assert effect is not None
    assert (effect.difference, effect.standard_error) == pytest.approx((4.0, math.sqrt(4 / 3 * (1 / 3 + 1 / 2))))
    assert (effect.degrees, effect.n) == (3, (3, 2))


def test_noise_inside_the_candidate_is_added_where_it_is_larger() -> None:
    """Inside A nothing varies; inside B the variance is 8 over two trials: 4 more, with one degree."""
    effect = between_runs([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], [[4.0, 8.0]], scale=Scale.DIFFERENCE)
    assert effect is not None
    assert effect.standard_error == pytest.approx(math.sqrt(4 / 3 + 4))
    assert effect.degrees == pytest.approx((4 / 3 + 4) ** 2 / ((4 / 3) ** 2 / 2 + 4**2 / 1))


def test_noise_that_may_be_chance_widens_the_error_and_raises_no_degrees() -> None:
    """Variances 2 and 8 of two trials: 4 − 1 more, and F(1, 3) = 4 may be chance; two degrees as of three run means."""
    effect = between_runs([[0.0, 2.0], [1.0, 3.0], [2.0, 4.0]], [[4.0, 8.0]], scale=Scale.DIFFERENCE)
    assert effect is not None
    assert (effect.standard_error, effect.degrees) == pytest.approx((math.sqrt(4 / 3 + 3), 2))
    single = between_runs([[1.0], [2.0], [3.0]], [[4.0, 8.0]], scale=Scale.DIFFERENCE)
    assert single is not None
    assert single.degrees == 2, "single trials do not say how trials vary"


def test_fewer_trials_of_the_candidate_are_noisier_even_if_they_agree_by_chance() -> None:
    """Two trials with a variance of 2 per run of A: single trials of B have 2 instead of 1, although none is seen."""
    a = [[0.0, 2.0], [1.0, 3.0], [2.0, 4.0]]
    effect = between_runs(a, [[6.0]], scale=Scale.DIFFERENCE)
    assert effect is not None
    assert (effect.standard_error, effect.degrees) == pytest.approx((math.sqrt(4 / 3 + 1), 2))
    floored = between_runs(a[:1], [[6.0]], scale=Scale.DIFFERENCE, floor=NoiseFloor(1.0, 2))
    assert floored is not None
    assert floored.standard_error == pytest.approx(math.sqrt(2 + 1))
    alike = between_runs(a, [[5.0, 5.0]], scale=Scale.DIFFERENCE)
    assert alike is not None
    assert alike.standard_error == pytest.approx(math.sqrt(4 / 3)), "as many trials as A: v has their noise"


def test_two_runs_show_no_noise_and_a_floor_stands_for_it() -> None:
    """A floor of 0.1 for runs of two trials: SE = 0.1 √(1/2 + 1); with it the p-value can be computed."""
    a, b = [[1.0, 1.1], [1.2, 1.1]], [[1.1, 1.2]]
    assert between_runs(a, b, scale=Scale.DIFFERENCE) is None
    effect = between_runs(a, b, scale=Scale.DIFFERENCE, floor=NoiseFloor(0.1, 2))
    assert effect is not None
    assert (effect.standard_error, effect.method) == (pytest.approx(0.1 * math.sqrt(1.5)), Method.NOISE_FLOOR)
    assert effect.p_value == pytest.approx(math.erfc(0.05 / effect.standard_error / math.sqrt(2)), rel=1e-4)


def test_the_floor_is_the_upper_bound_of_chi_square() -> None:
    """Five runs with a deviation of 1: χ² of four degrees is below 0.297 in 1 %, so √(4 / 0.297) = 3.67."""
    assert upper_bound([-math.sqrt(2), 0.0, 0.0, 0.0, math.sqrt(2)]) == pytest.approx(3.669, rel=1e-3)


def test_one_stored_run_says_which_noise_would_undo_it() -> None:
    """Ten percent apart, with trials equal to a thousandth: 2.62 % between runs, ln 1.1 / (2.576 √2), may be why."""
    a, b = [[1.0, 1.001, 0.999]], [[1.1, 1.101, 1.099]]
    comparison = compare_sessions(TTFT, "c=8", a, b)
    assert comparison.judgement is Judgement.WORSE
    assert comparison.evidence is not None
    assert comparison.evidence.withstands == pytest.approx(math.log(1.1) / (2.5758 * math.sqrt(2)), rel=0.01)
    assert caveat_text(comparison) == "it stands unless the standard deviation between runs of one server exceeds 2.6 %"
    assert compare_sessions(TTFT, "c=8", a, b, unseen_sd=0.02).judgement is Judgement.WORSE
    doubted = compare_sessions(TTFT, "c=8", a, b, unseen_sd=0.03)
    assert (doubted.judgement, doubted.reason) == (Judgement.UNCLEAR, Reason.UNSEEN_NOISE)
    assert "(taken to be 3.0 %; three runs of the baseline show it, or bakeoff lab floor)" in caveat_text(doubted)
    floored = compare_sessions(TTFT, "c=8", a, b, floor=NoiseFloor(0.01, 3))
    assert floored.judgement is Judgement.WORSE
    assert reason_text(floored) == (
        "the 99 % interval of 1 and 1 runs made at different times, under the machine's noise floor, excludes 1"
    )


def test_a_difference_within_the_noise_between_runs_names_the_runs_needed() -> None:
    a = [[1.0, 1.0], [1.03, 1.03], [0.97, 0.97], [1.01, 1.01]]
    comparison = compare_sessions(TTFT, "c=8", a, [[1.05, 1.05]])
    assert comparison.judgement is Judgement.UNCLEAR
    assert comparison.evidence is not None
    assert reason_text(comparison).endswith(
        f"about {comparison.evidence.runs_needed} runs of each side, made at different times, would detect 3 %"
    )
    assert compare_sessions(TTFT, "c=8", a, [[1.5, 1.5]]).judgement is Judgement.WORSE
    assert compare_sessions(TTFT, "c=8", a, [[0.6, 0.6]]).judgement is Judgement.BETTER
    assert reason_text(compare_sessions(TTFT, "c=8", a, [])) == "there are 8 and 0 runs, and each side needs 1"


def test_shares_of_different_runs() -> None:
    a = [[0.999, 1.0], [0.998, 0.999], [0.999, 0.999]]
    comparison = compare_sessions(ATTAINMENT, "c=8", a, [[0.975, 0.974]])
    assert comparison.judgement is Judgement.WORSE
    assert comparison.difference is not None
    assert comparison.difference.centre == pytest.approx(0.9745 - 0.999)


@pytest.mark.parametrize("between", [0.0, 0.01, 0.03])
def test_equal_engines_on_different_days_are_called_different_in_one_percent(between: float) -> None:
    """Five stored runs of eight trials against one more, 400 times each: at most three standard errors above 1 %."""
    rng = np.random.default_rng(3)
    alarms = 0
    for _ in range(400):
        runs = np.exp(rng.normal(0, between, (6, 1)) + rng.normal(0, 0.02, (6, 8))).tolist()
        word = compare_sessions(TTFT, "c=8", runs[:5], runs[5:], criteria=Criteria(band=0.0001)).judgement
        alarms += word in {Judgement.BETTER, Judgement.WORSE}
    assert alarms <= 400 * (0.01 + 3 * math.sqrt(0.01 * 0.99 / 400))
