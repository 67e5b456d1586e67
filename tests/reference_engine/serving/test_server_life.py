import asyncio
import socket
import time

import pytest

from bakeoff.reference_engine.errors import CheckpointError, EngineUnavailableError, UserMistakeError
from tests.reference_engine.server_calls import CHAT, HELLO, LONG, TEXT, is_idle, run, slow_down, with_server


def test_the_role_waits_for_prefill(serve):
    async def test(s):
        gate = asyncio.Event()
        loop = asyncio.get_running_loop()
        engine = s.engine
        step = engine.step

        def held_step():
            asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()
            return step()

        engine.step = held_step
        body = {"messages": HELLO, "max_tokens": 1, "stream": True}
        async with s.client.post(CHAT, json=body) as answer:
            first = asyncio.ensure_future(answer.content.readany())
            await s.until(lambda: asyncio.sleep(0, s.engine.core._scheduler.num_waiting == 1))
            assert not first.done()
            gate.set()
            assert b'"role":"assistant"' in await first

    with_server(serve, test)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_blocks(serve, stream):
    async def test(s):
        step = slow_down(s)
        request = asyncio.ensure_future(s.client.post(TEXT, json=LONG | {"stream": stream}))
        if stream:
            answer = await request
            await answer.content.readany()
        else:
            await s.until(lambda: asyncio.sleep(0, step.called > 2))
        assert await s.metric("num_requests_running") == 1
        if stream:
            answer.close()
        else:
            request.cancel()
        await s.until(lambda: is_idle(s))
        assert step.called < 150
        async with s.client.get("/metrics") as metrics:
            assert 'request_success_total{finished_reason="abort",model_name="tiny"} 1.0' in await metrics.text()

    with_server(serve, test)


def test_everything_is_503_while_loading_and_well_after(serve):
    async def test():
        async with serve(load=False) as s:
            async with s.client.get("/health") as answer:
                assert answer.status == 503
                assert "still loading" in (await answer.json())["error"]["message"]
            await s.post(TEXT, {"prompt": "x"}, status=503)
            async with s.client.get("/version") as answer:
                assert (await answer.json())["status"] == "loading"
            async with s.client.get("/v1/models") as answer:
                assert (await answer.json())["data"][0]["id"] == "tiny"
            await s.service.load()
            async with s.client.get("/health") as answer:
                assert (answer.status, await answer.read()) == (200, b"")
            async with s.client.get("/version") as answer:
                version = await answer.json()
            assert version["status"] == "ready"
            assert version["config"]["num_blocks"] == 64
            assert version["config"]["max_model_len"] == 256
            assert version["torch"]

    run(test())


def test_a_loader_that_fails_hands_its_error_on(serve):
    def broken(_):
        raise CheckpointError("no such model")

    async def test():
        async with serve(broken, load=False) as s:
            with pytest.raises(UserMistakeError, match="no such model"):
                await s.service.load()

    run(test())


def test_a_crash_in_the_step_loop_fails_requests_and_health(serve, caplog):
    async def test(s):
        step = slow_down(s)
        engine = s.engine
        slowed = engine.step

        def crash():
            if step.called >= 3:
                raise ZeroDivisionError("boom")
            return slowed()

        engine.step = crash
        async with s.client.post(TEXT, json=LONG) as answer:
            text = await answer.text()
        assert "the engine crashed (ZeroDivisionError: boom)" in text
        assert text.endswith("data: [DONE]\n\n")
        async with s.client.get("/health") as answer:
            assert answer.status == 503
        error = (await s.post(TEXT, {"prompt": "x"}, status=503))["error"]
        assert "crashed" in error["message"]

    with_server(serve, test)
    assert "the engine crashed" in caplog.text


def test_stopping_fails_what_is_in_flight(serve):
    async def test(s):
        slow_down(s)
        answer = await s.client.post(TEXT, json=LONG)
        await answer.content.readany()
        await s.service.stop()
        assert b"the server is stopping" in await answer.read()
        with pytest.raises(EngineUnavailableError, match="stopping"):
            s.service.ready()

    with_server(serve, test)


def test_metrics_count_what_happened(serve):
    async def test(s):
        await s.post(TEXT, {"prompt": [5] * 100, "max_tokens": 4, "ignore_eos": True})
        assert await s.metric("prompt_tokens_total") == 100
        assert await s.metric("generation_tokens_total") == 4
        assert await s.metric("computed_tokens_total") == 103
        assert await s.metric("step_seconds_count") == 5  # 64 + 36 prompt tokens, then three decodes
        assert await s.metric("request_queue_time_seconds_count") == 1
        assert await s.metric("kv_cache_total_blocks") == 64
        assert await s.metric("num_preemptions_total") == 0

    with_server(serve, test)


def test_the_event_loop_goes_on_while_the_engine_and_the_tokenizer_work(serve):
    async def test(s):
        worst, stop = 0.0, False

        async def watch():
            nonlocal worst
            while not stop:
                before = time.perf_counter()
                await asyncio.sleep(0.001)
                worst = max(worst, time.perf_counter() - before - 0.001)

        watcher = asyncio.ensure_future(watch())
        # A text this long takes the tokenizer far more than the bound; it is refused afterwards for its length.
        await s.post(TEXT, {"prompt": "hello world " * 40_000}, status=400)
        await asyncio.gather(*(s.stream(TEXT, LONG) for _ in range(4)))
        stop = True
        await watcher
        assert worst < 0.25

    with_server(serve, test)


def test_small_chunks_leave_at_once(serve):
    async def test(s):
        async with s.client.post(TEXT, json=LONG) as answer:
            await answer.content.readany()
            await answer.read()
        handler = next(iter(s.client.server.runner.server.connections))
        sock = handler.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    with_server(serve, test)
