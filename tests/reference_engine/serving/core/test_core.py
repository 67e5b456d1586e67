"""The server's side of an engine and the engine's side of the server, over a real socket, with a fake model."""

import asyncio
import contextlib
import itertools
import socket
import threading

import pytest

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.core.scheduling_rules import Rules
from bakeoff.reference_engine.engine.beam_engine import BeamSearchEngine
from bakeoff.reference_engine.engine.step import Engine
from bakeoff.reference_engine.errors import EngineUnavailableError, QueueFullError, RequestError
from bakeoff.reference_engine.kv_cache.block_pool import BlockPool
from bakeoff.reference_engine.kv_cache.cache import Group, KvCache
from bakeoff.reference_engine.sampling import Sampler
from bakeoff.reference_engine.scheduling.limits import Limits
from bakeoff.reference_engine.scheduling.scheduler import Scheduler
from bakeoff.reference_engine.serving.core import loop
from bakeoff.reference_engine.serving.core.client import EngineClient
from bakeoff.reference_engine.serving.core.wire import Facts
from tests.reference_engine.conftest import ThreadCore


@contextlib.asynccontextmanager
async def client_of(*runners, max_queue=100, max_num_seqs=8, num_blocks=(64,), device="cpu", grammars=None):
    """A client of one engine for each runner, and the reports that came."""
    config, sizes = EngineConfig(model="m", max_queue=max_queue, device=device), itertools.cycle(num_blocks)
    reports = []

    def load(_):
        rules = Rules(max_num_seqs=max_num_seqs, max_num_batched_tokens=16, max_waiting=max_queue)
        scheduler = Scheduler(KvCache([Group(BlockPool(64, 4))], prefix_caching=True), rules)
        limits = Limits(100, next(sizes), 4, 1000, max_num_seqs)
        engine = Engine(scheduler, left.pop(0), limits, sampler=Sampler(grammars))
        return BeamSearchEngine(engine, grammars=grammars), Facts(config, limits, frozenset(), "2", "torch", 1)

    left = list(runners)
    client = EngineClient(lambda number, report: reports.append((number, report)))
    replicated = EngineConfig(model="m", data_parallel_size=len(runners))
    cores = []

    def start_core(wanted, _):
        cores.append(ThreadCore(wanted, load))
        return cores[-1]

    async with asyncio.timeout(20):
        await client.start(replicated, start_core)
        try:
            yield client, reports
        finally:
            await client.stop()
    for core in cores:
        core.engine.check_integrity()


@pytest.fixture
def with_client(fake_runner):
    """Runs an async test with a client of one engine around a fake runner."""

    def start(test, runner=None):
        async def main():
            async with client_of(runner or fake_runner()) as (client, reports):
                await test(client, reports)

        asyncio.run(main())

    return start


def request(name, tokens=5):
    return Request(name, [1, 2], SamplingParams(max_tokens=tokens))


async def collect(stream):
    outputs = []
    while batch := await stream.next_outputs():
        outputs += batch
    return outputs


def test_tokens_arrive_in_order_and_the_stream_ends(with_client):
    async def test(client, reports):
        outputs = await collect(client.submit([request("a")]))
        assert [output.token.token_id for output in outputs] == [2, 3, 4, 5, 6]
        assert [report.computed_tokens for _, report in reports][:5] == [2, 1, 1, 1, 1]

    with_client(test)


@pytest.mark.parametrize("num_blocks", [(64, 5), (5, 64)])
def test_what_does_not_fit_into_the_smallest_cache_is_refused(fake_runner, num_blocks):
    async def main():
        async with client_of(fake_runner(), fake_runner(), num_blocks=num_blocks) as (client, _):
            with pytest.raises(RequestError, match="more than the 5 KV blocks"):
                client.submit([request("a", 30)])

    asyncio.run(main())


def test_several_requests_share_a_stream(with_client):
    async def test(client, _):
        outputs = await collect(client.submit([request("a", 3), request("b", 2)]))
        assert sorted(output.request_id for output in outputs) == ["a", "a", "a", "b", "b"]

    with_client(test)


def test_requests_of_a_session_go_to_one_engine_and_sessions_to_all(fake_runner):
    async def main():
        async with client_of(*(fake_runner() for _ in range(3))) as (client, _):
            places = []
            for number in range(12):
                before = [replica.num_sent for replica in client.replicas]
                for turn in range(2):
                    await collect(client.submit([request(f"{number}-{turn}", 1)], session=f"session {number}"))
                sent = [replica.num_sent - old for replica, old in zip(client.replicas, before, strict=True)]
                assert sorted(sent) == [0, 0, 2]
                places.append(sent.index(2))
            assert set(places) == {0, 1, 2}

    asyncio.run(main())


def test_siblings_come_out_of_the_stream_of_their_leader(with_client):
    async def test(client, _):
        leader = request("a", 3)
        leader.siblings = (request("a/1", 2), request("a/2", 4))
        outputs = await collect(client.submit([leader, request("b", 1)]))
        assert sorted(output.request_id for output in outputs) == sorted(["a"] * 3 + ["a/1"] * 2 + ["a/2"] * 4 + ["b"])

    with_client(test)


def test_a_sibling_that_can_never_be_computed_keeps_its_leader_out(with_client):
    async def test(client, _):
        leader = request("a", 3)
        leader.siblings = (request("a/1", 500),)
        with pytest.raises(RequestError, match="maximum model length"):
            client.submit([leader])

    with_client(test)


def test_one_bad_request_keeps_the_others_of_its_group_out(with_client):
    async def test(client, _):
        with pytest.raises(RequestError, match="maximum model length"):
            client.submit([request("a"), request("b", 500)])
        assert len(await collect(client.submit([request("c", 1)]))) == 1

    with_client(test)


def test_a_step_is_one_message_whatever_the_number_of_tokens(with_client):
    async def test(client, reports):
        await collect(client.submit([request(str(i)) for i in range(8)]))
        assert len(reports) <= 7  # eight requests of five tokens
        assert max(len(report.outputs) for _, report in reports) == 8

    with_client(test)


class Gate:
    """A runner that waits for permission, so that a test can act in the middle of a step."""

    def __init__(self, inner):
        self.inner = inner
        self.entered, self.go = threading.Event(), threading.Event()

    def launch(self, step, copies):
        self.entered.set()
        assert self.go.wait(20)
        return self.inner.launch(step, copies)


def test_closing_a_stream_in_the_middle_of_a_step_drops_its_tokens_and_frees_its_blocks(with_client, fake_runner):
    gate = Gate(fake_runner())

    async def test(client, reports):
        stream = client.submit([request("a", 50)])
        await asyncio.to_thread(gate.entered.wait)
        assert stream.close() == 1
        assert stream.close() == 0
        gate.go.set()
        assert len(await collect(client.submit([request("b", 2)]))) == 2
        assert await stream.next_outputs() == []
        assert sum(output.request_id == "a" for _, report in reports for output in report.outputs) <= 1

    with_client(test, gate)


def test_a_reset_waits_for_the_step_under_way_and_comes_before_the_next_request(with_client, fake_runner):
    gate = Gate(fake_runner())

    async def test(client, reports):
        async def cached():
            outputs = await collect(client.submit([Request("again", [1] * 9, SamplingParams(max_tokens=1))]))
            return outputs[-1].num_cached_tokens

        gate.go.set()
        assert [await cached(), await cached()] == [0, 8]
        gate.go.clear()
        gate.entered.clear()
        during = asyncio.ensure_future(cached())  # its blocks are entered after the reset was asked for
        await asyncio.to_thread(gate.entered.wait)
        client.reset_prefix_cache()
        gate.go.set()
        assert await during == 8
        assert [await cached(), await cached()] == [0, 8]
        before = len(reports)
        client.reset_prefix_cache()  # while idle: it must wake the thread
        while len(reports) == before:  # noqa: ASYNC110 (what changes it is a thread)
            await asyncio.sleep(0)
        assert await cached() == 0

    with_client(test, gate)


def test_a_crash_reaches_every_stream_and_later_callers(with_client, caplog):
    class Broken:
        def launch(self, step, copies):
            raise ZeroDivisionError("boom")

    async def test(client, _):
        streams = [client.submit([request(name)]) for name in "ab"]
        for stream in streams:
            with pytest.raises(EngineUnavailableError, match=r"crashed \(ZeroDivisionError: boom\); restart"):
                await collect(stream)
        with pytest.raises(EngineUnavailableError, match="crashed"):
            client.submit([request("c")])
        with pytest.raises(EngineUnavailableError, match="crashed"):
            client.reset_prefix_cache()

    with_client(test, Broken())
    assert "the engine crashed" in caplog.text


def test_an_idle_engine_says_nothing(with_client):
    async def test(client, reports):
        await collect(client.submit([request("a", 1)]))
        before = len(reports)
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(reports) == before

    with_client(test)


@pytest.mark.parametrize(("device", "expected"), [("cpu", [5]), ("cuda", [])])
def test_memory_is_given_back_between_requests_and_never_between_steps(monkeypatch, fake_runner, device, expected):
    runner, given_back = fake_runner(), []

    class Freed:
        def give_back(self):
            given_back.append(len(runner.steps))

    async def main():
        async with client_of(runner, device=device) as (client, _):
            assert len(await collect(client.submit([request("a", 5)]))) == 5

    monkeypatch.setattr(loop, "FreedMemory", Freed)
    asyncio.run(main())
    assert given_back == expected


def test_an_engine_that_is_gone_is_reported_once_it_is(with_client, fake_runner):
    gate = Gate(fake_runner())

    async def test(client, _):
        stream = client.submit([request("a", 50)])
        await asyncio.to_thread(gate.entered.wait)
        client.replicas[0].core.socket.shutdown(socket.SHUT_RDWR)  # as when its process was killed
        gate.go.set()
        with pytest.raises(EngineUnavailableError, match=r"process has ended \(the thread has ended\); restart"):
            await collect(stream)

    with_client(test, gate)


def test_who_would_wait_where_nobody_may_is_refused_before_and_by_the_engine(fake_runner):
    gate = Gate(fake_runner())

    async def main():
        async with client_of(gate, max_queue=2, max_num_seqs=1) as (client, _):
            streams = [client.submit([request(name, 3)]) for name in "abc"]  # one runs, two wait
            with pytest.raises(QueueFullError, match="2 requests are waiting already"):
                client.submit([request("d")])
            gate.go.set()
            assert [len(await collect(stream)) for stream in streams] == [3, 3, 3]
            client.replicas[0].check_queue = lambda *_: None  # as if nothing were known of it
            gate.go.clear()
            hasty = [client.submit([request(f"h{i}", 3)]) for i in range(3)]
            late = client.submit([request("late", 3)])
            gate.go.set()
            with pytest.raises(RequestError, match="waiting already") as caught:
                await collect(late)
            assert caught.value.status == 429
            assert [len(await collect(stream)) for stream in hasty] == [3, 3, 3]
            late.close()
            del client.replicas[0].check_queue
            again = client.submit([request(name, 1) for name in "xyz"])  # one runs, two wait: "late" is not counted
            assert len(await collect(again)) == 3

    asyncio.run(main())


class SlowGrammars:
    """Compiles when the test lets it."""

    def __init__(self):
        self.compiled, self.started, self.entered, self.go = set(), [], threading.Event(), threading.Event()

    def is_compiled(self, source):
        return source in self.compiled

    def compile(self, source):
        self.entered.set()
        assert self.go.wait(20)
        self.compiled.add(source)

    def start(self, source):
        if source not in self.compiled:
            self.compile(source)
        self.started.append(source)


def test_streams_go_on_while_a_grammar_is_compiled(fake_runner):
    grammars = SlowGrammars()

    def bound(name, grammar):
        return Request(name, [1, 2], SamplingParams(max_tokens=3, grammar=grammar))

    async def main():
        async with client_of(fake_runner(), grammars=grammars) as (client, _):
            waiting = client.submit([bound("waiting", "x")])
            gone = client.submit([bound("gone", "y")])
            await asyncio.to_thread(grammars.entered.wait)
            assert len(await collect(client.submit([request("free", 5)]))) == 5
            gone.close()
            assert len(await collect(client.submit([request("later", 2)]))) == 2  # so that the engine knows it
            grammars.go.set()
            assert len(await collect(waiting)) == 3  # an idle engine is woken
            assert len(await collect(client.submit([bound("again", "x")]))) == 3
            assert client.replicas[0].num_sent == client.replicas[0].last.arrived

    asyncio.run(main())
    assert grammars.started == ["x", "x"]


def test_replicas_share_the_requests_and_each_keeps_its_own(fake_runner):
    runners = [fake_runner(), fake_runner()]

    async def main():
        async with client_of(*runners) as (client, reports):
            outputs = await collect(client.submit([request(str(i), 3) for i in range(6)]))
            assert len(outputs) == 18
            assert {number for number, _ in reports} == {0, 1}
            await client.drained()
            assert [replica.num_open for replica in client.replicas] == [0, 0]

    asyncio.run(main())
    names = [{name for step in runner.steps for name, _, _ in step} for runner in runners]
    assert not names[0] & names[1]
    assert [len(of_one) for of_one in names] == [3, 3]


def test_draining_waits_for_the_last_request(fake_runner):
    gate = Gate(fake_runner())

    async def main():
        async with client_of(gate) as (client, _):
            stream = client.submit([request("a", 3)])
            drained = asyncio.ensure_future(client.drained())
            await asyncio.to_thread(gate.entered.wait)
            assert not drained.done()
            gate.go.set()
            await drained
            assert len(await collect(stream)) == 3

    asyncio.run(main())
