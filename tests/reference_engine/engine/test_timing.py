"""Times that the engine reports: of requests step by step, and on its page of metrics."""

import pytest

from bakeoff.reference_engine.core.outputs import Phases
from tests.reference_engine.server_calls import TEXT, with_server
from tests.reference_engine.stepping import Bench, request

PHASES = ("request_queue_time", "request_prefill_time", "request_decode_time")


def one_by_one(bench, count):
    """Outputs of the first steps; the clock ticks before each."""
    outputs = []
    for _ in range(count):
        bench.now += 1.0
        outputs += bench.step().outputs
    return outputs


def test_a_request_is_timed_from_its_arrival_token_by_token(fake_runner):
    bench = Bench(fake_runner(), tokens=8)
    bench.add(request("a", prompt=20, output=3))
    first, second, last = one_by_one(bench, 5)  # three chunks, then two more tokens
    assert (first.gap_s, first.phases) == (None, Phases(queue_s=1.0, prefill_s=2.0, decode_s=0.0))
    assert (second.gap_s, second.phases) == (1.0, None)
    assert (last.gap_s, last.phases) == (1.0, Phases(queue_s=1.0, prefill_s=2.0, decode_s=2.0))
    assert (first.phases.e2e_s, last.phases.e2e_s) == (3.0, 5.0)


def test_a_request_of_one_token_has_no_decode(fake_runner):
    bench = Bench(fake_runner())
    bench.add(request("a", output=1))
    (only,) = one_by_one(bench, 1)
    assert (only.gap_s, only.phases.decode_s) == (None, 0.0)


def test_what_waits_for_a_seat_waits_in_the_queue(fake_runner):
    bench = Bench(fake_runner(), seqs=1)
    bench.add(request("a", output=2), request("b", output=1))
    assert [output.phases.queue_s for output in one_by_one(bench, 3) if output.gap_s is None] == [1.0, 3.0]


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


def test_usage_tells_where_the_time_went_also_where_a_stop_string_ends_it(serve):
    async def test(s):
        text = (await s.post(TEXT, {"prompt": [5], "max_tokens": 9, "temperature": 0, "ignore_eos": True}))["choices"][
            0
        ]
        stop = text["text"][4]
        body = {"prompt": [5], "max_tokens": 9, "temperature": 0, "ignore_eos": True, "stop": stop}
        events = await s.stream(TEXT, body | {"stream_options": {"include_usage": True}})
        timings = events[-1]["usage"]["timings"]
        assert timings["decode_s"] > 0
        assert timings["queued_s"] + timings["prefill_s"] < timings["decode_s"] * 1000
        assert all("timings" not in (event.get("usage") or {}) for event in events[:-1])

    with_server(serve, test)
