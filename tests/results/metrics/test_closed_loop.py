"""Rates of closed loops in the long run, against arithmetic by hand."""

import itertools
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from bakeoff.results.metrics.trial import trial_metrics
from bakeoff.results.records import ClientRecord, Load, Outcome, RequestRecord, Slo, TrafficRecord
from bakeoff.results.units import NS_PER_S
from tests.results.handmade import request, trial


def rate(
    requests: Sequence[RequestRecord],
    slots: int,
    *,
    name: str = "requests_per_s",
    traffic: TrafficRecord | None = None,
    clients: Sequence[ClientRecord] = (),
) -> float | None:
    record = msgspec.structs.replace(trial(Load(concurrency=slots)), traffic=traffic, clients=list(clients))
    return trial_metrics(record, requests, [], Slo())[name].value


def chain(times_ms: Sequence[float], *, first: int = 0, starts_ms: float = 0) -> list[RequestRecord]:
    """The requests of one slot, one behind another."""
    ends = np.cumsum([starts_ms, *times_ms]).tolist()
    return [
        msgspec.structs.replace(request(start, [start + 1, end], [1, 3], index=first + i), session=f"s{first + i}")
        for i, (start, end) in enumerate(itertools.pairwise(ends))
    ]


def test_a_request_ends_outside_the_window_and_counts_whole() -> None:
    """Two slots; window of 1 s: requests of 400 ms and one of 3 s. 2 × 4 / (3 × 0.4 + 3) requests, four tokens each."""
    requests = [*chain([400, 400, 400]), *chain([3000], first=10)]
    assert rate(requests, 2) == pytest.approx(8 / 4.2)
    assert rate(requests, 2, name="output_tokens_per_s") == pytest.approx(32 / 4.2)


def test_slots_are_left_out_one_at_a_time() -> None:
    """Three slots with 1, 2 and 5 requests in 1,000, 1,200 and 1,000 ms: ratios 24/3.2, and 21/2.2, 18/2, 9/2.2."""
    slots = [chain([1000]), chain([600, 600], first=10), chain([200] * 5, first=20)]
    requests = [each for slot in slots for each in slot]
    others = [3 * 7 / 2.2, 3 * 6 / 2.0, 3 * 3 / 2.2]
    assert rate(requests, 3) == pytest.approx(3 * 24 / 3.2 - 2 * sum(others) / 3)
    unlinked = [msgspec.structs.replace(each, planned_ns=each.planned_ns + each.index) for each in requests]
    assert rate(unlinked, 3) == pytest.approx(24 / 3.2, rel=1e-6), "slots are not known"


def test_this_client_pauses_behind_failures() -> None:
    """Four requests of 100 ms, two of which fail: 2 in 400 ms of other clients, in 600 of this one."""
    requests = [
        msgspec.structs.replace(each, outcome=Outcome.HTTP_ERROR if each.index % 2 else Outcome.OK)
        for each in chain([100] * 4)
    ]
    assert rate(requests, 1) == pytest.approx(2 / 0.4)
    assert rate(requests, 1, clients=[ClientRecord("here", 4, 0.1, 1)]) == pytest.approx(2 / 0.6)
    late = [msgspec.structs.replace(each, outcome=Outcome.TIMEOUT) for each in requests[:2]]
    assert rate([*late, *requests[2:]], 1, clients=[ClientRecord("here", 4, 0.1, 1)]) == pytest.approx(1 / 0.5)


def test_pauses_of_sessions_are_those_of_the_plan() -> None:
    """Ten requests and 5 s of pauses a session, 100 ms a request: 2 × 10 / (5 + 10 × 0.1) a second."""
    traffic = TrafficRecord(
        sha256="", sessions=1, requests=1, prompt_tokens=1, output_tokens=1, repeated_tokens=0, block_tokens=16,
        turns=10.0, session_tool_s=5.0,
    )  # fmt: skip
    assert rate(chain([100] * 4), 2, traffic=traffic) == pytest.approx(20 / 6)
    unknown = msgspec.structs.replace(traffic, session_tool_s=None)
    assert rate(chain([100] * 4), 2, traffic=unknown) == pytest.approx(4.0), "those of the window of 1 s"


def test_a_load_that_begins_with_new_answers_has_no_bias() -> None:
    """Eight slots whose first answers are new ones, of exponential times; 12 s of them behind 3 s of ramp."""
    rng = np.random.default_rng(0)
    rates = []
    for _ in range(60):
        slots = [chain((1000 * rng.exponential(1.0, 40)).tolist(), first=100 * slot) for slot in range(8)]
        requests = [each for slot in slots for each in slot if each.planned_ns < 15 * NS_PER_S]
        record = trial(Load(concurrency=8), issue_start=3_000, issue_end=15_000)
        rates.append(trial_metrics(record, requests, [], Slo())["requests_per_s"].value)
    assert np.mean(rates) == pytest.approx(8.0, rel=0.04)
