"""The prefix cache as a client sees it: usage, metrics, reset, salt, the setting."""

import asyncio

import pytest

from tests.reference_engine.server_calls import CHAT, HELLO, LONG, TEXT, slow_down, with_server

PROMPT = [*range(5, 45)]  # forty tokens: two blocks of 16 and eight more; the last is always computed
BODY = {"prompt": PROMPT, "max_tokens": 3, "temperature": 0, "ignore_eos": True}


def counts_of(usage):
    """Without the times, which differ."""
    return {name: value for name, value in usage.items() if name != "timings"}


async def usage_of(s, path, body):
    return counts_of((await s.post(path, body))["usage"])


async def cached_tokens(s, body=BODY):
    return (await usage_of(s, TEXT, body))["prompt_tokens_details"]["cached_tokens"]


async def streamed_usage(s, path, body):
    events = await s.stream(path, body | {"stream_options": {"include_usage": True}})
    return counts_of(events[-1]["usage"])


def test_usage_says_how_many_prompt_tokens_came_from_the_cache(serve):
    async def test(s):
        counts = {"prompt_tokens": 40, "completion_tokens": 3, "total_tokens": 43}
        for cached in (0, 39, 39):
            assert await usage_of(s, TEXT, BODY) == counts | {"prompt_tokens_details": {"cached_tokens": cached}}
        assert await streamed_usage(s, TEXT, BODY) == counts | {"prompt_tokens_details": {"cached_tokens": 39}}
        other = BODY | {"prompt": [99, *PROMPT]}
        assert (await streamed_usage(s, TEXT, other))["prompt_tokens_details"] == {"cached_tokens": 0}

    with_server(serve, test)


def test_chats_say_so_too(serve):
    async def test(s):
        body = {"messages": HELLO, "max_tokens": 2, "ignore_eos": True}
        first, second = await usage_of(s, CHAT, body), await usage_of(s, CHAT, body)
        all_but_one = first["prompt_tokens"] - 1
        assert first["prompt_tokens_details"] == {"cached_tokens": 0}
        assert second["prompt_tokens_details"] == {"cached_tokens": all_but_one}
        assert (await streamed_usage(s, CHAT, body))["prompt_tokens_details"] == {"cached_tokens": all_but_one}

    with_server(serve, test)


def test_every_chunk_says_so_when_asked(serve):
    async def test(s):
        await s.post(TEXT, BODY)
        events = await s.stream(TEXT, BODY | {"stream_options": {"continuous_usage_stats": True}})
        assert [event["usage"]["prompt_tokens_details"]["cached_tokens"] for event in events] == [39] * 3

    with_server(serve, test)


def test_each_prompt_is_counted_once_however_many_choices_it_has(serve):
    async def test(s):
        await s.post(TEXT, BODY)
        body = BODY | {"prompt": [PROMPT, PROMPT[:20], [200]], "n": 2}
        usage = await usage_of(s, TEXT, body)
        assert (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]) == (61, 39 + 19)

    with_server(serve, test)


@pytest.mark.parametrize(("path", "body"), [(TEXT, BODY), (CHAT, {"messages": HELLO, "max_tokens": 1})])
def test_switched_off_there_are_no_details_and_nothing_is_counted(serve, path, body):
    async def test(s):
        await s.post(path, body)
        assert "prompt_tokens_details" not in await usage_of(s, path, body)
        assert "prompt_tokens_details" not in await streamed_usage(s, path, body)
        assert await s.metric("prefix_cache_queries_total") == 0
        assert await s.post("/reset_prefix_cache", {}) == {}
        async with s.client.get("/version") as answer:
            assert (await answer.json())["config"]["enable_prefix_caching"] is False

    with_server(serve, test, enable_prefix_caching=False)


def test_it_is_on_unless_switched_off_and_version_says_so(serve):
    async def test(s):
        async with s.client.get("/version") as answer:
            assert (await answer.json())["config"]["enable_prefix_caching"] is True

    with_server(serve, test)


def test_metrics_count_lookups_hits_and_evictions(serve):
    async def test(s):
        async def counts():
            names = ("queries", "hits", "evicted_blocks")
            return [await s.metric(f"prefix_cache_{name}_total") for name in names]

        await s.post(TEXT, BODY)
        assert await counts() == [40, 0, 0]
        await s.post(TEXT, BODY)
        assert await counts() == [80, 39, 0]
        assert await s.metric("prompt_tokens_total") == 80
        assert await s.metric("computed_tokens_total") == 42 + 3
        await s.post(TEXT, BODY | {"prompt": [200] * 60})  # all four blocks
        assert await counts() == [140, 39, 3]
        assert await s.metric("kv_cache_used_blocks") == 0

    with_server(serve, test, num_blocks=4)


def test_after_a_reset_nothing_of_before_is_found(serve):
    async def test(s):
        assert [await cached_tokens(s), await cached_tokens(s)] == [0, 39]
        assert await s.post("/reset_prefix_cache", {}) == {}
        assert [await cached_tokens(s), await cached_tokens(s)] == [0, 39]

    with_server(serve, test)


def test_a_reset_lets_requests_under_way_go_on(serve):
    async def test(s):
        undisturbed = [event["choices"][0]["text"] for event in await s.stream(TEXT, LONG)]
        slow_down(s)
        stream = asyncio.ensure_future(s.stream(TEXT, LONG))

        async def is_running():
            return await s.metric("num_requests_running") == 1

        await s.until(is_running)
        for _ in range(5):
            await s.post("/reset_prefix_cache", {})
            assert await is_running()
        assert [event["choices"][0]["text"] for event in await stream] == undisturbed

    with_server(serve, test)


def test_a_reset_needs_an_engine_and_post(serve):
    async def test(s):
        async with s.client.get("/reset_prefix_cache") as answer:
            assert answer.status == 405
        await s.service.stop()
        assert "stopping" in (await s.post("/reset_prefix_cache", {}, status=503))["error"]["message"]

    with_server(serve, test)


def test_clients_with_different_salts_do_not_find_each_others_prompts(serve):
    async def test(s):
        assert [await cached_tokens(s, BODY | {"cache_salt": salt}) for salt in ("x", "y", None, "x")] == [0, 0, 0, 39]
        error = (await s.post(TEXT, BODY | {"cache_salt": ""}, status=400))["error"]
        assert error["param"] == "cache_salt"

    with_server(serve, test)
