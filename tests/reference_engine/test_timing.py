"""What the engine says of its own times: of requests step by step, and on its page."""

import pytest

from reference_engine.request import Request, SamplingParams
from reference_engine.timing import StepTimes
from tests.reference_engine.serving import TEXT, with_server

PHASES = ("request_queue", "request_prefill_time", "request_decode_time")


def request(arrival_s: float, first_scheduled_s: float) -> Request:
    made = Request("r", [1, 2, 3], SamplingParams(max_tokens=3))
    made.arrival_s, made.first_scheduled_s = arrival_s, first_scheduled_s
    return made


def test_a_request_is_timed_from_its_arrival_token_by_token():
    one, times = request(10.0, 11.0), StepTimes()
    for number, now_s in enumerate((13.0, 13.5, 14.5)):
        times.take(one, now_s, is_last=number == 2)
    assert (times.ttfts_s, times.gaps_s) == ([3.0], [0.5, 1.0])
    (life,) = times.ended
    assert (life.queue_s, life.prefill_s, life.decode_s, life.e2e_s) == (1.0, 2.0, 1.5, 4.5)


def test_a_request_of_one_token_has_no_decode():
    times = StepTimes()
    times.take(request(10.0, 10.5), 11.0, is_last=True)
    assert (times.ttfts_s, times.gaps_s, times.ended[0].decode_s) == ([1.0], [], 0.0)


def test_requests_of_one_step_are_timed_apart():
    times = StepTimes()
    for arrival_s in (1.0, 2.0):
        times.take(request(arrival_s, 3.0), 4.0, is_last=False)
    assert times.ttfts_s == [3.0, 2.0]


def test_the_page_holds_every_request_once_and_its_phases_sum_to_the_whole(serve):
    async def test(s):
        for max_tokens in (1, 4):
            await s.post(TEXT, {"prompt": [5] * 100, "max_tokens": max_tokens, "ignore_eos": True})
        assert {await s.metric(f"{name}_seconds_count") for name in PHASES} == {2}
        assert await s.metric("time_to_first_token_seconds_count") == 2
        assert await s.metric("inter_token_latency_seconds_count") == 3
        assert await s.metric("e2e_request_latency_seconds_count") == 2
        phases_s = [await s.metric(f"{name}_seconds_sum") for name in PHASES]
        assert sum(phases_s) == pytest.approx(await s.metric("e2e_request_latency_seconds_sum"))
        assert phases_s[-1] == pytest.approx(await s.metric("inter_token_latency_seconds_sum"))

    with_server(serve, test)
