import gzip
import zlib

import pytest

from bakeoff.reference_engine.serving.openai_api import fields
from tests.reference_engine.server_calls import CHAT, HELLO, TEXT, with_server

SEARCH = {"prompt": "x", "use_beam_search": True, "n": 2}
CHAT_SEARCH = {"messages": HELLO, "use_beam_search": True, "n": 2}


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "message"),
    [
        (TEXT, {}, 400, "prompt", "missing required field"),
        (TEXT, {"prompt": "x", "max_tokens": "3"}, 400, "max_tokens", "Expected `int"),
        (TEXT, {"prompt": "x", "temperature": -1}, 400, "temperature", ">= 0"),
        (TEXT, {"prompt": "x", "stop": [3]}, 400, "stop", "Expected `str`"),
        (TEXT, {"prompt": "x", "max_tokns": 3}, 400, "max_tokns", "unknown field `max_tokns`"),
        (TEXT, {"prompt": "x", "stream_options": {"usage": 1}}, 400, "usage", "unknown field"),
        (TEXT, {"prompt": "x", "frequency_penalty": 2.5}, 400, "frequency_penalty", "<= 2"),
        (TEXT, {"prompt": "x", "repetition_penalty": 0}, 400, "repetition_penalty", "> 0"),
        (TEXT, {"prompt": "x", "min_p": 1.5}, 400, "min_p", "<= 1"),
        (TEXT, {"prompt": "x", "logit_bias": {"5": 101}}, 400, "logit_bias", "<= 100"),
        (TEXT, {"prompt": "x", "logit_bias": {"five": 1}}, 400, "logit_bias", "Expected `int"),
        (TEXT, {"prompt": "x", "logit_bias": {"266": 1}}, 400, "logit_bias", "266, which is outside the vocabulary"),
        (TEXT, {"prompt": "x", "watermark": {"delta": -1}}, 400, "watermark", ">= 0"),
        (TEXT, {"prompt": "x", "watermark": {"gamma": 1}}, 400, "watermark", "<= 0.99"),
        (CHAT, {"messages": HELLO, "watermark": {"key": -1}}, 400, "watermark", ">= 0"),
        (CHAT, {"messages": HELLO, "watermark": {"keys": 1}}, 400, "keys", "unknown field"),
        (TEXT, {"prompt": "x", "stop_token_ids": [-1]}, 400, "stop_token_ids", "-1, which is outside the vocabulary"),
        (TEXT, {"prompt": "x", "priority": "high"}, 400, "priority", "Expected `int"),
        (TEXT, {"prompt": "x", "n": 3, "best_of": 2}, 400, "best_of", "best_of 2 is less than n 3"),
        (TEXT, {"prompt": "x", "best_of": 2, "stream": True}, 400, "best_of", "a stream cannot wait"),
        (TEXT, {"prompt": "x", "n": 9}, 400, "n", "9 answers to one prompt are more than the 8 sequences"),
        (TEXT, {"prompt": "x", "max_tokens": 0}, 400, "max_tokens", "needs echo: true"),
        (TEXT, {"prompt": "x", "echo": True, "logprobs": 1, "stream": True}, 400, "echo", "not in streams"),
        (TEXT, SEARCH | {"echo": True}, 400, "echo", "contradicts use_beam_search"),
        (TEXT, {"prompt": "x", "suffix": "y"}, 400, "suffix", "not supported"),
        (TEXT, {"prompt": "x", "logprobs": 21}, 400, "logprobs", "<= 20"),
        (CHAT, {"messages": HELLO, "top_logprobs": 2}, 400, "top_logprobs", "needs logprobs: true"),
        (CHAT, {"messages": HELLO, "n": 3, "best_of": 2}, 400, "best_of", "best_of 2 is less than n 3"),
        (TEXT, SEARCH | {"n": 1}, 400, "best_of", "needs at least 2 beams"),
        (TEXT, SEARCH | {"stream": True}, 400, "stream", "contradicts use_beam_search"),
        (CHAT, CHAT_SEARCH | {"stream": True, "best_of": 3}, 400, "best_of", "a stream cannot wait"),
        (TEXT, SEARCH | {"temperature": 0.5}, 400, "temperature", "contradicts use_beam_search"),
        (TEXT, SEARCH | {"top_p": 0.5}, 400, "top_p", "contradicts use_beam_search"),
        (TEXT, SEARCH | {"top_k": 5}, 400, "top_k", "contradicts use_beam_search"),
        (TEXT, SEARCH | {"min_p": 0.5}, 400, "min_p", "contradicts use_beam_search"),
        (CHAT, CHAT_SEARCH | {"stop": "x"}, 400, "stop", "contradicts use_beam_search"),
        (TEXT, SEARCH | {"guided_regex": "x"}, 400, "guided_regex", "contradicts use_beam_search"),
        (TEXT, SEARCH | {"length_penalty": 11}, 400, "length_penalty", "<= 10"),
        (TEXT, SEARCH | {"early_stopping": "soon"}, 400, "early_stopping", "Invalid enum value"),
        (TEXT, SEARCH | {"n": 9}, 400, "n", "9 answers to one prompt are more than the 8 sequences"),
        (TEXT, {"prompt": "x", "length_penalty": 2}, 400, "length_penalty", "no effect without use_beam_search"),
        (CHAT, {"messages": HELLO, "early_stopping": True}, 400, "early_stopping", "no effect without"),
        (TEXT, {"prompt": "x", "min_tokens": 5, "max_tokens": 4}, 400, "min_tokens", "more than max_tokens"),
        (TEXT, {"prompt": []}, 400, "prompt", "empty list"),
        (TEXT, {"prompt": ""}, 400, "prompt", "prompt is empty"),
        (TEXT, {"prompt": ["a", 3]}, 400, "prompt", "text, a list of token ids"),
        (TEXT, {"prompt": ["a"] * 300}, 400, "prompt", "300 prompts"),
        (TEXT, {"prompt": [9999]}, 400, "prompt", "token id 9999 is outside the vocabulary of 266"),
        (TEXT, {"prompt": [5] * 256, "max_tokens": 1}, 400, "prompt", "256 tokens"),
        (TEXT, {"prompt": [5] * 200, "max_tokens": 57}, 400, "max_tokens", "at most 56"),
        (TEXT, {"prompt": "x", "model": "gpt"}, 404, "model", "'gpt' does not exist here; this server has 'tiny'"),
        (CHAT, {"messages": []}, 400, "messages", "length >= 1"),
        (CHAT, {"messages": [{"content": "x"}]}, 400, "messages", "role must be a string"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages", "type text"),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, 400, "messages", "must be a string"),
        (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, 400, "messages", "no robots"),
        (CHAT, {"messages": HELLO, "chat_template_kwargs": {"messages": 5}}, 400, "chat_template_kwargs", "cannot set"),
        (CHAT, {"messages": HELLO, "chat_template_kwargs": {"self": 5}}, 400, "chat_template_kwargs", "set self"),
        (TEXT, {"prompt": "x", "guided_json": "[" * 100_000}, 400, "guided_json", "nested too deeply"),
        (CHAT, {"messages": HELLO, "functions": [{"name": "f"}]}, 400, "functions", "not supported"),
    ],
)
def test_each_mistake_gets_its_own_answer(serve, path, body, status, param, message):
    async def test(s):
        error = (await s.post(path, body, status=status))["error"]
        assert error["param"] == param
        assert message in error["message"]
        assert set(error) == {"message", "type", "param", "code"}

    with_server(serve, test)


def test_more_than_the_pool_holds_is_refused(serve):
    async def test(s):
        error = (await s.post(TEXT, {"prompt": [5] * 60, "max_tokens": 6}, status=400))["error"]
        assert "60 prompt tokens and 6 output tokens need more than the 4 KV blocks of 16 tokens" in error["message"]
        assert error["code"] == "context_length_exceeded"
        await s.post(TEXT, {"prompt": [5] * 60, "max_tokens": 5})

    with_server(serve, test, num_blocks=4)


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"ablation": "static_batching"}, "--ablation static_batching"),
        ({"ablation": "contiguous_cache", "enable_prefix_caching": False}, "--ablation contiguous_cache"),
        ({"ablation": "heavy_hitter:32:0", "enable_prefix_caching": False}, "--ablation heavy_hitter"),
    ],
)
def test_what_a_server_cannot_search_it_refuses_with_the_setting_at_fault(serve, settings, flag):
    async def test(s):
        error = (await s.post(TEXT, SEARCH, status=400))["error"]
        assert error["message"] == f"beams cannot be searched with {flag}; start the server without it"

    with_server(serve, test, **settings)


def test_a_chat_without_a_limit_may_use_the_rest(serve):
    async def test(s):
        answer = await s.post(CHAT, {"messages": HELLO, "ignore_eos": True})
        assert answer["usage"]["total_tokens"] == 65  # 4 blocks of 16, and the last token needs no place
        assert answer["choices"][0]["finish_reason"] == "length"

    with_server(serve, test, num_blocks=4)


def test_fields_without_effect_and_harmless_values_are_accepted(serve):
    async def test(s):
        ignored = {name: "anything" for name in fields.IGNORED if hasattr(fields.ChatFields, name)}
        neutral = {k: v[0] for k, v in fields.NEUTRAL.items() if hasattr(fields.ChatFields, k)}
        await s.post(CHAT, {"messages": HELLO, "max_tokens": 1} | ignored | neutral | {"stop": None, "seed": None})
        neutral = {k: v[0] for k, v in fields.NEUTRAL.items() if hasattr(fields.CompletionFields, k)}
        await s.post(TEXT, {"prompt": "x", "max_tokens": 1} | neutral)

    assert all(hasattr(fields.ChatFields, name) for name in fields.IGNORED)
    with_server(serve, test)


def test_more_prompts_than_can_ever_wait_are_no_full_queue(serve):
    async def test(s):
        error = (await s.post(TEXT, {"prompt": ["x"] * 4, "max_tokens": 1}, status=400))["error"]
        assert error["param"] == "prompt"
        assert (
            "4 prompts in one request are more than the 2 that run at the same time and the 1 that" in error["message"]
        )
        await s.post(TEXT, {"prompt": ["x"] * 3, "max_tokens": 1})

    with_server(serve, test, max_num_seqs=2, max_queue=1)


def test_pages_of_other_sites_are_refused(serve):
    async def test(s):
        own = str(s.client.make_url("/"))[:-1]
        port = own.rpartition(":")[2]
        rebound = f"http://evil.example:{port}"
        cases = [
            ("https://evil.example", 403),
            ("null", 403),
            ("http://[", 403),
            ("http://\u2100.com", 403),
            (own, 200),
        ]
        for origin, host, status in (*((origin, None, status) for origin, status in cases), (rebound, rebound, 403)):
            headers = {"Origin": origin} | ({} if host is None else {"Host": host.partition("//")[2]})
            async with s.client.post(TEXT, json={"prompt": "x", "max_tokens": 1}, headers=headers) as answer:
                assert answer.status == status
                assert status == 200 or "may not use this server" in (await answer.json())["error"]["message"]

    with_server(serve, test)


def test_a_key_opens_the_routes_that_compute_and_command(serve):
    async def test(s):
        for key, status in ((None, 401), ("Bearer wrong", 401), ("Basic secret", 401), ("Bearer secret", 200)):
            headers = {} if key is None else {"Authorization": key}
            for method, path in (("get", "/v1/models"), ("post", "/reset_prefix_cache")):
                async with s.client.request(method, path, headers=headers) as answer:
                    assert answer.status == status
                    assert answer.headers.get("WWW-Authenticate") == ("Bearer" if status == 401 else None)
        for path in ("/health", "/metrics", "/version"):
            async with s.client.get(path) as answer:
                assert answer.status == 200
                assert "secret" not in await answer.text()

    with_server(serve, test, api_key="secret")


def test_the_model_is_found_by_its_name(serve):
    async def test(s):
        async with s.client.get("/v1/models/tiny") as answer:
            assert (answer.status, (await answer.json())["id"]) == (200, "tiny")
        async with s.client.get("/v1/models/some/other") as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (404, "model_not_found")

    with_server(serve, test)


@pytest.mark.parametrize(
    ("coding", "compress"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", lambda body: zlib.compress(body)[2:-4])],
)
def test_compressed_bodies_are_read_and_bombs_are_not(serve, coding, compress):
    async def test(s):
        body, headers = b'{"prompt": "hello", "max_tokens": 1}', {"Content-Encoding": coding}
        for data, status in (
            (compress(body), 200),
            (compress(body)[:-9], 400),
            (compress(b" " * (64 << 20)), 413),
        ):
            async with s.client.post(TEXT, data=data, headers=headers) as answer:
                assert answer.status == status, await answer.text()
                assert (await answer.json()).get("error") is None or status != 200

    with_server(serve, test)


def test_bad_json_wrong_paths_and_methods_are_openai_errors_too(serve):
    async def test(s):
        deep = b'{"prompt": ' + b"[" * 100_000
        for body, message in ((b"{", "JSON"), (b'{"prompt": "\xff"}', "UTF-8: byte 0xff"), (deep, "deeply")):
            async with s.client.post(TEXT, data=body) as answer:
                assert answer.status == 400
                assert message in (await answer.json())["error"]["message"]
        for coding, status in (("gzip", 400), ("deflate", 400), ("br", 415)):
            async with s.client.post(TEXT, data=b"{}", headers={"Content-Encoding": coding}) as answer:
                assert answer.status == status
                assert "Content-Encoding" in (await answer.json())["error"]["message"]
        for method, path, status in (("get", "/nope", 404), ("get", TEXT, 405)):
            async with s.client.request(method, path) as answer:
                assert answer.status == status
                assert answer.headers.get("Allow") == ("POST" if status == 405 else None)
                assert "error" in await answer.json()

    with_server(serve, test)
