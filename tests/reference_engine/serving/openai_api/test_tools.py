"""Tools in chats: what the model is told, how its calls come back, and what is refused; asked with OpenAI's package."""

import functools
import json

import openai
import pytest

from bakeoff.reference_engine.loading import tokenizer as tokenizer_module
from bakeoff.reference_engine.loading.tokenizer import open_tokenizer
from tests.reference_engine.server_calls import CHAT, HELLO, with_server
from tests.reference_engine.serving.test_server import scripted

TEMPLATE = (
    "{% for tool in tools or [] %}{% if whole %}{{ tool | tojson }}{% else %}{{ tool.function.name }}{% endif %};"
    "{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}{% for call in m.tool_calls or [] %}"
    "<tool_call>{{ call.function.arguments.items() | list }}</tool_call>{% endfor %};{% endfor %}"
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"city": {"type": "string", "maxLength": 8}},
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock.now"}}
DEEP = {
    "type": "function",
    "function": {"name": "deep", "parameters": functools.reduce(lambda x, _: {"items": x}, range(800), {})},
}
ANSWER = 'Let me look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.fixture
def tools_checkpoint(checkpoint_dir, monkeypatch):
    """The tiny model, with a template that has tools."""
    original = tokenizer_module.tokenizer_of_directory
    monkeypatch.setattr(
        tokenizer_module, "tokenizer_of_directory",
        lambda path, *rest: tokenizer_module.Tokenizer(original(path, *rest).backend, {}, TEMPLATE),
    )  # fmt: skip
    return checkpoint_dir


def client_of(s):
    return openai.AsyncOpenAI(base_url=str(s.client.make_url("/v1")), api_key="x", max_retries=0)


def ids_of(checkpoint, text):
    return open_tokenizer(checkpoint).encode(text)


def test_calls_come_back_whole_and_in_streams(serve, tools_checkpoint):
    ids = ids_of(tools_checkpoint, ANSWER)
    asked = {"model": "tiny", "messages": HELLO, "tools": [WEATHER, CLOCK], "max_tokens": len(ids) + 1}
    end = 2  # the end of a sequence

    async def test(s):
        async with client_of(s) as client:
            whole = await client.chat.completions.create(**asked)
            (choice,) = whole.choices
            assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me look.")
            (call,) = choice.message.tool_calls
            assert (call.type, call.function.name) == ("function", "get_weather")
            assert json.loads(call.function.arguments) == {"city": "Paris"}
            assert call.id.isalnum()
            assert len(call.id) == 9
            pieces, text, reasons = [], "", []
            async for chunk in await client.chat.completions.create(**asked, stream=True):
                (choice,) = chunk.choices
                text += choice.delta.content or ""
                pieces += choice.delta.tool_calls or []
                reasons.append(choice.finish_reason)
            assert (text, reasons[-1]) == ("Let me look.", "tool_calls")
            assert pieces[0].function.name == "get_weather"
            assert pieces[0].id
            assert all(piece.id is None and piece.index == 0 for piece in pieces[1:])
            assert len(pieces) > 2
            arguments = "".join(piece.function.arguments or "" for piece in pieces)
            assert json.loads(arguments) == {"city": "Paris"}

    with_server(lambda: serve(scripted([*ids, end] * 2)), test)


def test_the_template_is_told_the_tools_and_earlier_calls(serve, tools_checkpoint):
    call = {"id": "a1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    history = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a1", "content": [{"type": "text", "text": "sunny"}]},
    ]
    described = json.dumps(CLOCK)
    shown = "user: hello;assistant: <tool_call>[('city', 'Rome')]</tool_call>;tool: sunny;"

    async def test(s):
        for choice, text in (("auto", f"{described};{shown}"), ("none", shown)):
            body = {"messages": history, "tools": [CLOCK], "tool_choice": choice, "max_tokens": 1}
            answer = await s.post(CHAT, body | {"return_token_ids": True, "chat_template_kwargs": {"whole": True}})
            assert answer["prompt_token_ids"] == ids_of(tools_checkpoint, text)

    with_server(serve, test)


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", {"get_weather", "clock.now"}), ({"type": "function", "function": {"name": "get_weather"}}, None)],
    ids=["any", "one"],
)
def test_a_call_can_be_forced_whatever_the_model_would_say(serve, tools_checkpoint, choice, names):
    asked = {"messages": HELLO, "tools": [WEATHER, CLOCK], "tool_choice": choice, "parallel_tool_calls": False}

    async def test(s):
        for seed in range(3):
            answer = await s.post(CHAT, asked | {"temperature": 1.0, "seed": seed, "max_tokens": 180})
            message = answer["choices"][0]["message"]
            (call,) = message["tool_calls"]
            assert "content" not in message
            assert call["function"]["name"] in (names or {"get_weather"})
            if answer["choices"][0]["finish_reason"] == "tool_calls":
                arguments = json.loads(call["function"]["arguments"])
                assert call["function"]["name"] != "get_weather" or len(arguments["city"]) <= 8

    with_server(serve, test)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"tools": [{"type": "function"}]}, "tools", "tools[0]: Object missing required field `function`"),
        ({"tools": [{"type": "retrieval", "function": {"name": "x"}}]}, "tools", "tools[0]: Invalid enum value"),
        ({"tools": [CLOCK, CLOCK]}, "tools", "two functions named clock.now"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tools": [CLOCK], "tool_choice": "always"}, "tool_choice", 'must be "none"'),
        (
            {"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
            "x, which is not among",
        ),
        (
            {"tools": [CLOCK], "tool_choice": "required", "response_format": {"type": "json_object"}},
            "tool_choice",
            "give one",
        ),
        ({"tools": [DEEP], "tool_choice": "required"}, "tool_choice", "nested too deeply"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "no place for reasoning_effort"),
    ],
)
def test_each_mistake_with_tools_gets_its_own_answer(serve, tools_checkpoint, body, param, message):
    async def test(s):
        error = (await s.post(CHAT, {"messages": HELLO} | body, status=400))["error"]
        assert (error["param"], message in error["message"]) == (param, True), error["message"]

    with_server(serve, test)


def test_a_model_whose_template_has_no_tools_refuses_them(serve):
    async def test(s):
        error = (await s.post(CHAT, {"messages": HELLO, "tools": [CLOCK]}, status=400))["error"]
        assert error["param"] == "tools"
        assert "has no place for tools" in error["message"]
        await s.post(CHAT, {"messages": HELLO, "tools": [CLOCK], "tool_choice": "none", "max_tokens": 1})

    with_server(serve, test)
