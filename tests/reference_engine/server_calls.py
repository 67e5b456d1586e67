"""What the tests of the HTTP server share: paths, bodies, and a server for the length of a coroutine."""

import asyncio

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
LONG = {"prompt": [5], "max_tokens": 200, "ignore_eos": True, "temperature": 0, "stream": True}


def run(coroutine):
    asyncio.run(coroutine)


def with_server(serve, test, **settings):
    async def main():
        async with serve(**settings) as served:
            await test(served)

    run(main())


async def is_idle(s):
    return await s.metric("num_requests_running") == 0 and await s.metric("kv_cache_used_blocks") == 0


def slow_down(s):
    """Lets the event loop go round several times between steps, so that a test can act in the middle of a request."""
    engine, loop = s.engine, asyncio.get_running_loop()
    original = engine.step

    async def rounds():
        for _ in range(20):
            await asyncio.sleep(0)

    def step():
        step.called += 1
        asyncio.run_coroutine_threadsafe(rounds(), loop).result(10)
        return original()

    step.called = 0
    engine.step = step
    return step
