"""Calls of functions are found in answers of every format, however the text is cut into tokens."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.reference_engine.serving.openai_api.answer_parts import TaggedReader
from bakeoff.reference_engine.serving.openai_api.call_reader import CallReader
from bakeoff.reference_engine.serving.openai_api.harmony import HarmonyReader, is_harmony
from bakeoff.reference_engine.serving.openai_api.reasoning import ReasoningSplitter
from bakeoff.reference_engine.serving.openai_api.tool_formats import LISTED, call_of, tool_format_of

SCHEMAS = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array"}},
    },
    "math.sum": {"type": "object"},
}
HERMES = "{% if tools %}<tool_call>{% endif %}"
CODER = "{% if tools %}<tool_call><function=example>{% endif %}"
MISTRAL = "{{ tools }}[TOOL_CALLS]"
LLAMA = '{{ tools }} {"name": function name, "parameters": dictionary}'
DEEPSEEK = "{{ tools }}<\uff5ctool▁calls▁begin\uff5c>"
PHI = "{{ tools }}<|tool|>"
NAMED = "<|channel|>{{ tools }}<|message|>"
WEATHER = {"city": 'Par"is }</tool_call>', "days": 3}
ARGUMENTS = json.dumps(WEATHER)


def pieces_of(text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def read(reader, pieces):
    """Reasoning, content, and for each call its name and arguments."""
    parts = [reader.push(piece, is_last=number == len(pieces) - 1) for number, piece in enumerate(pieces)]
    calls = []
    for call in (call for part in parts for call in part.calls):
        if call.name is not None:
            assert call.number == len(calls)
            calls.append([call.name, ""])
        assert call.number == len(calls) - 1
        calls[-1][1] += call.arguments
    return "".join(part.reasoning for part in parts), "".join(part.content for part in parts), calls


def reader_of(template, most=None):
    if is_harmony(template):
        return HarmonyReader(SCHEMAS, most)
    return TaggedReader(None, CallReader(tool_format_of(template), SCHEMAS, most))


CALL = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'
FOUND = ("weather", WEATHER)
EMPTY = ("math.sum", {})

CODED = (
    '<tool_call>\n<function=weather>\n<parameter=city>\nPar"is }\n</parameter>\n<parameter=days>\n3\n</parameter>\n'
    "</function>\n</tool_call>"
)
TYPED = (
    "<tool_call>\n<function=weather>\n<parameter=city>\n75001\n</parameter>\n<parameter=tags>\n"
    '["a", "b"]\n</parameter>\n<parameter=note>\nplain text\n</parameter>\n</function>\n</tool_call>'
)
DEEP = (
    f"<|tool▁calls▁begin|><|tool▁call▁begin|>function<|tool▁sep|>weather\n```json\n{ARGUMENTS}\n```<|tool▁call▁end|>\n"
    "<|tool▁call▁begin|>math.sum<|tool▁sep|>{}<|tool▁call▁end|><|tool▁calls▁end|>"
).replace("|", "\uff5c")


@pytest.mark.parametrize(
    ("template", "text", "content", "calls"),
    [
        (HERMES, f"<tool_call>\n{CALL}\n</tool_call>", "", [FOUND]),
        (HERMES, f"Let me see.\n\n<tool_call>{CALL}</tool_call>\n<tool_call>\n{CALL}\n</tool_call>\n", "Let me see.",
         [FOUND, FOUND]),
        (HERMES, f'<tool_call>{{"arguments": {ARGUMENTS}, "id": 7.5, "name": "weather"}}</tool_call>', "", [FOUND]),
        (HERMES, f'<tool_call>{{"name": "weather", "arguments": {json.dumps(ARGUMENTS)}}}</tool_call>', "", [FOUND]),
        (HERMES, '<tool_call>{"name": "math.sum"}</tool_call>', "", [EMPTY]),
        (HERMES, '<tool_call>{"name": "math.sum", "arguments": null}</tool_call>', "", [EMPTY]),
        (HERMES, "It is 3 < 4,  as <tool> shows. ", "It is 3 < 4,  as <tool> shows. ", []),
        (HERMES, "<tool_call>no JSON</tool_call> at all", "<tool_call>no JSON</tool_call> at all", []),
        (HERMES, '<tool_call>{"arguments": {}}', '<tool_call>{"arguments": {}}', []),
        (HERMES, f"<tool_call>{CALL}</tool_call> Done.", "Done.", [FOUND]),
        (HERMES, f"<tool_call>{CALL}", "", [FOUND]),
        (CODER, CODED, "", [("weather", {"city": 'Par"is }', "days": 3})]),
        (CODER, TYPED, "", [("weather", {"city": "75001", "tags": ["a", "b"], "note": "plain text"})]),
        (CODER, "<tool_call>\n<function=math.sum>\n</function>\n</tool_call>", "", [EMPTY]),
        (MISTRAL, f"[TOOL_CALLS][{CALL}, {CALL}]", "", [FOUND, FOUND]),
        (MISTRAL, f"[TOOL_CALLS]weather[ARGS]{ARGUMENTS}[TOOL_CALLS]math.sum[CALL_ID]a1[ARGS]{{}}", "", [FOUND, EMPTY]),
        (MISTRAL, f"Yes. [TOOL_CALLS] weather{ARGUMENTS}", "Yes.", [FOUND]),
        (LLAMA, f'{{"name": "weather", "parameters": {ARGUMENTS}}}', "", [FOUND]),
        (LLAMA, f'<|python_tag|>{CALL}; {{"name": "math.sum", "parameters": {{}}}}', "", [FOUND, EMPTY]),
        (LLAMA, '{"name": "Bob", "age": 7} is JSON', '{"name": "Bob", "age": 7} is JSON', []),
        (LLAMA, "Plain <|text", "Plain <|text", []),
        (LLAMA, "", "", []),
        (DEEPSEEK, DEEP, "", [FOUND, EMPTY]),
        (PHI, f"<|tool_call|>[{CALL}]<|/tool_call|>", "", [FOUND]),
        (NAMED, f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{ARGUMENTS}<|call|>", "",
         [FOUND]),
        (NAMED, " to=functions.math.sum<|channel|>commentary json<|message|>{}", "", [EMPTY]),
        (NAMED, "no marks at all", "no marks at all", []),
    ],
)  # fmt: skip
@given(data=st.data())
def test_any_cut_gives_the_same_calls(template, text, content, calls, data):
    reasoning, actual, found = read(reader_of(template), pieces_of(text, data))
    assert (reasoning, actual) == ("", content)
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls


@given(data=st.data())
def test_gpt_oss_channels_are_reasoning_content_and_calls(data):
    text = (
        "<|channel|>analysis<|message|>a < b, <|x|><|end|><|start|>assistant<|channel|>commentary<|message|>Now:<|end|>"
        f"<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{ARGUMENTS}<|end|>"
        "<|start|>assistant<|channel|>final<|message|> Done."
    )
    reasoning, content, calls = read(HarmonyReader(SCHEMAS), pieces_of(text, data))
    assert (reasoning, content, calls) == ("a < b, <|x|>", "Now: Done.", [["weather", ARGUMENTS]])


def test_calls_behind_reasoning_are_found_and_those_in_it_are_not():
    form = tool_format_of(HERMES)
    reader = TaggedReader(ReasoningSplitter("<think>\n"), CallReader(form, SCHEMAS))
    text = f"<tool_call>{CALL}</tool_call> maybe</think>\n\n<tool_call>{CALL}</tool_call>"
    reasoning, content, calls = read(reader, list(text))
    assert reasoning == f"<tool_call>{CALL}</tool_call> maybe"
    assert (content, [name for name, _ in calls]) == ("", ["weather"])


def test_arguments_are_passed_on_while_they_are_written():
    reader = reader_of(HERMES)
    begin = '<tool_call>{"name": "weather", "arguments": '
    assert reader.push(begin, is_last=False).calls == [(0, "weather", "")]
    assert reader.push('{"ci', is_last=False).calls == [(0, None, "{")]  # a string is passed on as a whole
    assert reader.push('ty": [1,', is_last=False).calls == [(0, None, '"city": [1,')]


def test_a_call_that_is_cut_off_keeps_what_was_written():
    _, content, calls = read(reader_of(HERMES), ['<tool_call>{"name": "weather", "arguments": {"days": 3, "ci'])
    assert (content, calls) == ("", [["weather", '{"days": 3, ']])


def test_no_more_calls_are_reported_than_are_wanted():
    _, _, calls = read(reader_of(MISTRAL, most=1), [f"[TOOL_CALLS][{CALL}, {CALL}]"])
    assert [name for name, _ in calls] == ["weather"]
    call = f"<|channel|>commentary to=functions.weather<|message|>{ARGUMENTS}<|call|>"
    _, _, calls = read(reader_of(NAMED, most=1), [call, f"<|start|>assistant{call}"])
    assert calls == [["weather", ARGUMENTS]]


@given(data=st.data())
def test_forced_answers_are_calls_as_a_whole(data):
    listed = f'[{{"name": "weather", "parameters": {ARGUMENTS}}}, {{"name": "math.sum", "parameters": {{}}}}]'
    reader = TaggedReader(None, CallReader(LISTED, SCHEMAS))
    assert read(reader, pieces_of(listed, data))[2] == [["weather", ARGUMENTS], ["math.sum", "{}"]]
    reader = TaggedReader(None, CallReader(call_of("weather"), SCHEMAS))
    assert read(reader, pieces_of(f" {ARGUMENTS}\n", data)) == ("", "", [["weather", ARGUMENTS]])


def test_templates_without_a_place_for_functions_have_no_format():
    assert tool_format_of(None) is None
    assert tool_format_of("{{ messages }}<tool_call>") is None
    assert tool_format_of("{{ tools }} in prose") is None
