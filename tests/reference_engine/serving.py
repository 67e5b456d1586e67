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
    return await s.metric("requests_running") == 0 and await s.metric("kv_cache_used_blocks") == 0
