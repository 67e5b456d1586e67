"""The pace of an engine from the answers of a ramp, and how well it is known."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bakeoff.harness.client.answer_times import AnswerTimes

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


def test_in_a_queue_the_pace_is_that_behind_the_first_byte_whatever_waited():
    """The longest answers have waited longest, which would be taken for their length."""
    waits = {10: 0.0, 20: 0.4, 40: 0.8, 80: 1.2}
    times = times_of(*(grouped(tokens, wait_s) for tokens, wait_s in waits.items()))
    assert times.are_queued
    assert times.pace is not None
    assert times.pace.token_s == pytest.approx(0.02)
    assert times.pace.ttft_s == pytest.approx(0.1 + 0.6), "as late as they were on average"


def test_equal_answers_have_the_pace_of_their_first_byte_and_of_the_rest():
    times = times_of(*(ended(0.5, 11, 1.5) for _ in range(3)))
    assert times.pace is not None
    assert (times.pace.ttft_s, times.pace.token_s) == (pytest.approx(0.5), pytest.approx(0.1))
