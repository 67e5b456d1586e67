"""Estimates and verdicts, from values to words; expressions of claim files."""

import math

import pytest

from benchmarks.claims.interpreter.claim import Arithmetic, Contrasted, Expected, Side
from benchmarks.claims.interpreter.errors import BadClaim
from benchmarks.claims.interpreter.expression import evaluate
from benchmarks.claims.interpreter.measurement import computed, contrasted_measurement
from benchmarks.claims.interpreter.verdict import (
    CaseResult,
    Outcome,
    Verdict,
    deciding,
    estimate,
    exact,
    outcome,
    repeats_needed,
    verdict,
)


def repeats(*values: float) -> dict[int, float]:
    return dict(enumerate(values, start=1))


def test_a_ratio_has_the_interval_of_its_repeats():
    made = estimate(repeats(20, 22, 21), repeats(10, 10.5, 10.2), interleaved=True)
    assert made is not None
    interval = made.interval
    assert interval.centre == pytest.approx((20 * 22 * 21 / (10 * 10.5 * 10.2)) ** (1 / 3))
    assert interval.low is not None
    assert interval.high is not None
    assert interval.low < interval.centre < interval.high
    assert made.no_effect == 1.0


def test_a_quantity_of_one_side_has_students_interval_of_its_logs():
    made = estimate(repeats(1.0, math.e), None, interleaved=False)
    assert made is not None
    assert made.interval.centre == pytest.approx(math.exp(0.5))
    assert made.interval.high == pytest.approx(math.exp(0.5 + 12.706 * 0.5), rel=1e-3)
    assert made.no_effect is None


def test_one_repeat_has_no_interval_and_values_without_a_log_no_estimate():
    made = estimate(repeats(4), repeats(2), interleaved=True)
    assert made is not None
    assert (made.interval.centre, made.interval.low) == (2.0, None)
    assert outcome(made, Expected(at_least=1)) is Outcome.UNCLEAR
    assert repeats_needed(made, Expected(at_least=1)) is None
    assert estimate(repeats(0, 1), repeats(1, 1), interleaved=True) is None
    assert estimate({}, repeats(1), interleaved=True) is None


@pytest.mark.parametrize(
    ("expected", "shown"),
    [
        (Expected(at_least=1.9, at_most=2.1), Outcome.INSIDE),  # the interval lies within
        (Expected(at_least=1.99), Outcome.INSIDE),  # its centre does, and 1 is excluded
        (Expected(at_least=2.01), Outcome.UNCLEAR),  # its centre does not, but a part does
        (Expected(at_least=3.0), Outcome.OUTSIDE),
        (Expected(at_most=1.5), Outcome.OUTSIDE),
        (Expected(at_least=2.2, margin=0.2), Outcome.INSIDE),
    ],
)
def test_an_interval_is_judged_against_the_range(expected: Expected, shown: Outcome):
    made = estimate(repeats(2.0, 2.02, 1.98, 2.0), repeats(1, 1, 1, 1), interleaved=True)
    assert made is not None
    assert outcome(made, expected) is shown


def test_a_centre_inside_is_not_enough_where_no_effect_is_possible_too():
    noisy = estimate(repeats(1.0, 4.0, 2.0), repeats(1.0, 1.0, 1.0), interleaved=True)
    assert noisy is not None
    assert noisy.interval.low is not None
    assert noisy.interval.low < 1 < noisy.interval.centre
    assert outcome(noisy, Expected(at_least=1.5)) is Outcome.UNCLEAR
    assert outcome(noisy, Expected(at_least=1.0)) is Outcome.UNCLEAR
    assert outcome(noisy, Expected(at_least=0.9)) is Outcome.UNCLEAR
    needed = repeats_needed(noisy, Expected(at_least=1.5))
    assert needed is not None
    assert needed > 3


def test_the_repeats_that_decide_grow_as_the_bound_comes_near():
    made = estimate(repeats(1.9, 2.0, 2.1), repeats(1.0, 1.02, 0.98), interleaved=True)
    assert made is not None
    near, far = (repeats_needed(made, Expected(at_least=bound)) for bound in (2.1, 2.6))
    assert near is not None
    assert far is not None
    assert near > far >= 2


def case(outcome: Outcome | None, *, as_claimed: bool = True) -> CaseResult:
    return CaseResult(title="t", as_claimed=as_claimed, procedure="experiment", outcome=outcome)


@pytest.mark.parametrize(
    ("claimed", "elsewhere", "shown"),
    [
        ([Outcome.INSIDE], [], Verdict.REPRODUCED),
        ([Outcome.INSIDE, None], [Outcome.OUTSIDE], Verdict.REPRODUCED),
        ([Outcome.INSIDE, Outcome.OUTSIDE], [], Verdict.OTHER_CONDITIONS),
        ([Outcome.OUTSIDE], [Outcome.INSIDE], Verdict.OTHER_CONDITIONS),
        ([Outcome.OUTSIDE, Outcome.UNCLEAR], [Outcome.UNCLEAR], Verdict.NOT_REPRODUCED),
        ([Outcome.UNCLEAR], [Outcome.INSIDE], Verdict.CANNOT_TELL),
        ([None], [Outcome.INSIDE], Verdict.NOT_TESTABLE),
        ([None], [], Verdict.NOT_TESTABLE),
    ],
)
def test_cases_make_a_verdict(claimed: list[Outcome | None], elsewhere: list[Outcome | None], shown: Verdict):
    cases = [case(outcome) for outcome in claimed] + [case(outcome, as_claimed=False) for outcome in elsewhere]
    assert verdict(cases) is shown


def test_a_test_without_a_figure_is_unclear_and_not_untestable():
    side = Side("r", "e", "c=1")
    made = contrasted_measurement(Contrasted("itl_p99_s", side), {side.text: {}}, ["run-1"], "a machine")
    assert made.estimate is None
    assert made.why_absent == "no VALID trial of r: e at c=1 has the metric"
    zero = contrasted_measurement(Contrasted("itl_p99_s", side), {side.text: {1: 0.0}}, ["run-1"], "a machine")
    assert zero.why_absent == "some values are not positive"
    assert (
        computed(Arithmetic("critical_batch('llama-3.1-8b', 'h200', context=8192)")).why_absent
        == "the figure is infinite"
    )
    assert verdict([case(Outcome.UNCLEAR), case(Outcome.INSIDE, as_claimed=False)]) is Verdict.CANNOT_TELL


def test_a_tested_case_with_the_claimed_conditions_sums_up():
    nearest, other, claimed = (
        case(Outcome.INSIDE, as_claimed=False),
        case(Outcome.OUTSIDE),
        case(Outcome.INSIDE),
    )
    assert deciding([case(None), nearest]) is nearest
    assert deciding([nearest, other]) is other
    assert deciding([nearest, other, claimed]) is claimed
    assert deciding([case(None)]) is None


def test_expressions_compute_and_call_the_cost_model():
    assert evaluate("-a + 2 * b ** 2 / 4", {"a": 1, "b": 4}) == 7
    assert evaluate("kv_bytes('llama-3.1-70b')", {}) == 80 * 2 * 8 * 128 * 2
    assert evaluate("weight_bytes('llama-2-7b')", {}) == 2 * evaluate("parameters('llama-2-7b')", {})
    assert evaluate("active_parameters('qwen3-30b-a3b') / parameters('qwen3-30b-a3b')", {}) < 0.15
    assert evaluate("critical_batch('llama-3.1-8b', 'h200', context=8192)", {}) == math.inf
    assert evaluate("itl_floor_s('llama-3.1-8b', 'h200', context=1024)", {}) == pytest.approx(3.4e-3, rel=0.02)
    assert 0 < evaluate("bytes_share_of_attention('llama-3.1-8b', 1, 1024)", {}) < 0.02
    assert exact(3.0).interval.low == 3.0


@pytest.mark.parametrize(
    "text",
    ["1 / 0", "2.0 ** 4096", "kv_bytes(1)", "a + 1", "kv_bytes()", "kv_bytes('llama-2-7b', 'fp7') + missing", "'text'"],
)
def test_an_expression_without_a_value_is_refused(text: str):
    with pytest.raises(Exception, match=r"has no value|unknown precision") as error:
        evaluate(text, {})
    assert "\n" not in str(error.value)


def test_an_unknown_gpu_is_named():
    with pytest.raises(BadClaim, match="unknown GPU 'h1'; known: a10g"):
        evaluate("ttft_floor_s('llama-2-7b', 'h1', 64)", {})
