"""The pace of an engine from the answers of a ramp, and how well it is known."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bakeoff.harness.client.worker.answer_times import AnswerTimes

S = 1_000_000_000


def ended(first_s: float, tokens: int, total_s: float) -> Any:
    return SimpleNamespace(
        planned_ns=0, ended_ns=round(total_s * S), read_ns=[round(first_s * S)], has_failed=False, is_streamed=True,
        requested_output_tokens=tokens,
    )  # fmt: skip


def times_of(*requests: Any) -> AnswerTimes:
    times = AnswerTimes()
    for request in requests:
        times.add(request)
    return times


def test_the_pace_is_that_of_the_answers_and_known_exactly_if_they_agree():
    times = times_of(*(ended(0.5, tokens, 0.5 + 0.1 * (tokens - 1)) for tokens in (3, 11, 40, 7)))
    assert times.pace is not None
    assert (times.pace.ttft_s, times.pace.token_s) == (pytest.approx(0.5), pytest.approx(0.1))
    assert times.pace_error == pytest.approx(0.0, abs=1e-6)


def test_its_error_is_that_of_what_it_does_not_explain():
    rng = np.random.default_rng(3)
    tokens = rng.integers(2, 80, 40)
    totals_s = 0.5 + 0.1 * (tokens - 1) + rng.normal(0, 0.4, 40).clip(-0.4, 2.0)
    times = times_of(*(ended(0.5, int(n), float(s)) for n, s in zip(tokens, totals_s, strict=True)))
    slope, intercept = np.polyfit(tokens - 1, totals_s, 1)
    residuals_s = totals_s - intercept - slope * (tokens - 1)
    assert times.pace_error == pytest.approx(np.sqrt((residuals_s**2).sum()) / totals_s.sum(), rel=1e-3)
    assert times_of(ended(0.5, 3, 0.7)).pace_error == 0.0
    assert AnswerTimes().pace_error == 0.0


def grouped(tokens: int, wait_s: float = 0.0) -> Any:
    """An answer of an engine that sends eight tokens at a time, a token each 20 ms."""
    return ended(wait_s + 0.1 + 0.02 * (min(tokens, 8) - 1), tokens, wait_s + 0.1 + 0.02 * (tokens - 1))


def test_answers_shorter_than_a_group_of_tokens_come_earlier_but_the_others_have_not_waited():
    times = times_of(*map(grouped, (2, 3, 10, 10, 10, 10, 150, 400)))
    assert not times.are_queued
    assert times.pace is not None
    assert (times.pace.ttft_s, times.pace.token_s) == (pytest.approx(0.1), pytest.approx(0.02))


@pytest.mark.parametrize("lengths", [(2,) * 6 + (60,) * 4, tuple(range(1, 8)), (*range(4, 29, 4), 100, 200, 100)])
def test_groups_are_no_queue_however_many_answers_are_shorter(lengths: tuple[int, ...]):
    times = times_of(*map(grouped, lengths))
    assert not times.are_queued
    assert times.pace is not None
    assert (times.pace.ttft_s, times.pace.token_s) == (pytest.approx(0.1), pytest.approx(0.02))


def test_in_a_queue_the_pace_is_that_of_the_first_byte_and_of_the_rest():
    """The longest answers have waited longest, which would be taken for their length."""
    waits = {11: (0.0, 0.2), 21: (0.0, 0.8), 41: (0.0, 1.2), 81: (0.0, 1.8)}
    answers = [
        ended(0.5 + wait_s, tokens, 0.5 + wait_s + 0.02 * (tokens - 1)) for tokens, of in waits.items() for wait_s in of
    ]
    times = times_of(*answers)
    assert times.are_queued
    assert times.pace is not None
    assert (times.pace.ttft_s, times.pace.token_s) == (pytest.approx(0.5 + 0.5), pytest.approx(0.02))


@pytest.mark.parametrize("short_waits", [True, False])
def test_an_overload_counts_as_one_answer_time_of_waiting_whichever_answers_waited(short_waits: bool):
    waited_s = {10: 20.0 if short_waits else 0.0, 100: 0.0 if short_waits else 10.0}
    times = times_of(*(ended(0.5 + waited_s[n], n, 0.5 + waited_s[n] + 0.02 * (n - 1)) for n in (10,) * 4 + (100,) * 5))
    assert times.are_queued
    assert times.pace is not None
    served_s = 0.5 + 0.02 * (4 * 9 + 5 * 99) / 9
    assert times.pace.ttft_s + 0.02 * (4 * 9 + 5 * 99) / 9 == pytest.approx(2 * served_s)


def test_answers_that_come_whole_have_no_queue():
    times = AnswerTimes()
    for tokens in (10, 10, 400, 1000):
        whole = ended(2.0 + 0.02 * (tokens - 1), tokens, 2.0 + 0.02 * (tokens - 1))
        whole.is_streamed = False
        times.add(whole)
    assert times.pace is not None
    assert (times.pace.ttft_s, times.pace.token_s) == (pytest.approx(2.0), pytest.approx(0.02))


def test_equal_answers_have_the_pace_of_their_first_byte_and_of_the_rest():
    times = times_of(*(ended(0.5, 11, 1.5) for _ in range(3)))
    assert times.pace is not None
    assert (times.pace.ttft_s, times.pace.token_s) == (pytest.approx(0.5), pytest.approx(0.1))
