"""Normalised interactivity worked by hand."""

import msgspec
import pytest

from bakeoff.results.metrics import trial_metrics
from bakeoff.results.records import Load, Outcome, RequestRecord, Slo
from tests.results.handmade import request, trial


def answer(e2e_ms: float, tokens: int, turn: int, outcome: Outcome = Outcome.OK) -> RequestRecord:
    made = request(10, [10 + e2e_ms], [tokens], outcome=outcome, index=turn)
    return msgspec.structs.replace(made, turn=turn)


def test_interactivity_is_one_over_a_percentile_of_seconds_per_token() -> None:
    """Ten to 73 ms a token: p50 lies at 41.5 ms and p90 at 66.7 ms, by linear interpolation."""
    answers = [answer(10 * (10 + k), 10, k) for k in range(64)]
    values = trial_metrics(trial(Load(concurrency=1)), [*answers, answer(9000, 1, 64, Outcome.STREAM_ERROR)], [], Slo())
    assert values["interactivity_p50"].value == pytest.approx(1 / 0.0415)
    assert values["interactivity_p90"].value == pytest.approx(1 / 0.0667)


def test_sessions_of_one_request_have_none() -> None:
    values = trial_metrics(trial(Load(concurrency=1)), [answer(100, 10, 0)] * 5, [], Slo())
    assert values["interactivity_p50"].reason == "no session has several requests"
