"""What a user adds to requests arrives in every format, or is refused by its name."""

import json
from datetime import date
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.engines.dialects import (
    AnthropicDialect,
    Dialect,
    LlamaCppDialect,
    LlamaCppNativeDialect,
    LlamaCppPythonDialect,
    OpenAiDialect,
    OpenAiServiceDialect,
    ReferenceDialect,
    ResponsesDialect,
    SglangDialect,
    SglangNativeDialect,
    TensorRtLlmDialect,
    TgiDialect,
    TgiNativeDialect,
    TransformersDialect,
    TritonDialect,
    VllmDialect,
)
from bakeoff.engines.errors import BadOption
from bakeoff.engines.request_shape import RequestShape, ShapedDialect, shape_of
from bakeoff.workloads import Message, Turn

CHAT = Turn(input_tokens=2, output_tokens=5, messages=(Message("user", "Hello"),))
COMPLETION = Turn(input_tokens=2, output_tokens=5, prompt="Hello")
DIALECTS: tuple[Dialect, ...] = (
    AnthropicDialect(), LlamaCppDialect(), LlamaCppNativeDialect(), LlamaCppPythonDialect(), OpenAiDialect(),
    OpenAiServiceDialect(), ReferenceDialect(), ResponsesDialect(), SglangDialect(), SglangNativeDialect(),
    TensorRtLlmDialect(), TgiDialect(), TgiNativeDialect(), TransformersDialect(), TritonDialect(),
    TritonDialect("llm-api"), VllmDialect(),
)  # fmt: skip
TOOL = {"type": "function", "function": {"name": "sky", "description": "d", "parameters": {"type": "object"}}}


def sent(dialect: Dialect, turn: Turn, **shape: Any) -> dict[str, Any]:
    return json.loads(ShapedDialect(dialect, RequestShape(**shape)).request(turn, "m").body)


class TestSettings:
    """Each format spells a setting in its own way (shared/protocols: request shape)."""

    @pytest.mark.parametrize(
        ("dialect", "turn", "path", "shape"),
        [
            (OpenAiDialect(), CHAT, "temperature", {"temperature": 0.7}),
            (OpenAiDialect(), CHAT, "chat_template_kwargs", {"chat_template_kwargs": {"enable_thinking": False}}),
            (OpenAiServiceDialect(), CHAT, "reasoning_effort", {"reasoning_effort": "low"}),
            (VllmDialect(), CHAT, "thinking_token_budget", {"thinking_tokens": 64}),
            (VllmDialect(), COMPLETION, "repetition_penalty", {"repetition_penalty": 1.1}),
            (SglangNativeDialect(), COMPLETION, "sampling_params.sampling_seed", {"seed": 7}),
            (SglangNativeDialect(), CHAT, "seed", {"seed": 7}),
            (LlamaCppDialect(), CHAT, "repeat_penalty", {"repetition_penalty": 1.1}),
            (LlamaCppNativeDialect(), COMPLETION, "top_k", {"top_k": 20}),
            (TgiNativeDialect(), COMPLETION, "parameters.temperature", {"temperature": 0.7}),
            (TgiDialect(), CHAT, "stop", {"stop": ["END"]}),
            (TensorRtLlmDialect(), CHAT, "min_p", {"min_p": 0.1}),
            (TritonDialect(), COMPLETION, "random_seed", {"seed": 7}),
            (TritonDialect("llm-api"), COMPLETION, "sampling_param_top_p", {"top_p": 0.9}),
            (ResponsesDialect(), CHAT, "reasoning.effort", {"reasoning_effort": "high"}),
            (AnthropicDialect(), CHAT, "output_config.effort", {"reasoning_effort": "high"}),
            (AnthropicDialect(), CHAT, "stop_sequences", {"stop": ["END"]}),
        ],
    )
    def test_it_stands_where_the_format_has_it(
        self, dialect: Dialect, turn: Turn, path: str, shape: dict[str, Any]
    ) -> None:
        body: Any = sent(dialect, turn, **shape)
        for name in path.split("."):
            body = body[name]
        assert body == next(iter(shape.values()))

    def test_sampling_switches_greedy_decoding_off(self) -> None:
        assert "top_k" not in sent(TensorRtLlmDialect(), CHAT, temperature=0.7)
        assert sent(TensorRtLlmDialect(), CHAT, temperature=0.7, top_k=9)["top_k"] == 9
        assert sent(TensorRtLlmDialect(), CHAT, temperature=0.0)["top_k"] == 1
        assert "top_k" not in sent(TensorRtLlmDialect(), CHAT, body={"temperature": 0.7})
        assert sent(TensorRtLlmDialect(), CHAT, body={"temperature": 0.7, "top_k": 1})["top_k"] == 1
        assert "top_k" not in sent(TritonDialect(), COMPLETION, temperature=0.7)
        assert sent(TritonDialect("llm-api"), COMPLETION, temperature=0.7, top_k=9)["sampling_param_top_k"] == 9
        assert sent(TgiNativeDialect(), COMPLETION, temperature=0.7)["parameters"]["do_sample"] is True
        config = json.loads(sent(TransformersDialect(), CHAT, temperature=0.7, top_p=0.9)["generation_config"])
        assert config == {"do_sample": True, "eos_token_id": -1, "max_new_tokens": 5, "temperature": 0.7, "top_p": 0.9}

    def test_tools_have_the_form_of_the_format(self) -> None:
        choice = {"type": "function", "function": {"name": "sky"}}
        shape = {"tools": [TOOL], "tool_choice": choice}
        assert sent(OpenAiDialect(), CHAT, **shape)["tools"] == [TOOL]
        flat = sent(ResponsesDialect(), CHAT, **shape)
        assert flat["tools"] == [{"type": "function", **TOOL["function"]}]  # type: ignore[dict-item]
        assert flat["tool_choice"] == {"type": "function", "name": "sky"}
        blocks = sent(AnthropicDialect(), CHAT, **shape)
        assert blocks["tools"] == [{"name": "sky", "description": "d", "input_schema": {"type": "object"}}]
        assert blocks["tool_choice"] == {"type": "tool", "name": "sky"}
        assert sent(AnthropicDialect(), CHAT, tools=[TOOL], tool_choice="required")["tool_choice"] == {"type": "any"}

    def test_an_answer_that_may_call_tools_ends_by_itself(self) -> None:
        assert sent(VllmDialect(), CHAT)["ignore_eos"] is True
        body = sent(VllmDialect(), CHAT, tools=[TOOL])
        assert not {"ignore_eos", "min_tokens"} & body.keys()

    def test_thinking_of_anthropic_is_beside_the_answer(self) -> None:
        body = sent(AnthropicDialect(), CHAT, thinking_tokens=1024)
        assert body["thinking"] == {"type": "enabled", "budget_tokens": 1024}
        assert (body["max_tokens"], "temperature" in body) == (1029, False)


class TestBody:
    def test_it_is_merged_and_null_leaves_out(self) -> None:
        patch = {"temperature": None, "stream_options": {"continuous_usage_stats": True}, "x": {"y": [1, None]}}
        body = sent(OpenAiDialect(), CHAT, body=patch)
        assert "temperature" not in body
        assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
        assert body["x"] == {"y": [1, None]}

    def test_fields_are_left_out_by_their_path(self) -> None:
        body = sent(OpenAiDialect(), CHAT, omit=["temperature", "stream_options.include_usage"])
        assert ("temperature" in body, body["stream_options"]) == (False, {})

    def test_without_a_shape_the_body_is_the_formats_own(self) -> None:
        for dialect in DIALECTS:
            turn = CHAT if dialect.takes_messages else COMPLETION
            assert ShapedDialect(dialect, RequestShape()).request(turn, "m").body == dialect.request(turn, "m").body

    @pytest.mark.parametrize(
        ("shape", "problem"),
        [
            ({"body": {"messages": []}}, "'messages' cannot be changed: the workload writes it"),
            ({"omit": ["stream"]}, "'stream' cannot be changed: answers are timed token by token"),
            ({"temperature": 1.0, "omit": ["temperature"]}, "'temperature' is both set and left out"),
            ({"body": {"x": float("nan")}}, "a value that JSON cannot hold"),
            ({"body": {"x": date(2026, 1, 1)}}, "a value that JSON cannot hold"),
            ({"headers": {"X-Api-Key": "k"}}, "the header X-Api-Key would be stored; give a key by api_key_env"),
            ({"headers": {"Content-Length": "3"}}, "the client sets the header Content-Length"),
            ({"headers": {"x y": "3"}}, "not the name of a header"),
            ({"headers": {"X-A": "3", "x-a": "4"}}, "the header x-a is given 2 times"),
            ({"headers": {"X-A": "a-{sesion}"}}, "X-A has {sesion}; the placeholders are {session} and {request}"),
            ({"temperature": -1.0}, "temperature must be between 0 and 1e+06, not -1"),
            ({"top_p": float("nan")}, "top_p must be between 0 and 1, not nan"),
            ({"reasoning_effort": ""}, "reasoning_effort is empty"),
            ({"body": {"max_tokens": 5}}, "'max_tokens' cannot be set: the workload gives each answer its length"),
            ({"body": {"model": "b"}}, "'model' cannot be changed: give the model's name"),
            ({"body": {"n": 2}}, "'n' cannot be changed"),
            ({"omit": ["temprature"]}, "there is no 'temprature' to leave out; the fields are model, stream, max_tok"),
            ({"body": {"a": {"b": None}}}, "there is no 'a.b' to leave out"),
            (
                {"omit": ["stream_options", "stream_options.include_usage"]},
                "there is no 'stream_options.include_usage'",
            ),
            (
                {"body": {"stream_options": "x"}, "omit": ["stream_options.include_usage"]},
                "there is no 'stream_options.",
            ),
        ],
    )
    def test_mistakes_are_named(self, shape: dict[str, Any], problem: str) -> None:
        with pytest.raises(BadOption) as raised:
            sent(OpenAiDialect(), CHAT, **shape)
        assert problem in str(raised.value)
        assert "\n" not in str(raised.value)

    def test_a_setting_that_a_format_lacks_is_refused_by_its_name(self) -> None:
        with pytest.raises(BadOption, match="chats of the openai-service format have no field for top_k; put"):
            sent(OpenAiServiceDialect(), CHAT, top_k=20)
        with pytest.raises(BadOption, match="completions of the openai format have no field for tools"):
            sent(OpenAiDialect(), COMPLETION, tools=[TOOL])
        ShapedDialect(OpenAiDialect(), RequestShape(tools=[TOOL])).check()
        with pytest.raises(BadOption, match="no field for min_p"):
            ShapedDialect(ResponsesDialect(), RequestShape(min_p=0.1)).check()

    def test_a_dialect_of_another_package_takes_fields_as_they_are_and_no_settings(self) -> None:
        class Other:
            name, exact_length, ends_by_closing, takes_messages = "other", False, False, True
            request, reader, refusal = OpenAiDialect().request, OpenAiDialect().reader, OpenAiDialect().refusal

        assert sent(Other(), CHAT, body={"top_k": 20})["top_k"] == 20
        with pytest.raises(BadOption, match="of the other format have no field for top_k"):
            sent(Other(), CHAT, top_k=20)


class TestHeaders:
    def test_ids_are_sent_unless_they_are_left_out(self) -> None:
        def headers(**given: str) -> dict[str, str]:
            return ShapedDialect(OpenAiDialect(), RequestShape(headers=given)).request(CHAT, "m").headers

        assert headers()["x-session-id"] == "{session}"
        assert headers()["x-request-id"] == "{request}"
        assert "x-session-id" not in headers(**{"X-Session-ID": ""})
        assert headers(**{"X-Dynamo-Session-ID": "s-{session}"})["x-dynamo-session-id"] == "s-{session}"


class TestUnder:
    def test_an_engines_own_shape_wins_key_by_key(self) -> None:
        shared = RequestShape(temperature=1.0, top_p=0.9, body={"a": {"b": 1, "c": 2}}, omit=["seed", "max_tokens"])
        own = RequestShape(top_p=0.5, body={"a": {"b": None}, "max_tokens": 3}, headers={"x": "y"})
        assert shared.under(own) == RequestShape(
            temperature=1.0, top_p=0.5, body={"a": {"b": None, "c": 2}, "max_tokens": 3}, omit=["seed"],
            headers={"x": "y"},
        )  # fmt: skip
        assert shared.under(RequestShape()) == shared

    def test_an_engines_own_omission_and_nested_value_win(self) -> None:
        omitting = RequestShape(omit=["temperature", "x"])
        assert RequestShape(temperature=1.0, body={"x": 1}).under(omitting) == omitting
        own = RequestShape(body={"stream_options": {"include_usage": True}})
        assert RequestShape(omit=["stream_options.include_usage"]).under(own) == own

    def test_an_engines_own_setting_wins_over_the_shared_body(self) -> None:
        shared = RequestShape(body={"temperature": 1.0, "x": 1})
        assert shared.under(RequestShape(temperature=0.5)) == RequestShape(temperature=0.5, body={"x": 1})

    def test_a_temperature_of_zero_is_the_default(self) -> None:
        shape = RequestShape(temperature=0.0)
        assert not shape.changes_answers
        assert shape_of(ShapedDialect(OpenAiDialect(), shape)) == RequestShape()

    def test_it_is_described_in_one_line(self) -> None:
        shape = RequestShape(
            temperature=1.0, body={"x": {"y": "z" * 99}, "seed": None}, omit=["top_p"], headers={"X-A": "b", "X-C": ""}
        )
        assert shape.described() == (
            f'requests carry temperature 1.0, x {{"y":"{"z" * 54}…, seed left out, top_p left out, header X-A b, '
            "header X-C left out"
        )
        assert RequestShape().described() == ""
        assert shape_of(ShapedDialect(OpenAiDialect(), shape)) is shape
        assert shape_of(OpenAiDialect()) == RequestShape()


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.floats(0, 2), "top_p": st.floats(0, 1), "top_k": st.integers(-1, 99), "min_p": st.floats(0, 1),
    "frequency_penalty": st.floats(-2, 2), "presence_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0.5, 2), "seed": st.integers(0, 2**31), "stop": st.just(["zzstop"]),
    "reasoning_effort": st.just("zzeffort"), "thinking_tokens": st.integers(1024, 4096),
    "chat_template_kwargs": st.just({"zzkwargs": True}), "tools": st.just([TOOL]), "tool_choice": st.just("auto"),
}  # fmt: skip
EXTRA = st.dictionaries(
    st.sampled_from(["zza", "zzb", "stream_options"]),
    st.recursive(st.integers(0, 9) | st.text(max_size=4) | st.booleans(),
                 lambda inner: st.dictionaries(st.sampled_from("pqr"), inner, max_size=2)),
    max_size=2,
)  # fmt: skip


@given(
    dialect=st.sampled_from(DIALECTS),
    is_chat=st.booleans(),
    settings=st.fixed_dictionaries({}, optional=VALUES),
    body=EXTRA,
)
def test_nothing_is_dropped_silently(dialect: Dialect, is_chat: bool, settings: dict[str, Any], body: Any) -> None:
    turn = CHAT if is_chat and dialect.takes_messages else COMPLETION
    try:
        result = sent(dialect, turn, **settings, body=body)
    except BadOption as error:
        refused = str(error)
        assert any(name in refused for name in settings)
        return
    leaves = list(values_in(result))
    for name, value in settings.items():
        if name == "temperature" and value == 0:
            continue  # greedy decoding is the default, which some formats write in another way
        wanted = ["sky"] if name == "tools" else values_in(value)
        assert all(leaf in leaves for leaf in wanted), (name, value, result)
    assert contains(result, body), (result, body)


def values_in(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("{"):
        yield from values_in(json.loads(value))  # Transformers' generation config
    elif isinstance(value, dict):
        for inner in value.values():
            yield from values_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from values_in(inner)
    else:
        yield value


def contains(whole: Any, part: Any) -> bool:
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(name in whole and contains(whole[name], part[name]) for name in part)
    return msgspec.json.encode(whole) == msgspec.json.encode(part)
