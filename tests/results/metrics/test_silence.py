"""Silences of an engine: long ones are found, and those that an engine has by design are not."""

from collections.abc import Iterable

import msgspec
import numpy as np
import pytest

from bakeoff.results.metrics.silence import Silence, unusual_silence
from bakeoff.results.records import Outcome, RequestRecord, Window
from bakeoff.results.requests import Requests
from tests.results.handmade import MS, request

MINUTE = Window(0, 60_000 * MS)


def slots(users: int, *, ttft_ms: Iterable[float], itl_ms: float = 20, tokens: int = 50) -> list[RequestRecord]:
    """A closed loop over a minute; the time to first token of each request is the next of ``ttft_ms``."""
    requests, ttfts = [], iter(ttft_ms)
    for user in range(users):
        t = user * 1000 / users - 1000
        while t < 60_000:
            first = t + next(ttfts)
            requests.append(request(t, [first + i * itl_ms for i in range(tokens)], sent=t, index=len(requests)))
            t = first + tokens * itl_ms
    return requests


def frozen(requests: list[RequestRecord], at_ms: float, for_ms: float) -> list[RequestRecord]:
    """The same requests on an engine that stops for a time."""

    def later(t_ns: int) -> int:
        return t_ns + round(for_ms * MS) if t_ns >= at_ms * MS else t_ns

    return [
        msgspec.structs.replace(
            one, planned_ns=later(one.planned_ns), sent_ns=later(one.sent_ns or 0), ended_ns=later(one.ended_ns),
            chunk_ns=[later(t) for t in one.chunk_ns],
        )
        for one in requests
    ]  # fmt: skip


def constant(ms: float) -> Iterable[float]:
    return iter(lambda: ms, None)


@pytest.mark.parametrize("users", [1, 16])
@pytest.mark.parametrize("for_ms", [2_000, 10_000])
def test_a_freeze_is_found_with_its_length(users: int, for_ms: float) -> None:
    found = unusual_silence(Requests(frozen(slots(users, ttft_ms=constant(100)), 30_005, for_ms)), MINUTE)
    assert found is not None
    assert found.length_s == pytest.approx(for_ms / 1000, abs=0.12)
    assert found.usual_s <= 0.12
    assert found.in_flight == users


def test_several_freezes_are_found() -> None:
    requests = slots(16, ttft_ms=constant(100))
    for at_ms in (10_000, 25_000, 40_000):
        requests = frozen(requests, at_ms, 3_000)
    assert unusual_silence(Requests(requests), MINUTE) is not None


def test_a_freeze_across_the_end_of_the_window_counts_as_far_as_it_lies_inside() -> None:
    found = unusual_silence(Requests(frozen(slots(4, ttft_ms=constant(100)), 55_000, 10_000)), MINUTE)
    assert found is not None
    assert found.length_s == pytest.approx(5.0, abs=0.12)


@pytest.mark.parametrize("users", [1, 4, 16])
def test_waits_for_prompts_are_no_freeze(users: int) -> None:
    """Each request waits for its own prompt, of lengths that vary by a factor of a hundred."""
    rng = np.random.default_rng(users)
    assert (
        unusual_silence(Requests(slots(users, ttft_ms=iter(lambda: float(rng.lognormal(6, 1.2)), None))), MINUTE)
        is None
    )


@pytest.mark.parametrize("users", [2, 8])
def test_whole_answers_of_one_slot_are_no_freeze(users: int) -> None:
    """Answers come one after the other, each in one piece, after times that vary widely."""
    rng, t, requests = np.random.default_rng(users), 0.0, []
    ends = [0.0] * users
    while t < 60_000:
        t += float(rng.lognormal(4.5, 1.2))
        requests.append(request(ends[0], [t], sent=ends[0]))
        ends = [*ends[1:], t]
    assert unusual_silence(Requests(requests), MINUTE) is None


@pytest.mark.parametrize("seed", range(3))
def test_slow_tokens_of_a_few_answers_are_no_freeze(seed: int) -> None:
    """Bursts of many answers on an unlimited server, and now and then one alone, with a token each second."""
    rng, requests = np.random.default_rng(seed), []
    for burst in range(0, 60_000, 15_000):
        starts = [*(burst + rng.uniform(0, 4_000, 60)), burst + 9_000.0]
        requests += [request(at, [at + 200 + 2_500 * number for number in range(3)], sent=at) for at in starts]
    assert unusual_silence(Requests(requests), MINUTE) is None


def test_time_without_a_request_is_no_freeze() -> None:
    """An open loop with pauses of up to 20 s between requests."""
    starts = [0, 1_000, 1_500, 2_000, *range(22_000, 32_000, 100), 50_000]
    assert unusual_silence(Requests(request(t, [t + 50, t + 70], sent=t) for t in starts), MINUTE) is None


def test_nothing_arrived() -> None:
    assert unusual_silence(Requests(), MINUTE) is None
    assert unusual_silence(Requests([request(0, outcome=Outcome.TIMEOUT, sent=0, ended=9_000)]), MINUTE) is None
    assert unusual_silence(Requests([request(0, [5, 9], sent=0)]), Window(0, 0)) is None


def test_worked() -> None:
    """Two requests in flight, chunks at 0, 10, 20 … 200 ms and after 700 ms: a silence of 500 ms beside ones of 10."""
    times = [*range(0, 201, 10), *range(700, 901, 10)]
    requests = [request(-1, times, sent=-1), request(-1, [905], sent=-1)]
    assert unusual_silence(Requests(requests), Window(0, 1000 * MS)) == Silence(length_s=0.5, usual_s=0.01, in_flight=2)
