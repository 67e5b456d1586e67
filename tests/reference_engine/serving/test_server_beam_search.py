import asyncio

import pytest

from tests.reference_engine.server_calls import CHAT, HELLO, TEXT, is_idle, slow_down, with_server

SEARCH = {"use_beam_search": True, "return_token_ids": True, "max_tokens": 12}


def token_ids_of(answer):
    return [choice["token_ids"] for choice in answer["choices"]]


def test_n_is_the_width_and_the_best_hypothesis_is_the_first_choice(serve):
    async def test(s):
        body = {"prompt": ["hello", [7, 8]], "n": 4, "ignore_eos": True, "logprobs": 2, "length_penalty": 0} | SEARCH
        answer = await s.post(TEXT, body)
        assert [choice["index"] for choice in answer["choices"]] == list(range(8))
        assert len({tuple(tokens) for tokens in token_ids_of(answer)[:4]}) == 4
        for prompt in (0, 4):
            choices = answer["choices"][prompt : prompt + 4]
            sums = [sum(choice["logprobs"]["token_logprobs"]) for choice in choices]
            assert sums == sorted(sums, reverse=True)
            assert [choice["finish_reason"] for choice in choices] == ["length"] * 4
        assert answer["usage"]["completion_tokens"] == 8 * 12
        for chosen, best in zip(
            *map(answer["choices"][0]["logprobs"].get, ("token_logprobs", "top_logprobs")), strict=True
        ):
            assert max(best.values()) >= chosen  # of tokens with the same text, the likeliest is reported
        greedy = await s.post(TEXT, {"prompt": "hello", "max_tokens": 12, "temperature": 0, "logprobs": 0})
        assert sum(greedy["choices"][0]["logprobs"]["token_logprobs"]) <= sum(
            answer["choices"][0]["logprobs"]["token_logprobs"]
        )

    with_server(serve, test)


@pytest.mark.parametrize(("path", "body"), [(TEXT, {"prompt": "hello"}), (CHAT, {"messages": HELLO})])
def test_best_of_is_the_width_where_fewer_are_wanted(serve, path, body):
    async def test(s):
        body_of_all = body | SEARCH | {"ignore_eos": True, "length_penalty": -1.5, "stop_token_ids": [*range(3, 40)]}
        every = await s.post(path, body_of_all | {"n": 5})
        lengths = [len(tokens) for tokens in token_ids_of(every)]
        assert len(set(lengths)) > 1  # so that the mean and the score rank differently
        two = await s.post(path, body_of_all | {"n": 2, "best_of": 5, "logprobs": 0 if path == TEXT else True})
        assert token_ids_of(two) == token_ids_of(every)[:2]
        assert await is_idle(s)

    with_server(serve, test)


def test_a_client_that_leaves_takes_all_beams_along(serve):
    async def test(s):
        step = slow_down(s)
        body = {"prompt": [5], "n": 4, "ignore_eos": True} | SEARCH | {"max_tokens": 200}
        answer = asyncio.ensure_future(s.client.post(TEXT, json=body))
        await s.until(lambda: asyncio.sleep(0, step.called > 4))
        assert await s.metric("num_requests_running") == 4
        answer.cancel()
        await s.until(lambda: is_idle(s))
        assert step.called < 150

    with_server(serve, test)
