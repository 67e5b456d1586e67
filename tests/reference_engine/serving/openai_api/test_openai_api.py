"""The pieces of the wire format that need no server."""

import asyncio
import json
import threading

import pytest

from bakeoff.reference_engine.core.outputs import SampledToken, TokenOutput
from bakeoff.reference_engine.core.request import BeamParams, FinishReason, Request, SamplingParams, Watermark
from bakeoff.reference_engine.errors import CheckpointError, EngineUnavailableError, RequestError
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.loading.generation_config import SamplingDefaults, sampling_defaults
from bakeoff.reference_engine.loading.tokenizer import Tokenizer
from bakeoff.reference_engine.scheduling.limits import Limits
from bakeoff.reference_engine.serving.openai_api.answers import encode, sse
from bakeoff.reference_engine.serving.openai_api.choices import Choice
from bakeoff.reference_engine.serving.openai_api.failures import failure_answer
from bakeoff.reference_engine.serving.openai_api.fields import IGNORED, NEUTRAL, ChatFields, CompletionFields
from bakeoff.reference_engine.serving.openai_api.formats import ChatFormat, TextFormat, usage_of
from bakeoff.reference_engine.serving.openai_api.parsing import (
    chat_prompt,
    completion_prompts,
    parse_body,
    sampling_params,
)
from tests.reference_engine.server_calls import TEXT, with_server

LIMITS = Limits(max_model_len=100, num_blocks=10, block_size=8, vocab_size=266)


@pytest.fixture(scope="module")
def tokenizer(checkpoint_dir):
    return open_checkpoint(checkpoint_dir).tokenizer


def completion(**body):
    return parse_body(json.dumps({"prompt": "x"} | body).encode(), CompletionFields)


def chat(**body):
    return parse_body(json.dumps({"messages": [{"role": "user", "content": "x"}]} | body).encode(), ChatFields)


def params(fields, prompt_len=4, **more):
    return sampling_params(fields, prompt_len=prompt_len, seed=9, eos_token_ids=frozenset({2}), limits=LIMITS, **more)


def test_defaults_are_openais():
    assert params(completion()) == SamplingParams(max_tokens=16, seed=9, stop_token_ids=frozenset({2}))
    assert params(chat()).max_tokens == 81 - 4  # all that ten blocks of eight leave, and one token without a place
    assert params(completion(), prompt_len=75).max_tokens == 6


def test_what_a_body_leaves_out_is_the_checkpoints():
    defaults = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.05)
    wanted = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.05}
    assert params(completion(), defaults=defaults) == params(completion(**wanted))
    neutral = {"temperature": 1, "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1}
    assert params(completion(**neutral), defaults=defaults) == params(completion())


def test_sampling_defaults_come_from_the_generation_config(tmp_path):
    assert sampling_defaults(tmp_path) == SamplingDefaults()
    path = tmp_path / "generation_config.json"
    path.write_text('{"eos_token_id": [1], "do_sample": false, "temperature": 0.7, "top_k": 20, "top_p": null}')
    assert sampling_defaults(tmp_path) == SamplingDefaults(temperature=0.7, top_k=20)
    path.write_text('{"top_p": 1.5}')
    with pytest.raises(
        CheckpointError, match=r"generation_config\.json: .*<= 1.*`\$\.top_p`; .* --generation-config none"
    ):
        sampling_defaults(tmp_path)


@pytest.mark.parametrize(("generation_config", "is_greedy"), [("auto", True), ("none", False)])
def test_a_server_samples_as_its_checkpoint_recommends(
    serve, tiny_config, save_checkpoint, hf_model, tmp_path, generation_config, is_greedy
):
    save_checkpoint(tmp_path, hf_model)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 2, "temperature": 0.0}')

    async def test(s):
        body = {"prompt": "hello", "max_tokens": 9, "ignore_eos": True, "return_token_ids": True, "seed": 3}
        answers = [await s.post(TEXT, body | extra) for extra in ({}, {"temperature": 0})]
        first, greedy = (answer["choices"][0]["token_ids"] for answer in answers)
        assert (first == greedy) == is_greedy

    with_server(serve, test, config=tiny_config(model=str(tmp_path), generation_config=generation_config))


def test_the_newer_name_of_the_limit_wins_in_chats():
    assert params(chat(max_tokens=5, max_completion_tokens=7)).max_tokens == 7
    assert params(chat(max_tokens=5)).max_tokens == 5


@pytest.mark.parametrize(
    ("body", "stops"),
    [
        ({}, {2}),
        ({"ignore_eos": True}, set()),
        ({"stop_token_ids": [7]}, {2, 7}),
        ({"ignore_eos": True, "stop_token_ids": [7]}, {7}),
    ],
)
def test_stop_tokens_are_the_models_and_the_callers(body, stops):
    assert params(completion(**body)).stop_token_ids == stops


@pytest.mark.parametrize("value", [None, 0, 1, 20])
def test_completions_say_how_many_alternatives_they_want(value):
    assert params(completion(logprobs=value)).logprobs == value


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 4}, 4),
    ],
)
def test_chats_say_so_in_two_fields(body, wanted):
    assert params(chat(**body)).logprobs == wanted


def test_the_best_of_several_needs_logprobs_that_nobody_sees(tokenizer):
    fields = completion(n=1, best_of=3)
    assert params(fields).logprobs == 0
    assert params(completion(n=3, best_of=3)).logprobs is None
    assert params(chat(best_of=2)).logprobs == 0
    choice, ids = choice_of(tokenizer, "hello world", fields)
    events = push_all(choice, ids, logprob=-0.5)
    assert choice.mean_logprob == -0.5
    assert {event.logprob for event in events} == {None}


@pytest.mark.parametrize("kind", [completion, chat])
@pytest.mark.parametrize(
    ("body", "beams"),
    [
        ({"n": 3}, BeamParams(3)),
        ({"n": 2, "best_of": 5, "length_penalty": 0.5, "early_stopping": True}, BeamParams(5, 0.5, True)),
        ({"best_of": 2, "length_penalty": -2, "early_stopping": "never"}, BeamParams(2, -2.0, "never")),
    ],
)
def test_beams_are_as_many_as_answers_are_made(kind, body, beams):
    searched = params(kind(use_beam_search=True, temperature=0, **body))
    assert (searched.beams, searched.logprobs) == (beams, None)
    assert params(kind(**{name: body[name] for name in body if name in ("n", "best_of")})).beams is None


def test_more_beams_than_a_vocabulary_has_tokens_are_refused():
    fields = completion(use_beam_search=True, n=128, stop_token_ids=list(range(3, 150)))
    with pytest.raises(RequestError, match="128 beams and 148 stop tokens are more than the 266 tokens"):
        params(fields)


def test_each_field_of_the_sampler_reaches_it():
    body = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": -0.5,
        "frequency_penalty": 0.25, "logit_bias": {"7": -100, "8": 1.5}, "min_tokens": 2, "max_tokens": 5,
    }  # fmt: skip
    wanted = body | {"logit_bias": {7: -100.0, 8: 1.5}}
    assert params(completion(**body)) == SamplingParams(**wanted, seed=9, stop_token_ids=frozenset({2}))


@pytest.mark.parametrize("kind", [completion, chat])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ({}, Watermark(2.0, 0.25, 15485863)),
        ({"delta": 4}, Watermark(4.0, 0.25, 15485863)),
        ({"delta": 0.5, "gamma": 0.5, "key": 2**63 - 1}, Watermark(0.5, 0.5, 2**63 - 1)),
    ],
)
def test_a_watermark_has_defaults(kind, value, expected):
    assert params(kind(watermark=value)).watermark == expected


@pytest.mark.parametrize(("value", "expected"), [(-1, 0), (0, 0), (5, 5), (None, 0)])
def test_top_k_minus_one_means_all(value, expected):
    assert params(completion(top_k=value)).top_k == expected


@pytest.mark.parametrize("name", sorted(NEUTRAL))
def test_each_unsupported_field_is_named_when_it_would_matter(name):
    make = chat if hasattr(ChatFields, name) else completion
    with pytest.raises(RequestError, match=f"{name} is not supported") as caught:
        make(**{name: "surely not harmless"})
    assert caught.value.param == name
    make(**{name: None})


@pytest.mark.parametrize("name", IGNORED)
def test_each_ignored_field_takes_anything(name):
    chat(**{name: {"any": ["thing"]}})


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("hello", [[262]]),
        ([5, 6], [[5, 6]]),
        (["hello", "hello"], [[262], [262]]),
        ([[5], [6, 7]], [[5], [6, 7]]),
        (["hello", [5]], [[262], [5]]),
    ],
)
def test_prompts_come_in_five_shapes(tokenizer, prompt, ids):
    assert asyncio.run(completion_prompts(completion(prompt=prompt), tokenizer, 10**6)) == ids


@pytest.mark.parametrize("prompt", [[True], [1.5], [[1, "x"]], [None], [[True]]])
def test_other_shapes_are_refused(tokenizer, prompt):
    with pytest.raises(RequestError, match="prompt must be text"):
        asyncio.run(completion_prompts(completion(prompt=prompt), tokenizer, 10**6))


def test_long_texts_take_the_other_way_to_the_same_ids(tokenizer):
    text = "hello world " * 500
    ids = tokenizer.encode(text)
    assert asyncio.run(tokenizer.encode_off_loop([text], most=10**6)) == [ids]
    assert ids == tokenizer.backend.encode(text).ids


def test_a_token_that_is_a_part_of_a_character_has_its_bytes(tokenizer):
    face = "\N{GRINNING FACE}"
    ids = tokenizer.encode(face)
    assert len(ids) == 4
    assert [tokenizer.token_bytes[token] for token in ids] == [bytes([byte]) for byte in face.encode()]
    assert b"".join(tokenizer.token_bytes[token] for token in tokenizer.encode("so it is")) == b"so it is"


@pytest.mark.parametrize("words", [500, 40_000])
def test_a_text_of_too_many_tokens_is_refused_after_its_beginning(tokenizer, words, monkeypatch):
    lengths, encode = [], type(tokenizer).encode

    def recording(self, text, **settings):
        lengths.append(len(text))
        return encode(self, text, **settings)

    monkeypatch.setattr(type(tokenizer), "encode", recording)
    with pytest.raises(RequestError, match="more than 20 tokens") as refused:
        asyncio.run(tokenizer.encode_off_loop(["hello " * words], most=20))
    assert refused.value.code == "context_length_exceeded"
    assert lengths == [160, 640], "the first beginning may have tokens that the text has not"


def test_a_long_text_of_few_tokens_is_encoded_whole(tokenizer):
    text = "hello " * 500
    ids = tokenizer.encode(text)
    for most in (len(ids), len(ids) + 9):
        assert asyncio.run(tokenizer.encode_off_loop([text], most=most)) == [ids]


@pytest.mark.parametrize(("count", "is_inline"), [(1, True), (256, False)])
def test_many_short_prompts_are_tokenised_off_the_event_loop(tokenizer, count, is_inline):
    threads = set()

    class Recording:
        def encode(self, text, **settings):
            threads.add(threading.current_thread())
            return tokenizer.backend.encode(text, **settings)

        def encode_batch_fast(self, texts, **settings):
            return [self.encode(text, **settings) for text in texts]

    recording = Tokenizer(Recording(), {}, None)
    prompts = ["hello world"] * count
    assert (
        asyncio.run(completion_prompts(completion(prompt=prompts), recording, 10**6))
        == [tokenizer.encode("hello world")] * count
    )
    assert threads
    assert (threading.main_thread() in threads) == is_inline


def test_chat_template_variables_reach_the_template(tokenizer):
    with_prompt = asyncio.run(chat_prompt(chat(), tokenizer, 10**6))
    without = asyncio.run(chat_prompt(chat(add_generation_prompt=False), tokenizer, 10**6))
    assert with_prompt[: len(without)] == without
    left_out = chat(chat_template_kwargs={"add_generation_prompt": False})
    assert asyncio.run(chat_prompt(left_out, tokenizer, 10**6)) == without


@pytest.mark.parametrize(("count", "is_inline"), [(1, True), (200, False)])
def test_long_chats_are_rendered_off_the_event_loop(tokenizer, count, is_inline, monkeypatch):
    threads, render = set(), tokenizer.render_chat

    def recording(messages, **variables):
        threads.add(threading.current_thread())
        return render(messages, **variables)

    monkeypatch.setattr(tokenizer, "render_chat", recording)
    asyncio.run(chat_prompt(chat(messages=[{"role": "user", "content": "x"}] * count), tokenizer, 10**6))
    assert threads
    assert (threading.main_thread() in threads) == is_inline


def choice_of(tokenizer, text="hello", fields=None, **sampling):
    request = Request("id-0", [5, 6], SamplingParams(max_tokens=99, **sampling))
    choice = Choice(0, request, fields or completion(), tokenizer)
    return choice, tokenizer.encode(text)


def push_all(choice, ids, logprob=None):
    last = len(ids) - 1
    return [
        choice.push(TokenOutput("id-0", SampledToken(token, logprob), FinishReason.LENGTH if i == last else None))
        for i, token in enumerate(ids)
    ]


def test_held_text_comes_out_with_the_last_token(tokenizer):
    choice, ids = choice_of(tokenizer, "a w", completion(stop="world"))
    events = push_all(choice, ids)
    assert "".join(event.text for event in events) == "a w"
    assert events[-1].text.endswith("w")
    assert choice.num_characters == 3


def test_stop_strings_wait_for_min_tokens(tokenizer):
    choice, ids = choice_of(tokenizer, "hello hello hello", completion(stop="hello"), min_tokens=2)
    texts, event = [], None
    for token in ids:
        event = choice.push(TokenOutput("id-0", SampledToken(token), None))
        texts.append(event.text)
        if event.finish_reason:
            break
    assert "".join(texts).strip() == "hello"
    assert event.stop_reason == "hello"


def test_offsets_in_streamed_logprobs_go_on_from_chunk_to_chunk(tokenizer):
    choice, ids = choice_of(tokenizer, "hello world", completion(logprobs=0))
    form = TextFormat("id", "tiny", return_token_ids=False)
    offsets = []
    for token in ids:
        event = choice.push(TokenOutput("id-0", SampledToken(token, -0.5), None))
        offsets += form.chunk(event, choice).choices[0].logprobs.text_offset
    assert offsets[:2] == [0, 5]
    assert offsets == sorted(offsets)


def test_whole_and_streamed_chats_have_their_own_shapes(tokenizer):
    choice, ids = choice_of(tokenizer, fields=chat(logprobs=True))
    events = push_all(choice, ids, logprob=-1.0)
    form = ChatFormat("id", "tiny", return_token_ids=True)
    whole = json.loads(encode(form.whole([(choice, events)], usage_of([choice], [[5, 6]]))))
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "hello"}
    assert whole["prompt_token_ids"] == [5, 6]
    assert whole["usage"] == {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
    (opening,) = form.opening(choice)
    assert json.loads(encode(opening))["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    chunk = json.loads(sse(form.chunk(events[0], choice)).removeprefix(b"data: "))
    assert chunk["choices"][0]["delta"] == {"content": "hello"}
    assert chunk["choices"][0]["logprobs"]["content"][0]["bytes"] == list(b"hello")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (RequestError("wrong", param="n", code="c"), "invalid_request_error", "wrong"),
        (RequestError("gone", status=404), "not_found_error", "gone"),
        (EngineUnavailableError("later"), "unavailable_error", "later"),
        (ValueError("a secret path"), "server_error", "an error inside the server; its log has the details"),
    ],
)
def test_errors_have_openais_shape_and_hide_what_is_not_ours(error, kind, text):
    body = json.loads(encode(failure_answer(error)))["error"]
    assert (body["type"], body["message"]) == (kind, text)
    assert set(body) == {"message", "type", "param", "code"}
