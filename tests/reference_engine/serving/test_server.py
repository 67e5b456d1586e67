import asyncio
import math

import pytest

from bakeoff.reference_engine.core.outputs import SampledToken
from bakeoff.reference_engine.engine.runner import Collected
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.serving.core import loop as core_loop
from tests.reference_engine.server_calls import CHAT, HELLO, LONG, TEXT, is_idle, slow_down, with_server


def scripted(tokens):
    """A loader of a model that answers every request with these tokens."""

    def load(config):
        engine, facts = core_loop.load(config)
        left = list(tokens)

        class Script:
            def launch(self, step, copies):
                return Collected([(SampledToken(left.pop(0)),) for chunk in step.chunks if chunk.is_sampled])

        engine.core._runner = Script()
        return engine, facts

    return load


def test_completion_and_usage(serve):
    async def test(s):
        body = {"model": "tiny", "prompt": "hello world", "max_tokens": 5, "temperature": 0, "ignore_eos": True}
        answer = await s.post(TEXT, body | {"return_token_ids": True})
        choice = answer["choices"][0]
        assert (answer["object"], answer["model"], choice["index"]) == ("text_completion", "tiny", 0)
        counts = {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9}
        timings = answer["usage"].pop("timings")
        assert answer["usage"] == counts | {"prompt_tokens_details": {"cached_tokens": 0}}
        assert set(timings) == {"queued_s", "prefill_s", "decode_s", "detokenize_s"}
        assert all(seconds > 0 for seconds in timings.values())
        assert (len(choice["token_ids"]), len(choice["prompt_token_ids"])) == (5, 4)
        assert choice["finish_reason"] == "length"
        # Text and its ids are the same prompt.
        again = await s.post(TEXT, body | {"prompt": choice["prompt_token_ids"]})
        assert again["choices"][0]["text"] == choice["text"]
        assert "token_ids" not in again["choices"][0]

    with_server(serve, test)


def test_an_echo_repeats_the_prompt_with_its_log_probabilities(serve):
    async def test(s):
        body = {"prompt": "hello world", "temperature": 0, "ignore_eos": True, "max_tokens": 3, "logprobs": 2}
        plain = (await s.post(TEXT, body | {"prompt_logprobs": 2}))["choices"][0]
        echoed = (await s.post(TEXT, body | {"echo": True, "return_token_ids": True}))["choices"][0]
        assert echoed["text"] == "hello world" + plain["text"]
        entries, scores = echoed["logprobs"], plain["prompt_logprobs"]
        assert "".join(entries["tokens"][: len(scores)]) == "hello world"
        assert entries["tokens"][len(scores) :] == plain["logprobs"]["tokens"]
        assert entries["token_logprobs"][0] is entries["top_logprobs"][0] is None
        places = range(1, len(scores))
        assert [entries["token_logprobs"][i] for i in places] == [
            next(iter(scores[i].values()))["logprob"] for i in places
        ]
        assert entries["token_logprobs"][len(scores) :] == plain["logprobs"]["token_logprobs"]
        assert all(
            echoed["text"][at:].startswith(token)
            for token, at in zip(entries["tokens"], entries["text_offset"][: len(scores)], strict=False)
        )
        assert len(entries["top_logprobs"]) == len(scores) + 3
        alone = await s.post(TEXT, body | {"echo": True, "max_tokens": 0, "prompt": echoed["prompt_token_ids"]})
        assert alone["choices"][0]["text"] == "hello world"
        assert alone["choices"][0]["logprobs"]["token_logprobs"] == entries["token_logprobs"][: len(scores)]
        assert alone["usage"]["completion_tokens"] == 0
        events = await s.stream(
            TEXT, {"prompt": "hello world", "temperature": 0, "max_tokens": 3, "echo": True, "ignore_eos": True}
        )
        assert "".join(event["choices"][0]["text"] for event in events) == echoed["text"]

    with_server(serve, test)


def test_streamed_completion_is_one_event_per_token_and_says_the_same(serve):
    async def test(s):
        body = {"prompt": "hello", "max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        whole = (await s.post(TEXT, body))["choices"][0]
        events = await s.stream(TEXT, body | {"stream_options": {"include_usage": True}})
        *tokens, usage = events
        choices = [event["choices"][0] for event in tokens]
        assert [len(choice["token_ids"]) for choice in choices] == [1] * 12
        assert [t for choice in choices for t in choice["token_ids"]] == whole["token_ids"]
        assert "".join(choice["text"] for choice in choices) == whole["text"]
        assert choices[0]["prompt_token_ids"] == whole["prompt_token_ids"]
        assert all("prompt_token_ids" not in choice for choice in choices[1:])
        assert [choice["finish_reason"] for choice in choices] == [None] * 11 + ["length"]
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 12
        assert all("usage" not in event for event in tokens)
        assert len({event["id"] for event in events}) == 1

    with_server(serve, test)


def test_continuous_usage_counts_up(serve):
    async def test(s):
        body = {"prompt": [5, 6], "max_tokens": 4, "ignore_eos": True}
        events = await s.stream(TEXT, body | {"stream_options": {"continuous_usage_stats": True}})
        assert [event["usage"]["completion_tokens"] for event in events] == [1, 2, 3, 4]
        assert {event["usage"]["prompt_tokens"] for event in events} == {2}

    with_server(serve, test)


def test_chat_sends_the_role_with_the_first_token(serve):
    async def test(s):
        body = {"messages": HELLO, "max_completion_tokens": 3, "temperature": 0, "ignore_eos": True}
        role, *tokens = await s.stream(CHAT, body | {"return_token_ids": True})
        assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert "token_ids" not in role["choices"][0]
        assert len(role["prompt_token_ids"]) > 5
        assert role["object"] == "chat.completion.chunk"
        assert [len(event["choices"][0]["token_ids"]) for event in tokens] == [1, 1, 1]
        whole = await s.post(CHAT, body)
        content = whole["choices"][0]["message"]
        assert content == {
            "role": "assistant",
            "content": "".join(event["choices"][0]["delta"]["content"] for event in tokens),
        }
        assert whole["object"] == "chat.completion"

    with_server(serve, test)


def test_chat_renders_the_template_and_joins_text_parts(serve, checkpoint_dir):
    tokenizer = open_checkpoint(checkpoint_dir).tokenizer

    async def test(s):
        parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
        body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 1, "return_token_ids": True}
        answer = await s.post(CHAT, body)
        text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
        assert answer["prompt_token_ids"] == tokenizer.encode(text)

    with_server(serve, test)


def test_several_prompts_and_choices_keep_their_index(serve):
    async def test(s):
        body = {"prompt": ["hello", [7, 8]], "n": 2, "max_tokens": 3, "seed": 4, "ignore_eos": True}
        body["return_token_ids"] = True
        answer = await s.post(TEXT, body)
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        assert answer["choices"][3]["prompt_token_ids"] == [7, 8]
        assert answer["usage"]["completion_tokens"] == 12
        streamed = [[], [], [], []]
        for event in await s.stream(TEXT, body):
            streamed[event["choices"][0]["index"]] += event["choices"][0]["token_ids"]
        assert streamed == [choice["token_ids"] for choice in answer["choices"]]

    with_server(serve, test)


def test_seeds_repeat_and_their_absence_does_not(serve):
    async def test(s):
        body = {"prompt": [9], "max_tokens": 12, "temperature": 1.5, "return_token_ids": True, "ignore_eos": True}

        async def ids(**more):
            return (await s.post(TEXT, body | more))["choices"][0]["token_ids"]

        assert await ids(seed=1) == await ids(seed=1)
        assert await ids(seed=-(2**70)) == await ids(seed=-(2**70))
        assert await ids() != await ids()

    with_server(serve, test)


def test_end_of_sequence_ends_with_its_id_and_no_text(serve):
    async def test(s):
        events = await s.stream(TEXT, {"prompt": "hello", "max_tokens": 9, "return_token_ids": True})
        last = events[-1]["choices"][0]
        assert (last["token_ids"], last["text"], last["finish_reason"], last["stop_reason"]) == ([2], "", "stop", None)
        assert len(events) == 3

    with_server(serve, test, loader=scripted([70, 71, 2]))


def test_ignore_eos_goes_on(serve):
    async def test(s):
        answer = await s.post(TEXT, {"prompt": "x", "max_tokens": 3, "ignore_eos": True, "return_token_ids": True})
        assert answer["choices"][0]["token_ids"] == [2, 70, 2]
        assert answer["choices"][0]["finish_reason"] == "length"

    with_server(serve, test, loader=scripted([2, 70, 2]))


def hello_world(checkpoint_dir):
    return open_checkpoint(checkpoint_dir).tokenizer.encode("hello world hello") * 3


@pytest.mark.parametrize(("extra", "text"), [({}, "hello "), ({"include_stop_str_in_output": True}, "hello wor")])
def test_a_stop_string_ends_the_choice_and_frees_its_blocks(serve, checkpoint_dir, extra, text):
    async def test(s):
        body = {"prompt": "x", "max_tokens": 12, "stop": ["nope", "wor"]} | extra
        answer = await s.post(TEXT, body)
        choice = answer["choices"][0]
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (text, "stop", "wor")
        assert answer["usage"]["completion_tokens"] == 2
        await s.until(lambda: is_idle(s))

    with_server(serve, test, loader=scripted(hello_world(checkpoint_dir)))


@pytest.mark.parametrize(("extra", "text"), [({}, "n"), ({"include_stop_str_in_output": True}, "nm")])
def test_a_stop_token_is_reported_by_its_id_and_leaves_no_text(serve, checkpoint_dir, extra, text):
    stop, other = (open_checkpoint(checkpoint_dir).tokenizer.encode(letter)[0] for letter in "mn")

    async def test(s):
        answer = await s.post(TEXT, {"prompt": "x", "max_tokens": 9, "stop_token_ids": [stop]} | extra)
        choice = answer["choices"][0]
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (text, "stop", stop)
        assert answer["usage"]["completion_tokens"] == 2

    with_server(serve, test, loader=scripted([other, stop]))


def test_half_a_character_is_an_event_without_text(serve, checkpoint_dir):
    ids = open_checkpoint(checkpoint_dir).tokenizer.encode("😀")

    async def test(s):
        events = await s.stream(TEXT, {"prompt": "x", "max_tokens": 4})
        assert [event["choices"][0]["text"] for event in events] == ["", "", "", "😀"]

    with_server(serve, test, loader=scripted(ids))


def test_logprobs_of_the_chosen_tokens(serve):
    async def test(s):
        body = {"prompt": "x", "max_tokens": 3, "temperature": 0, "ignore_eos": True}
        logprobs = (await s.post(TEXT, body | {"logprobs": 0}))["choices"][0]["logprobs"]
        assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["text_offset"]) == 3
        assert all(math.log(1 / 266) < value <= 0 for value in logprobs["token_logprobs"])
        chat = await s.post(CHAT, {"messages": HELLO, "max_tokens": 2, "logprobs": True, "ignore_eos": True})
        assert [set(entry) for entry in chat["choices"][0]["logprobs"]["content"]] == [
            {"token", "logprob", "bytes", "top_logprobs"}
        ] * 2
        assert (await s.post(CHAT, {"messages": HELLO, "max_tokens": 1}))["choices"][0]["logprobs"] is None

    with_server(serve, test)


def test_alternatives_come_in_each_routes_own_shape(serve):
    async def test(s):
        body = {"max_tokens": 4, "temperature": 0, "ignore_eos": True, "logit_bias": {"40": 100}}
        logprobs = (await s.post(TEXT, body | {"prompt": "x", "logprobs": 3}))["choices"][0]["logprobs"]
        assert len(logprobs["top_logprobs"]) == 4
        for token, value, best in zip(
            logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
        ):
            assert best[token] == value
            assert len(best) <= 4  # the bias chose a token that the model did not want
            assert max(best.values()) > value
        answer = await s.post(CHAT, body | {"messages": HELLO, "logprobs": True, "top_logprobs": 3})
        for entry in answer["choices"][0]["logprobs"]["content"]:
            values = [alternative["logprob"] for alternative in entry["top_logprobs"]]
            assert len(values) == 3
            assert values == sorted(values, reverse=True)
            assert values[0] > entry["logprob"]
            likeliest = entry["top_logprobs"][0]
            assert bytes(likeliest["bytes"]).decode(errors="replace") == likeliest["token"]

    with_server(serve, test)


def test_streamed_alternatives_are_those_of_the_whole_answer(serve):
    async def test(s):
        body = {"prompt": "hello", "max_tokens": 5, "temperature": 0, "ignore_eos": True, "logprobs": 2}
        whole = (await s.post(TEXT, body))["choices"][0]["logprobs"]
        chunks = [event["choices"][0]["logprobs"] for event in await s.stream(TEXT, body)]
        for name, wanted in whole.items():
            assert [value for chunk in chunks for value in chunk[name]] == wanted

    with_server(serve, test)


def test_answers_to_one_prompt_share_its_computation_and_keep_their_own_seeds(serve):
    async def test(s):
        body = {"prompt": [9] * 40, "max_tokens": 6, "ignore_eos": True, "return_token_ids": True}
        together = await s.post(TEXT, body | {"n": 4, "seed": 20})
        assert await s.metric("computed_tokens_total") == 40 + 4 * 5  # the last tokens are not fed back
        assert together["usage"]["prompt_tokens"] == 40
        apart = [await s.post(TEXT, body | {"seed": 20 + number}) for number in range(4)]
        assert [choice["token_ids"] for choice in together["choices"]] == [
            answer["choices"][0]["token_ids"] for answer in apart
        ]
        assert len({tuple(choice["token_ids"]) for choice in together["choices"]}) == 4
        await s.until(lambda: is_idle(s))

    with_server(serve, test, enable_prefix_caching=False)


def test_best_of_returns_the_likeliest_answers_best_first(serve):
    async def test(s):
        body = {"prompt": ["hello", [7, 8]], "max_tokens": 5, "seed": 3, "ignore_eos": True, "return_token_ids": True}
        every = (await s.post(TEXT, body | {"n": 6, "logprobs": 0}))["choices"]
        best = await s.post(TEXT, body | {"n": 2, "best_of": 6})
        assert [choice["index"] for choice in best["choices"]] == [0, 1, 2, 3]
        assert best["usage"]["completion_tokens"] == 2 * 6 * 5
        for prompt in (0, 1):
            ranked = sorted(every[6 * prompt :][:6], key=lambda choice: -sum(choice["logprobs"]["token_logprobs"]))
            assert [choice["token_ids"] for choice in best["choices"][2 * prompt :][:2]] == [
                choice["token_ids"] for choice in ranked[:2]
            ]
        assert {choice["logprobs"] for choice in best["choices"]} == {None}

    with_server(serve, test)


def test_a_client_that_leaves_takes_all_its_answers_along(serve):
    async def test(s):
        step = slow_down(s)
        answer = await s.client.post(TEXT, json=LONG | {"n": 4, "temperature": 1})
        await answer.content.readany()
        answer.close()
        await s.until(lambda: is_idle(s))
        assert step.called < 150

    with_server(serve, test)


def test_a_more_important_request_overtakes_those_that_wait(serve):
    async def test(s):
        slow_down(s)
        body = {"prompt": [5], "max_tokens": 4, "ignore_eos": True}
        order = []

        async def ask(name, **more):
            await s.post(TEXT, body | more)
            order.append(name)

        first = asyncio.ensure_future(ask("first", max_tokens=8))
        await s.until(lambda: running(s))
        late = [asyncio.ensure_future(ask(name)) for name in ("a", "b")]
        await s.until(lambda: asyncio.sleep(0, s.engine.core._scheduler.num_waiting == 2))
        await ask("important", priority=-1)
        await asyncio.gather(first, *late)
        assert order.index("important") < order.index("a") < order.index("b")

    with_server(serve, test, max_num_seqs=1)


async def running(s):
    return await s.metric("num_requests_running") == 1


@pytest.mark.parametrize("stop", ["lo wor", "o w", "hello world h", "rld"])
def test_a_stop_string_over_several_chunks_never_shows(serve, checkpoint_dir, stop):
    answer = "hello world hello"

    async def test(s):
        body = {"prompt": "x", "max_tokens": 12, "stop": [stop]}
        events = await s.stream(TEXT, body)
        assert "".join(event["choices"][0]["text"] for event in events) == answer[: answer.index(stop)]
        assert events[-1]["choices"][0]["stop_reason"] == stop

    with_server(serve, test, loader=scripted(hello_world(checkpoint_dir)))


@pytest.mark.parametrize("stream", [True, False])
def test_one_request_too_many_is_told_to_come_back(serve, stream):
    async def test(s):
        slow_down(s)
        going = [await s.client.post(TEXT, json=LONG)]
        await s.until(lambda: running(s))
        going.append(await s.client.post(TEXT, json=LONG))
        await s.until(lambda: asyncio.sleep(0, s.engine.core._scheduler.num_waiting == 1))
        async with s.client.post(TEXT, json=LONG | {"stream": stream}) as answer:
            text = await answer.text()
            assert "requests are waiting already" in text
            assert '"code":"queue_full"' in text
            assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
        for response in going:
            response.close()
        await s.until(lambda: is_idle(s))
        await s.post(TEXT, {"prompt": "x", "max_tokens": 1})

    with_server(serve, test, max_num_seqs=1, max_queue=1)
