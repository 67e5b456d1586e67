"""Verdicts of two sides without false alarms.

The simulations of `benchmarks/statistics/verdicts.py` count the false alarms; this file has a few small ones.
"""

import math

import numpy as np
import pytest

from bakeoff.results.compare.text import change_text, reason_text
from bakeoff.results.metrics import CATALOGUE, Metric
from bakeoff.results.statistics import (
    Comparison,
    Evidence,
    Interval,
    Judgement,
    compare_runs,
    compare_sessions,
    guardrails,
)
from bakeoff.results.statistics.comparison import SHARE_BAND, Criteria, Reason
from bakeoff.results.statistics.permutation import permutation_test
from bakeoff.results.statistics.power import runs_needed, smallest_effect
from bakeoff.results.statistics.two_sample import Method, Scale, contrast
from tests.results.runs import runs, sides

TTFT = CATALOGUE["ttft_p50_s"]
OUTPUT = CATALOGUE["output_tokens_per_s"]
EIGHT = (runs(*[1.0, 1.01] * 4), runs(*[1.01, 1.0] * 4))


@pytest.mark.slow
@pytest.mark.parametrize(("shared", "most"), [(0.0, 30), (0.01, 30), (0.15, 30)])
def test_equal_engines_are_called_different_in_at_most_one_and_a_half_percent(shared: float, most: int) -> None:
    rng = np.random.default_rng(1)
    drawn = (sides(rng, shared=shared) for _ in range(2_000))
    words = [
        compare_runs(TTFT, "c=8", a, b, interleaved=True, criteria=Criteria(band=0.001)).judgement for a, b in drawn
    ]
    assert sum(word in {Judgement.BETTER, Judgement.WORSE} for word in words) <= most


@pytest.mark.parametrize(
    ("count", "effect", "shared", "seen"), [(8, 1.05, 0.0, 0.9), (8, 1.1, 0.15, 0.95), (5, 1.1, 0, 0.95)]
)
def test_what_is_slower_is_seen(count: int, effect: float, shared: float, seen: float) -> None:
    """With 2 % from run to run; 15 % that both sides share cost little, since pairs remove them."""
    rng = np.random.default_rng(2)
    drawn = (sides(rng, effect, count=count, shared=shared) for _ in range(400))
    words = [compare_runs(TTFT, "c=8", a, b, interleaved=True).judgement for a, b in drawn]
    assert words.count(Judgement.WORSE) >= seen * 400
    assert Judgement.BETTER not in words


def test_which_way_is_better_belongs_to_the_metric() -> None:
    a, b = runs(1.0, 1.01, 0.99), runs(2.0, 2.02, 1.98)
    assert compare_runs(TTFT, "c=1", a, b, interleaved=False).judgement is Judgement.WORSE
    assert compare_runs(OUTPUT, "c=1", a, b, interleaved=False).judgement is Judgement.BETTER
    assert compare_runs(TTFT, "c=1", b, a, interleaved=False).judgement is Judgement.BETTER


@pytest.mark.parametrize("sign", [1, -1])
def test_a_difference_of_shares_is_at_most_100_percentage_points(sign: int) -> None:
    low, high = runs(0.0, 0.9, 0.0), runs(0.9, 1.0, 1.0)
    a, b = (low, high)[::sign]
    attainment = compare_runs(CATALOGUE["attainment"], "c=1", a, b, interleaved=False).difference
    assert attainment is not None
    assert (attainment.low, attainment.high) == (-1.0, 1.0)


def test_same_means_the_whole_interval_lies_in_the_band() -> None:
    a = runs(1.0, 1.2, 0.8)
    b = {repeat: value * (1.01 + repeat / 10_000) for repeat, value in a.items()}
    same = compare_runs(TTFT, "c=1", a, b, interleaved=True)
    assert same.judgement is Judgement.SAME
    assert reason_text(same) == "the whole 99 % interval of 3 pairs is within ±3 %"
    assert compare_runs(TTFT, "c=1", a, b, interleaved=True, criteria=Criteria(band=0.005)).judgement is Judgement.WORSE


def test_an_unclear_difference_names_the_detectable_change_and_the_missing_runs() -> None:
    wide = compare_runs(TTFT, "c=1", runs(1.0, 1.02, 0.97), runs(1.01, 0.98, 1.03), interleaved=False)
    assert wide.judgement is Judgement.UNCLEAR
    assert wide.evidence is not None
    assert wide.evidence.runs_needed is not None
    missing = wide.evidence.runs_needed - 3
    assert f"about {missing} more trials of each side would detect 3 %" in reason_text(wide)
    assert f"these trials can detect a change of {100 * wide.evidence.smallest_effect:.1f} %" in reason_text(wide)
    noisy = compare_runs(TTFT, "c=1", runs(1.0, 2.0, 4.0), runs(0.7, 1.4, 2.8), interleaved=False)
    assert reason_text(noisy).endswith("the noise is too high for 3 %")
    noisiest = compare_runs(TTFT, "c=1", runs(1.0, 9.0, 81.0), runs(0.7, 5.0, 40.0), interleaved=False)
    assert "these trials can detect a change of > ×1,000; the noise" in reason_text(noisiest)


def test_a_change_beyond_any_use_is_told_in_few_digits() -> None:
    assert change_text(9.9, Scale.RATIO, "±") == "×11"
    assert change_text(0.5, Scale.RATIO, "±") == "±50.0 %"
    assert change_text(1.0, Scale.RATIO, "±") == "×2.0"
    assert change_text(1e300, Scale.RATIO, "±") == "> ×1,000"


def test_too_few_runs_have_no_verdict() -> None:
    single = compare_runs(TTFT, "c=1", runs(1.0, 3.0), {1: 4.0}, interleaved=True)
    assert single.judgement is Judgement.UNCLEAR
    assert reason_text(single) == "there are 2 and 1 trials, and each side needs 3"
    assert single.ratio == Interval(2.0, None, None, 1, "the noise from run to run is not known")
    turned = compare_runs(TTFT, "c=1", {1: 2.0}, runs(1.0, 3.0, 5.0), interleaved=True)
    assert turned.ratio == Interval(1.5, None, None, 1, "the noise from run to run is not known")
    empty = compare_runs(TTFT, "c=1", {}, runs(1.0), interleaved=True)
    assert (empty.ratio, empty.judgement) == (None, Judgement.UNCLEAR)


GOODPUT, P99 = CATALOGUE["goodput_per_s"], CATALOGUE["ttft_p99_s"]
ABOVE_IDLE = CATALOGUE["energy_above_idle_per_output_token_j"]
FIVE = runs(10.0, 10.1, 9.9, 10.0, 10.05)


@pytest.mark.parametrize(
    ("metric", "a", "b", "word"),
    [
        (GOODPUT, FIVE, runs(0.0, 0.0, 0.0, 0.0, 0.0), Judgement.WORSE),
        (GOODPUT, FIVE, runs(10.0, 10.0, 0.0, 10.0, 10.0), Judgement.WORSE),
        (GOODPUT, runs(0.0, 0.0), runs(10.0, 10.0), Judgement.BETTER),
        (GOODPUT, runs(0.0, 0.0), runs(0.0, 0.0), Judgement.UNCLEAR),
        (GOODPUT, runs(0.0, 9.0, 9.1, 9.2), runs(0.0, 9.1, 9.0, 9.2), Judgement.UNCLEAR),
        (GOODPUT, runs(0.0, *[9.0] * 5), runs(*[0.0] * 6), Judgement.WORSE),
        (P99, FIVE, runs(10.0, 10.0, math.inf, 10.0, 10.0), Judgement.UNCLEAR),
        (P99, runs(math.inf, 10.0), runs(10.0, 10.0), Judgement.UNCLEAR),
        (P99, runs(10.0, 10.1, 9.9), runs(*[math.inf] * 3), Judgement.WORSE),
        (P99, runs(*[math.inf] * 3), runs(10.0, 10.1, 9.9), Judgement.BETTER),
        (P99, runs(10.0, 10.1), runs(*[math.inf] * 2), Judgement.UNCLEAR),
        (P99, runs(math.inf, *[9.0] * 5), runs(*[math.inf] * 6), Judgement.WORSE),
        (P99, runs(math.inf, 9.0), runs(math.inf, 9.0), Judgement.UNCLEAR),
        (ABOVE_IDLE, runs(*[0.5] * 6), runs(*[-0.1] * 6), Judgement.BETTER),
        (ABOVE_IDLE, runs(*[-0.1] * 6), runs(*[0.5] * 6), Judgement.WORSE),
    ],
)
def test_zeros_and_percentiles_among_failures_have_no_ratio(
    metric: Metric, a: dict[int, float], b: dict[int, float], word: Judgement
) -> None:
    comparison = compare_runs(metric, "c=1", a, b, interleaved=True, criteria=Criteria(alpha=0.05))
    assert comparison.judgement is word
    assert comparison.ratio is None
    assert reason_text(comparison).startswith("among failures in " if metric is P99 else "0 in ")
    assert comparison.no_worse(metric) is (word is Judgement.BETTER)
    of_runs = [[[value] for value in side.values()] for side in (a, b)]
    assert compare_sessions(metric, "c=1", *of_runs, criteria=Criteria(alpha=0.05)).judgement is word


def test_a_zero_among_few_requests_is_chance_and_zeros_in_all_trials_are_not() -> None:
    """Three requests that meet the SLO in a mean trial: one trial in twenty has none."""
    a, b = runs(3.0, 2.0, 4.0, 3.0, 1.0), runs(3.0, 4.0, 0.0, 2.0, 2.0)
    for of_b, word in ((b, Judgement.UNCLEAR), (runs(*[0.0] * 5), Judgement.WORSE)):
        judged = compare_runs(GOODPUT, "c=1", a, of_b, interleaved=True, criteria=Criteria(zeros_by_chance=True))
        stored = compare_sessions(
            GOODPUT, "c=1", [[*a.values()]], [[*of_b.values()]], criteria=Criteria(zeros_by_chance=True)
        )
        assert judged.judgement is stored.judgement is word
    assert compare_runs(GOODPUT, "c=1", a, b, interleaved=True).judgement is Judgement.WORSE


def test_of_different_runs_the_runs_are_ranked() -> None:
    """Eight trials of one bad day are one run: only a 0 of B that A never has decides."""
    day = [9.0] * 8
    bad = [math.inf] * 8
    assert compare_sessions(P99, "c=1", [day] * 10, [bad], criteria=Criteria(alpha=0.05)).judgement is Judgement.UNCLEAR
    assert (
        compare_sessions(P99, "c=1", [day] * 3, [bad] * 3, criteria=Criteria(alpha=0.05)).judgement is Judgement.WORSE
    )
    often, seldom = [0.0] * 6 + [9.0, 9.1], [0.0, *[9.0 + 0.1 * trial for trial in range(7)]]
    assert (
        compare_sessions(GOODPUT, "c=1", [seldom], [often], criteria=Criteria(alpha=0.05)).judgement
        is Judgement.UNCLEAR
    )
    assert compare_runs(
        GOODPUT, "c=1", runs(*seldom), runs(*often), interleaved=True, criteria=Criteria(alpha=0.05)
    ).judgement is (Judgement.WORSE)
    assert (
        compare_sessions(GOODPUT, "c=1", [day], [[0.0] * 8], criteria=Criteria(alpha=0.05)).judgement is Judgement.WORSE
    )


ATTAINMENT, FAILURES = CATALOGUE["attainment"], CATALOGUE["failures"]


def test_shares_are_compared_by_their_misses() -> None:
    """99.9 % against 97.5 %: nearly the same ratio, 25 times the misses."""
    a, b = runs(*[0.999, 0.998, 1.0, 0.999] * 2), runs(*[0.975, 0.972, 0.978, 0.975] * 2)
    comparison = compare_runs(ATTAINMENT, "c=8", a, b, interleaved=True)
    assert (comparison.judgement, comparison.ratio) == (Judgement.WORSE, None)
    assert comparison.difference is not None
    assert comparison.difference.centre == pytest.approx(-0.024)
    assert reason_text(comparison) == "the 99 % interval of 8 and 8 trials excludes 0"
    assert not comparison.no_worse(ATTAINMENT)
    wide = compare_runs(ATTAINMENT, "c=8", a, b, interleaved=True, criteria=Criteria(band=0.05))
    assert (wide.judgement, wide.no_worse(ATTAINMENT)) == (Judgement.SAME, True)
    assert reason_text(wide).endswith("is within ±5 pp")
    coarse = compare_runs(ATTAINMENT, "c=8", a, b, interleaved=True, criteria=Criteria(band=SHARE_BAND, min_error=0.02))
    assert coarse.judgement is Judgement.UNCLEAR, "fifty requests a trial have steps of 2 points"
    assert "these trials can detect a change of 11 pp" in reason_text(coarse)


def test_one_trial_that_fails_is_no_regression_and_all_that_fail_are() -> None:
    """Ten failures of 1,000 requests in one of eight trials may be one incident; a few in each trial are not."""
    none, hiccup = runs(*[0.0] * 8), runs(*[0.0] * 7, 0.01)
    in_one_trial = compare_runs(FAILURES, "c=8", none, hiccup, interleaved=True)
    assert (in_one_trial.judgement, in_one_trial.no_worse(FAILURES)) == (Judgement.UNCLEAR, True)
    assert in_one_trial.evidence is not None
    assert in_one_trial.evidence.p_value == 0.5
    in_every_trial = compare_runs(FAILURES, "c=8", none, runs(*[0.002, 0.003] * 4), interleaved=True)
    assert (in_every_trial.judgement, in_every_trial.no_worse(FAILURES)) == (Judgement.WORSE, False)
    assert in_every_trial.evidence is not None
    assert in_every_trial.evidence.p_value == pytest.approx(1 / 12870)
    back = compare_runs(FAILURES, "c=8", runs(*[0.002, 0.003] * 4), none, interleaved=True)
    assert back.judgement is Judgement.BETTER
    quiet = compare_runs(FAILURES, "c=8", none, none, interleaved=True)
    assert (quiet.judgement, reason_text(quiet)) == (Judgement.SAME, "no request failed")


def test_a_band_of_zero_lets_no_significant_change_pass_and_any_other() -> None:
    a, b = EIGHT
    even = compare_runs(TTFT, "c=8", a, b, interleaved=False, criteria=Criteria(band=0.0))
    assert (even.judgement, even.no_worse(TTFT)) == (Judgement.UNCLEAR, True)
    assert reason_text(even).endswith("these trials can detect a change of 1.3 %")
    slower = compare_runs(
        TTFT, "c=8", a, {run: value * 1.02 for run, value in b.items()}, interleaved=False, criteria=Criteria(band=0.0)
    )
    assert (slower.judgement, slower.no_worse(TTFT)) == (Judgement.WORSE, False)


@pytest.mark.parametrize(
    ("low", "high", "fast", "full"),
    [(0.97, 1.03, True, True), (0.5, 1.03, True, False), (0.97, 2.0, False, True), (0.96, 1.04, False, False)],
)
def test_no_worse_looks_at_the_end_of_the_interval_on_the_bad_side(
    low: float, high: float, fast: bool, full: bool
) -> None:
    """With a band of 3 % a latency may be certainly 3 % higher and a throughput certainly 3 % lower."""
    evidence = compare_runs(TTFT, "c=1", *EIGHT, interleaved=False).evidence
    comparison = Comparison(
        "m", "c=1", Interval(1.0, low, high, 8), Judgement.UNCLEAR, Reason.INTERVAL, evidence=evidence
    )
    assert (comparison.no_worse(TTFT), comparison.no_worse(OUTPUT)) == (fast, full)


def test_what_is_to_be_detected_is_ruled_out_beyond_the_band() -> None:
    narrow = compare_runs(TTFT, "c=1", *EIGHT, interleaved=False, criteria=Criteria(band=0.0001))
    ruled_out = compare_runs(TTFT, "c=1", *EIGHT, interleaved=False, criteria=Criteria(band=0.0001, detect=0.1))
    assert (narrow.judgement, ruled_out.judgement) == (Judgement.UNCLEAR, Judgement.UNCLEAR)
    assert (narrow.no_worse(TTFT), ruled_out.no_worse(TTFT)) == (False, True)
    assert narrow.evidence is not None
    assert ruled_out.evidence is not None
    assert (narrow.evidence.runs_needed, ruled_out.evidence.runs_needed) == (None, 3)


def test_without_an_interval_nothing_is_known_to_be_no_worse() -> None:
    for few in (({}, {}), (runs(1.0), runs(1.0))):
        assert not compare_runs(TTFT, "c=1", *few, interleaved=False).no_worse(TTFT)


def test_a_comparison_says_what_it_compared_and_on_what_it_rests() -> None:
    """8 runs of each side at ±0.5 %, as equal as possible: t test, permutation test, power, and parameters."""
    comparison = compare_runs(TTFT, "c=8", *EIGHT, interleaved=False, criteria=Criteria(alpha=0.02, band=0.01))
    effect = contrast(*EIGHT, interleaved=False)
    assert effect is not None
    assert (comparison.metric, comparison.level, comparison.ratio) == ("ttft_p50_s", "c=8", effect.interval(0.98))
    assert comparison.evidence == Evidence(
        Method.WELCH, effect.p_value, permutation_test(*EIGHT, effect).p_value,
        smallest_effect(effect, 0.02), runs_needed(effect, 0.02, 0.01), 0.02, 0.01, (8, 8), 0.01,
    )  # fmt: skip
    assert reason_text(comparison) == "the whole 98 % interval of 8 and 8 trials is within ±1 %"
    few = compare_runs(OUTPUT, "c=4", runs(1.0), runs(1.0), interleaved=False)
    assert (few.metric, few.level, few.judgement) == ("output_tokens_per_s", "c=4", Judgement.UNCLEAR)
    assert reason_text(few) == "there are 1 and 1 trials, and each side needs 3"
    assert few.evidence is None


def test_the_words_are_those_of_the_json() -> None:
    assert [word.value for word in Judgement] == ["better", "worse", "same", "unclear"]


def test_each_side_is_counted() -> None:
    a, b = runs(1.0, 1.01, 0.99, 1.0), runs(2.0, 2.02, 1.98)
    assert (
        reason_text(compare_runs(TTFT, "c=1", a, b, interleaved=False))
        == "the 99 % interval of 4 and 3 trials excludes 1"
    )


def test_a_small_difference_is_unclear_even_with_enough_runs() -> None:
    """1.5 % higher, where 2.9 % would be detected: too small to decide, although the number of runs is sufficient."""
    a = {run: math.exp(0.011 * (-1) ** run) for run in range(8)}
    comparison = compare_runs(TTFT, "c=1", a, {run: value * 1.015 for run, value in a.items()}, interleaved=False)
    assert comparison.evidence is not None
    assert (comparison.judgement, comparison.evidence.runs_needed) == (Judgement.UNCLEAR, 8)
    assert reason_text(comparison) == "the 99 % interval contains 1; these trials can detect a change of 2.9 %"


@pytest.mark.parametrize(
    ("metric", "a", "error", "text"),
    [
        (TTFT, 0.050, 0.010, "5 ms is within the client's own error of ± 10 ms"),
        (TTFT, 0.99, 0.1, "99 ms is within the client's own error of ± 100 ms"),
        (TTFT, 20.0, 3.5, "2,000 ms is within the client's own error of ± 3,500 ms"),
        (OUTPUT, 123.4, 20.0, "12.3 tok/s is within the client's own error of ± 20 tok/s"),
        (CATALOGUE["tokens_per_chunk"], 2.0, 1.0, "0.2 is within the client's own error of ± 1"),
    ],
)
def test_quantities_are_told_in_their_unit(metric: Metric, a: float, error: float, text: str) -> None:
    """10 % apart, and repeatable to a thousandth of that."""
    side = {run: a * (1 + run / 1e4) for run in (-1, 0, 1)}
    other = {run: value * 1.1 for run, value in side.items()}
    assert (
        reason_text(compare_runs(metric, "c=1", side, other, interleaved=True, criteria=Criteria(error=error)))
        == f"the difference of {text}"
    )


def test_a_difference_within_the_instruments_error_is_none() -> None:
    """20.0 against 20.3 ms, repeatable to a tenth of that: distinguishable with an error of 0.2 ms, not with 0.5 ms."""
    a = {1: 0.0200, 2: 0.0201, 3: 0.0199}
    b = {repeat: value * 1.015 for repeat, value in a.items()}

    def judged(b: dict[int, float], a: dict[int, float], error: float) -> tuple[Judgement, str]:
        comparison = compare_runs(TTFT, "c=8", a, b, interleaved=True, criteria=Criteria(band=0.01, error=error))
        return comparison.judgement, reason_text(comparison)

    assert judged(b, a, 0.0002)[0] is Judgement.WORSE
    assert judged(b, a, 0.0005) == (
        Judgement.UNCLEAR, "the difference of 0.3 ms is within the client's own error of ± 0.5 ms",
    )  # fmt: skip
    assert judged(a, b, 0.0005)[0] is Judgement.UNCLEAR
    assert judged(a, a, 0.0005)[0] is Judgement.SAME


def test_an_outlier_that_the_t_test_alone_believes_is_no_verdict() -> None:
    """The worse side wins one pair in six: Student's t sees six similar differences, but the signs do not agree."""
    logs = np.array([0.0, 3.0, -3.0, 6.0, -6.0, 9.0])
    shifts = np.array([0.05, 0.05, 0.05, 0.05, 0.05, 0.004])
    a, b = runs(*np.exp(logs)), runs(*np.exp(logs + shifts))
    comparison = compare_runs(TTFT, "c=8", a, b, interleaved=True, criteria=Criteria(band=0.001))
    assert comparison.judgement is Judgement.WORSE
    b[5] = a[5] * math.exp(-0.001)
    comparison = compare_runs(TTFT, "c=8", a, b, interleaved=True, criteria=Criteria(band=0.001, alpha=0.02))
    assert comparison.judgement is Judgement.UNCLEAR
    assert "the permutation test does not (p 0.062); a run may be an outlier" in reason_text(comparison)


def test_one_alarm_among_many_guardrails_is_chance() -> None:
    rng = np.random.default_rng(5)
    quiet = [
        compare_runs(TTFT, f"c={n}", *sides(rng), interleaved=True, criteria=Criteria(band=0.001)) for n in range(30)
    ]
    a, b = runs(1.00, 1.01, 0.99, 1.02), runs(1.05, 1.06, 1.03, 1.07)
    alone = compare_runs(TTFT, "c=99", a, b, interleaved=False)
    assert alone.judgement is Judgement.WORSE
    assert guardrails([alone]) == [alone]
    among = guardrails([*quiet, alone])[-1]
    assert among.judgement is Judgement.UNCLEAR
    assert reason_text(among).startswith("not significant after correction over 31 metrics (Holm: p 0.")
    clear = compare_runs(TTFT, "c=99", a, runs(2.0, 2.01, 1.99, 2.02), interleaved=False)
    assert guardrails([*quiet, clear])[-1] == clear


def test_ranks_are_corrected_like_any_other_test() -> None:
    """Seven of eight tails among failures: p 0.0014 alone, and chance among thirty metrics."""
    rng = np.random.default_rng(5)
    quiet = [compare_runs(TTFT, f"c={n}", *sides(rng), interleaved=True) for n in range(30)]
    torn = compare_runs(
        CATALOGUE["ttft_p99_s"], "c=99", runs(*np.linspace(1.1, 1.8, 8)), runs(1.0, *[math.inf] * 7), interleaved=True
    )
    assert (torn.judgement, torn.reason) == (Judgement.WORSE, Reason.AMONG_FAILURES)
    assert guardrails([torn]) == [torn]
    among = guardrails([*quiet, torn])[-1]
    assert (among.judgement, among.reason) == (Judgement.UNCLEAR, Reason.MULTIPLICITY)
