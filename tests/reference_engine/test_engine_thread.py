import asyncio
import threading

import pytest

from reference_engine.engine import Engine
from reference_engine.engine_thread import EngineThread
from reference_engine.errors import EngineUnavailableError, RequestError
from reference_engine.kv_cache.block_pool import BlockPool
from reference_engine.kv_cache.cache import Group, KvCache
from reference_engine.limits import Limits
from reference_engine.request import Request, SamplingParams
from reference_engine.scheduling.rules import Rules
from reference_engine.scheduling.scheduler import Scheduler


@pytest.fixture
def with_thread(fake_runner):
    """Runs an async test with an engine thread around a fake runner, and stops the thread afterwards."""

    def start(test, runner=None):
        async def main():
            pool = BlockPool(64, 4)
            cache = KvCache([Group(pool)], prefix_caching=True)
            scheduler = Scheduler(cache, Rules(max_num_seqs=8, max_num_batched_tokens=16))
            engine = Engine(scheduler, runner or fake_runner(), Limits(100, 64, 4, 1000))
            reports = []
            thread = EngineThread(engine, asyncio.get_running_loop(), reports.append)
            try:
                async with asyncio.timeout(20):
                    await test(thread, reports)
            finally:
                await thread.stop()
            engine.check_integrity()
            assert pool.num_used == 0 or thread.failure is not None

        asyncio.run(main())

    return start


def request(name, tokens=5):
    return Request(name, [1, 2], SamplingParams(max_tokens=tokens))


async def collect(stream):
    outputs = []
    while batch := await stream.next_outputs():
        outputs += batch
    return outputs


def test_tokens_arrive_in_order_and_the_stream_ends(with_thread):
    async def test(thread, reports):
        outputs = await collect(thread.submit([request("a")]))
        assert [output.token.token_id for output in outputs] == [2, 3, 4, 5, 6]
        assert [report.computed_tokens for report in reports][:5] == [2, 1, 1, 1, 1]

    with_thread(test)


def test_several_requests_share_a_stream(with_thread):
    async def test(thread, _):
        outputs = await collect(thread.submit([request("a", 3), request("b", 2)]))
        assert sorted(output.request_id for output in outputs) == ["a", "a", "a", "b", "b"]

    with_thread(test)


def test_siblings_come_out_of_the_stream_of_their_leader(with_thread):
    async def test(thread, _):
        leader = request("a", 3)
        leader.siblings.extend([request("a/1", 2), request("a/2", 4)])
        outputs = await collect(thread.submit([leader, request("b", 1)]))
        assert sorted(output.request_id for output in outputs) == sorted(["a"] * 3 + ["a/1"] * 2 + ["a/2"] * 4 + ["b"])

    with_thread(test)


def test_a_sibling_that_can_never_be_computed_keeps_its_leader_out(with_thread):
    async def test(thread, _):
        leader = request("a", 3)
        leader.siblings.append(request("a/1", 500))
        with pytest.raises(RequestError, match="maximum model length"):
            thread.submit([leader])

    with_thread(test)


def test_one_bad_request_keeps_the_others_of_its_group_out(with_thread):
    async def test(thread, _):
        with pytest.raises(RequestError, match="maximum model length"):
            thread.submit([request("a"), request("b", 500)])
        assert len(await collect(thread.submit([request("c", 1)]))) == 1

    with_thread(test)


def test_each_step_wakes_the_loop_once(with_thread, fake_runner):
    async def test(thread, reports):
        loop, calls = asyncio.get_running_loop(), []
        original = loop.call_soon_threadsafe

        def counted(*args, **kwargs):
            if threading.current_thread().name == "engine":
                calls.append(args)
            return original(*args, **kwargs)

        loop.call_soon_threadsafe = counted
        await collect(thread.submit([request(str(i)) for i in range(8)]))
        del loop.call_soon_threadsafe
        assert len(calls) == len(reports) <= 7  # eight requests of five tokens

    with_thread(test)


class Gate:
    """A runner that waits for permission, so that a test can act in the middle of a step."""

    def __init__(self, inner):
        self.inner = inner
        self.entered, self.go = threading.Event(), threading.Event()

    def run(self, step, moves):
        self.entered.set()
        assert self.go.wait(20)
        return self.inner.run(step, moves)


def test_closing_a_stream_in_the_middle_of_a_step_drops_its_tokens_and_frees_its_blocks(with_thread, fake_runner):
    gate = Gate(fake_runner())

    async def test(thread, reports):
        stream = thread.submit([request("a", 50)])
        await asyncio.to_thread(gate.entered.wait)
        assert stream.close() == 1
        assert stream.close() == 0
        gate.go.set()
        assert len(await collect(thread.submit([request("b", 2)]))) == 2
        assert await stream.next_outputs() == []
        assert sum(output.request_id == "a" for report in reports for output in report.outputs) <= 1

    with_thread(test, gate)


def test_a_reset_waits_for_the_step_under_way_and_comes_before_the_next_request(with_thread, fake_runner):
    gate = Gate(fake_runner())

    async def test(thread, reports):
        async def cached():
            outputs = await collect(thread.submit([Request("again", [1] * 9, SamplingParams(max_tokens=1))]))
            return outputs[-1].num_cached_tokens

        gate.go.set()
        assert [await cached(), await cached()] == [0, 8]
        gate.go.clear()
        gate.entered.clear()
        during = asyncio.ensure_future(cached())  # its blocks are entered after the reset was asked for
        await asyncio.to_thread(gate.entered.wait)
        thread.reset_prefix_cache()
        gate.go.set()
        assert await during == 8
        assert [await cached(), await cached()] == [0, 8]
        before = len(reports)
        thread.reset_prefix_cache()  # while idle: it must wake the thread
        while len(reports) == before:  # noqa: ASYNC110 (what changes it is a thread)
            await asyncio.sleep(0)
        assert await cached() == 0

    with_thread(test, gate)


def test_a_crash_reaches_every_stream_and_later_callers(with_thread, caplog):
    class Broken:
        def run(self, step, moves):
            raise ZeroDivisionError("boom")

    async def test(thread, _):
        streams = [thread.submit([request(name)]) for name in "ab"]
        for stream in streams:
            with pytest.raises(EngineUnavailableError, match=r"crashed \(ZeroDivisionError: boom\); restart"):
                await collect(stream)
        with pytest.raises(EngineUnavailableError, match="crashed"):
            thread.submit([request("c")])
        with pytest.raises(EngineUnavailableError, match="crashed"):
            thread.reset_prefix_cache()

    with_thread(test, Broken())
    assert "step loop crashed" in caplog.text


def test_an_idle_thread_sleeps_on_its_condition(with_thread):
    async def test(thread, reports):
        await collect(thread.submit([request("a", 1)]))
        before = len(reports)
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(reports) == before

    with_thread(test)
