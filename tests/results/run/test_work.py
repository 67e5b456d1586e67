"""Whether two sides did the same work."""

from collections.abc import Sequence

import msgspec
import pytest

from bakeoff.results.compare.text import difference_text, mix_text, work_text
from bakeoff.results.metric import Role
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.records import Outcome, RequestRecord
from bakeoff.results.requests import Requests
from bakeoff.results.run.work import Work, compare_work, work_of
from bakeoff.results.statistics import Judgement
from tests.results.handmade import request


def answer(tokens: int, asked: int | None = 10, finish: str | None = "length", **changes: object) -> RequestRecord:
    record = request(0, range(tokens))
    return msgspec.structs.replace(record, requested_output_tokens=asked, finish_reason=finish, **changes)  # type: ignore[arg-type]


FULL = [answer(10)] * 4


def trials(*requests: RequestRecord, count: int = 4) -> list[Work]:
    return [work_of(Requests(requests))] * count


def problems(a: Sequence[Work], b: Sequence[Work], band: float = 0.1) -> list[str]:
    differences = compare_work("c=8", a, b, band=band, alpha=0.01).differences
    return [difference_text(difference) for difference in differences]


def test_the_work_of_a_trial_is_summed_up() -> None:
    refused = request(0, [], outcome=Outcome.REFUSED)
    work = work_of(Requests([answer(10), answer(5, finish="eos_token"), answer(2, output_tokens=4), refused]))
    assert work == Work(
        requests=4, ok=3, output_tokens=19, asked_tokens=30, delivered=[pytest.approx(0.42), 0.5, pytest.approx(0.9)],
        finishes={"length": 2, "stop": 1},
    )  # fmt: skip
    unasked = work_of(Requests([answer(10, None), answer(20)]))
    assert (unasked.asked_tokens, unasked.delivered) == (None, [11.0, 15.0, 19.0])
    assert work_of(Requests([])) == Work()
    assert work_of(Requests([refused])) == Work(requests=1)


def test_equal_work_is_equal() -> None:
    same = compare_work("c=8", trials(*FULL), trials(*FULL, answer(10)), band=0.1, alpha=0.01)
    assert (same.judgement, same.is_equal, work_text(same)) == (Judgement.SAME, True, "")
    assert problems(trials(*FULL), trials(*FULL[1:], answer(9))) == [], "93 % of the p10 is inside"
    assert compare_work("c=8", [], trials(*FULL), band=0.1, alpha=0.01).is_equal, "nothing to hold it against"


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ([answer(5)] * 4, "output tokens delivered of those requested: 50.0 % instead of 100.0 %"),
        ([answer(20)] * 4, "output tokens delivered of those requested: 200.0 % instead of 100.0 %"),
        ([*FULL[:3], answer(2), answer(18)], "output delivered, p10 of answers: 52.0 % instead of 100.0 %"),
        ([answer(10, finish="stop")] * 4, "answers that ended by 'stop': 100.0 % instead of 0.0 %"),
        ([*FULL, request(0, [], outcome=Outcome.TIMEOUT)], "requests answered: 80.0 % instead of 100.0 %"),
    ],
)
def test_what_is_outside_the_band(other: list[RequestRecord], message: str) -> None:
    assert message in problems(trials(*FULL), trials(*other))
    assert problems(trials(*FULL), trials(*other), band=1.5) == []


def test_lengths_that_nobody_asked_for_are_compared_as_they_are() -> None:
    a, b = trials(answer(40, None), answer(60, None)), trials(answer(30, None), answer(50, None))
    assert problems(a, b)[:2] == [
        "output tokens per request: 40 instead of 50", "output tokens, p10 of answers: 32 instead of 42",
    ]  # fmt: skip
    assert problems(a, trials(answer(40, 50), answer(60, 50))) == [], "one side says what was asked: no quantiles"


def test_what_may_be_chance_is_unclear_and_still_unequal() -> None:
    """One trial in four delivered half of the tokens."""
    a, b = trials(*FULL), [*trials(*FULL, count=3), work_of(Requests([answer(4)] * 4))]
    comparison = compare_work("c=8", a, b, band=0.1, alpha=0.01)
    assert (comparison.judgement, comparison.is_equal) == (Judgement.UNCLEAR, False)
    assert compare_work("c=8", a[:1], b[3:], band=0.1, alpha=0.01).judgement is Judgement.WORSE, "single trials"


def test_quantiles_of_answers_that_vary_may_differ_by_chance() -> None:
    """The p10 of the baseline varies from 20 to 60 %: 30 instead of 40 % may be chance, unless it is always 40 %."""
    rest = [answer(20, 20)] * 40

    def side(*shortest: int) -> list[Work]:
        return [work_of(Requests([*[answer(tokens, 20)] * 6, *rest])) for tokens in shortest]

    varied, fixed, other = side(4, 8, 8, 12), side(8, 8, 8, 8), side(6, 6, 6, 6)
    assert problems(varied, other) == []
    assert problems(fixed, other) == ["output delivered, p10 of answers: 30.0 % instead of 40.0 %"]
    assert problems(varied[:1], other) != [], "one trial shows no noise"


def test_all_aspects_share_one_level() -> None:
    """Answers of 75 to 85 % against whole ones: p 0.006 in one of six aspects is chance at a level of 1 % for all."""
    a = trials(*[answer(20, 20)] * 4)
    b = [work_of(Requests([answer(tokens, 20)] * 4)) for tokens in (14, 16, 15, 17)]
    assert compare_work("c=8", a, b, band=0.1, alpha=0.01).judgement is Judgement.UNCLEAR
    assert compare_work("c=8", a, b, band=0.1, alpha=0.06).judgement is Judgement.WORSE


def test_a_different_mix_of_requests_is_no_difference_in_work() -> None:
    """The faster side of a closed loop got further in the plan, to longer requests; all answers are complete."""
    a, b = trials(answer(10, 10)), trials(answer(10, 10), answer(30, 30))
    comparison = compare_work("c=8", a, b, band=0.1, alpha=0.01)
    assert (comparison.judgement, comparison.differences, comparison.is_equal) == (Judgement.SAME, [], True)
    assert (work_text(comparison), mix_text(comparison)) == ("", "they ask for 20 output tokens each instead of 10")


def test_what_means_the_same_however_long_answers_are() -> None:
    kept = ("itl_p50_s", "tpot_p99_s", "output_tokens_per_s", "energy_per_output_token_j", "failures")
    lost = ("ttft_p50_s", "e2e_p90_s", "requests_per_s", "goodput_per_s", "energy_per_request_j", "peak_host_bytes")
    assert all(Role.PER_TOKEN in CATALOGUE[name].roles for name in kept)
    assert not any(Role.PER_TOKEN in CATALOGUE[name].roles for name in lost)


def test_a_side_that_only_answers_more_is_not_worse() -> None:
    """A fix of requests that failed: it does more work, so nothing is known of its speed, either way."""
    some = [*FULL[:3], request(0, [], outcome=Outcome.HTTP_ERROR)]
    fixed = compare_work("c=8", trials(*some), trials(*FULL), band=0.1, alpha=0.01)
    assert (fixed.judgement, work_text(fixed)) == (Judgement.UNCLEAR, "requests answered: 100.0 % instead of 75.0 %")
    assert compare_work("c=8", trials(*FULL), trials(*some), band=0.1, alpha=0.01).judgement is Judgement.WORSE
    shorter = compare_work("c=8", trials(*some), trials(*[answer(5)] * 4), band=0.1, alpha=0.01)
    assert shorter.judgement is Judgement.WORSE, "half the length is worse, whoever answers it"
