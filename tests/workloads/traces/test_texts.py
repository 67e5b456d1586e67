"""The formats with real text: ShareGPT, OpenAI bodies, prompt sets."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bakeoff.workloads import BadTrace
from bakeoff.workloads.traces.formats import detect, trace_format
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.types import Check, Expected, Message, ToolCall
from tests.workloads.traces.samples import read, refusal, write

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20).filter(str.strip)


def user(text: str) -> Message:
    return Message("user", text)


def assistant(text: str) -> Message:
    return Message("assistant", text)


def test_sharegpt_questions_carry_the_chat_so_far(tmp_path: Path) -> None:
    turns = [("system", "Be kind."), ("gpt", "lost words"), ("human", "One?"), ("gpt", "1"), ("user", "Two?")]
    turns += [
        ("chatgpt", "2"),
        ("human", ""),
        ("human", "Three?"),
        ("human", "Four?"),
        ("bing", "4"),
        ("human", "Five?"),
    ]
    talk = {"id": "QWJ_0", "conversations": [{"from": role, "value": text, "markdown": None} for role, text in turns]}
    empty = {"id": 7, "conversations": []}
    unnamed = {"conversations": [{"from": "human", "value": "Hé?"}, {"from": "gpt", "value": "Ho 🙂"}]}
    path = write(tmp_path / "trace.json", json.dumps([talk, empty, unnamed]))
    chat = (Message("system", "Be kind."), user("One?"), assistant("1"), user("Two?"), assistant("2"))
    assert read("sharegpt", path) == [
        TraceRow(None, None, None, "1:QWJ_0", messages=chat[:2], answer="1"),
        TraceRow(None, None, None, "1:QWJ_0", messages=chat[:4], answer="2"),
        TraceRow(None, None, None, "1:QWJ_0", messages=(*chat, user("Three?"), user("Four?")), answer="4"),
        TraceRow(None, None, None, "3", messages=(user("Hé?"),), answer="Ho 🙂"),
    ]


def test_sharegpt_conversations_that_cannot_be_read_are_left_out_and_counted(tmp_path: Path) -> None:
    good = {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]}
    null = {"conversations": [{"from": "human", "value": None}, {"from": "gpt", "value": "A"}]}
    call = {"conversations": [{"from": "human", "value": "Q"}, {"from": "function_call", "value": "{}"}]}
    path = write(tmp_path / "trace.json", json.dumps([good, null, good, call]))
    assert [row.session for row in read("sharegpt", path)] == ["1", "3"]
    *_, counted = trace_format("sharegpt", {"path": str(path)}).notes()
    assert counted.startswith("sharegpt: 2 conversations that cannot be read are left out; the first: ")
    assert "conversation 2: has a part without the text" in counted
    doubtful = write(tmp_path / "other.json", json.dumps([good, null, call]))
    with pytest.raises(BadTrace, match="conversation 2: has a part without the text"):
        read("sharegpt", doubtful)


CHAT = [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]
NAMED = [{"role": "user", "content": "Q"}, {"role": "Assistant", "content": "A"}]


@pytest.mark.parametrize(
    "content",
    [
        "\ufeff" + json.dumps([{"conversations": CHAT}]),
        json.dumps({"conversations": CHAT}) + "\n\n" + json.dumps({"conversations": NAMED}) + "\n",
        json.dumps([{"conversations": NAMED}]),
    ],
)
def test_sharegpt_is_read_as_its_tools_write_it(tmp_path: Path, content: str) -> None:
    path = write(tmp_path / "trace.json", content)
    assert detect(str(path)) == "sharegpt"
    rows = read("sharegpt", path)
    assert {(row.messages[0].role, row.messages[0].content, row.answer) for row in rows if row.messages} == {
        ("user", "Q", "A")
    }
    assert len(rows) == content.count("conversations")


@pytest.mark.parametrize(
    "name", ["max_output_tokens", "max_new_tokens", "output_tokens", "completion_tokens", "max_tokens"]
)
@pytest.mark.parametrize("length", [16, 16.0, "16"])
def test_bodies_state_lengths_under_several_names(tmp_path: Path, name: str, length: object) -> None:
    body = {"messages": [{"role": "user", "content": "Q"}], name: length}
    assert [row.output_tokens for row in read("openai-jsonl", write(tmp_path / "b.jsonl", json.dumps(body)))] == [16]


@pytest.mark.parametrize(
    "more",
    [
        {"output_tokens": 0}, {"max_new_tokens": -1}, {"output_tokens": [5]}, {"output_length": 12.5}, {"system": True},
        {"system": {"os": "linux"}}, {"system": " "},
    ],
    ids=str,
)  # fmt: skip
def test_other_fields_of_bodies_refuse_nothing(tmp_path: Path, more: dict[str, object]) -> None:
    body = {"messages": [{"role": "user", "content": "Q"}], "max_tokens": 4, **more}
    (row,) = read("openai-jsonl", write(tmp_path / "b.jsonl", json.dumps(body)))
    assert (len(row.messages or ()), row.output_tokens) == (1, 4)


def test_empty_parts_of_any_speaker_are_left_out(tmp_path: Path) -> None:
    parts = [{"from": "tool", "value": ""}, {"from": "", "value": " "}, *CHAT]
    assert len(read("sharegpt", write(tmp_path / "s.json", json.dumps([{"conversations": parts}])))) == 1


def test_a_last_message_of_the_assistant_is_the_answer_unless_a_length_is_stated(tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A b c"}]}
    (row,) = read("openai-jsonl", write(tmp_path / "b.jsonl", json.dumps(body)))
    assert (len(row.messages or ()), row.output_tokens, row.answer) == (1, None, "A b c")
    (row,) = read("openai-jsonl", write(tmp_path / "c.jsonl", json.dumps(body | {"max_tokens": 7})))
    assert (len(row.messages or ()), row.output_tokens, row.answer) == (2, 7, None)
    (row,) = read("openai-jsonl", write(tmp_path / "d.jsonl", json.dumps(body | {"continue_final_message": True})))
    assert (len(row.messages or ()), row.answer) == (2, None)


@pytest.mark.parametrize("system", ["be brief", [{"type": "text", "text": "be brief"}]])
def test_the_system_prompt_of_anthropics_bodies_is_sent(tmp_path: Path, system: object) -> None:
    body = {"system": system, "messages": [{"role": "user", "content": "Q"}], "max_tokens": 8}
    (row,) = read("openai-jsonl", write(tmp_path / "b.jsonl", json.dumps(body)))
    assert [(message.role, message.content) for message in row.messages or ()] == [
        ("system", "be brief"),
        ("user", "Q"),
    ]


def test_questions_have_the_lengths_that_their_lines_state(tmp_path: Path) -> None:
    lines = [{"prompt": "a", "output_tokens": 8}, {"prompt": "b", "max_tokens": 9}, {"prompt": "c"}]
    path = write(tmp_path / "q.jsonl", "\n".join(map(json.dumps, lines)))
    assert [row.output_tokens for row in read("questions", path)] == [8, 9, 256]
    assert [row.output_tokens for row in read("questions", path, output_tokens=5)] == [5, 5, 5]
    loose = [{"prompt": "a", "output_tokens": value} for value in ("8", 8.0, None)]
    path = write(tmp_path / "loose.jsonl", "\n".join(map(json.dumps, loose)))
    assert [row.output_tokens for row in read("questions", path)] == [8, 8, 256]
    for wrong in (0, "eight", True, 2.5):
        bad = write(tmp_path / "bad.jsonl", json.dumps({"prompt": "a", "output_tokens": wrong}))
        with pytest.raises(BadTrace, match="field 'output_tokens' must be a whole number from 1 to"):
            read("questions", bad)


def test_a_question_is_asked_with_its_system_prompt_and_context(tmp_path: Path) -> None:
    line = {"system_prompt": "Be brief.", "instruction": "Sum up.", "context": "A text.", "timestamp": 0}
    path = write(tmp_path / "q.jsonl", json.dumps(line))
    (row,) = read("questions", path)
    assert row.messages == (Message("system", "Be brief."), Message("user", "Sum up.\n\nA text."))
    *_, note = trace_format("questions", {"path": str(path)}).notes()
    assert note == "questions: not used, though the file has them: timestamp"


def test_a_body_may_have_params_and_a_conversation_another_field_of_that_name(tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, "params": {"temperature": 0.2}}
    (row,) = read("openai-jsonl", write(tmp_path / "b.jsonl", json.dumps(body)))
    assert (row.messages, row.output_tokens) == ((Message("user", "Hi"),), 9)
    batch = {"custom_id": "1", "params": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 7}}
    (row,) = read("openai-jsonl", write(tmp_path / "a.jsonl", json.dumps(batch)))
    assert (row.messages, row.output_tokens) == ((Message("user", "Hi"),), 7)
    wrong = {"custom_id": "1", "params": {"messages": 7}}
    assert "row 1: its field params is no body" in refusal(
        "openai-jsonl", write(tmp_path / "w.jsonl", json.dumps(wrong))
    )
    parts = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    line = {"conversations": parts, "conversation": "chat-17"}
    (row,) = read("sharegpt", write(tmp_path / "c.jsonl", json.dumps(line)))
    assert row.answer == "Hello"


def test_conversations_of_lmsys_and_without_speakers_are_read(tmp_path: Path) -> None:
    parts = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    silent = [{"content": part["content"]} for part in parts]
    for line in ({"conversation": parts}, {"conversations": silent}):
        (row,) = read("sharegpt", write(tmp_path / "c.jsonl", json.dumps(line)))
        assert (row.messages, row.answer) == ((Message("user", "Hi"),), "Hello")


def test_an_instruction_is_asked_with_its_input(tmp_path: Path) -> None:
    lines = [{"instruction": "Name it.", "input": "In Italy.", "output": "Garda."}, {"instruction": "Go.", "input": ""}]
    path = write(tmp_path / "i.jsonl", "\n".join(map(json.dumps, lines)))
    assert detect(str(path)) == "questions"
    assert [row.messages for row in read("questions", path)] == [(user("Name it.\n\nIn Italy."),), (user("Go."),)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(talks=st.lists(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4), min_size=1, max_size=6))
def test_sharegpt_texts_that_were_written_are_read_back(talks: list[list[tuple[str, str]]], tmp_path: Path) -> None:
    items = [
        {
            "id": str(i),
            "conversations": [{"from": f, "value": v} for q, a in talk for f, v in (("human", q), ("gpt", a))],
        }
        for i, talk in enumerate(talks)
    ]
    rows = read("sharegpt", write(tmp_path / "trace.json", json.dumps(items, ensure_ascii=False)))
    assert [(row.messages[-1].content, row.answer) for row in rows] == [turn for talk in talks for turn in talk]
    assert [len(row.messages) for row in rows] == [2 * k + 1 for talk in talks for k in range(len(talk))]


def test_openai_bodies_come_bare_or_in_batch_envelopes(tmp_path: Path) -> None:
    chat = {"model": "m", "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    calls = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    bodies = [
        {**chat, "max_tokens": 7, "temperature": 0.5},
        {
            "custom_id": "x",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {**chat, "max_completion_tokens": 8},
        },
        {"prompt": "Once", "stream": True},
        {"prompt": ["upon"], "max_tokens": 3},
        {"messages": [calls, {"role": "user", "content": parts}], "session": 12},
    ]
    path = write(tmp_path / "trace.jsonl", "".join(json.dumps(body) + "\n" for body in bodies))
    messages = (Message("system", "S"), user("Q"))
    assert read("openai-jsonl", path, output_tokens=99) == [
        TraceRow(None, None, 7, messages=messages),
        TraceRow(None, None, 8, messages=messages),
        TraceRow(None, None, 99, prompt="Once"),
        TraceRow(None, None, 3, prompt="upon"),
        TraceRow(None, None, 99, "12", messages=(assistant(""), user("ab"))),
    ]


def test_calls_of_tools_and_their_results_keep_their_ids(tmp_path: Path) -> None:
    call = {"id": "t", "type": "function", "function": {"name": "w", "arguments": '{"a": 1}'}}
    tool = {"type": "function", "function": {"name": "w", "parameters": {}}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t", "content": "20"},
    ]
    path = write(tmp_path / "trace.jsonl", json.dumps({"messages": messages, "tools": [tool], "max_tokens": 9}))
    (row,) = read("openai-jsonl", path)
    assert row.messages == (
        user("Weather?"), Message("assistant", "", (ToolCall("t", "w", '{"a": 1}'),)), Message("tool", "20", (), "t"),
    )  # fmt: skip
    assert json.loads(row.tools or "") == [tool]


def test_reasoning_of_an_earlier_answer_is_kept_under_either_name(tmp_path: Path) -> None:
    answers = [{"role": "assistant", "content": "20", name: "Look up."} for name in ("reasoning_content", "reasoning")]
    path = write(tmp_path / "trace.jsonl", json.dumps({"messages": answers, "max_tokens": 9}))
    (row,) = read("openai-jsonl", path)
    assert row.messages == (Message("assistant", "20", reasoning="Look up."),) * 2


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({"role": "function", "name": "w", "content": "20"}, "the older form"),
        ({"role": "assistant", "content": "", "function_call": {"name": "w", "arguments": "{}"}}, "the older form"),
        ({"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "custom"}]}, "'custom'"),
    ],
)
def test_calls_that_cannot_be_replayed_are_named(message: dict[str, object], named: str, tmp_path: Path) -> None:
    path = write(tmp_path / "trace.jsonl", json.dumps({"messages": [message], "max_tokens": 9}))
    assert f"a message has a call of {named}" in refusal("openai-jsonl", path)


def test_a_scored_prompt_set_asks_for_the_number_behind_the_mark(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.jsonl", '{"question": "How many?", "answer": "3 * 6 = 18\\n#### 1,018"}\n')
    (row,) = read("questions", path, score=True)
    assert row.messages[0].content.startswith("How many?\n\nThink step by step.")
    assert row.expected == Expected(Check.NUMBER, "1018")
    worded = write(tmp_path / "w.jsonl", '{"question": "How many?", "answer": "#### 42 dollars"}\n')
    assert "a number alone behind ####" in refusal("questions", worded, score=True)
    unscored = write(tmp_path / "b.jsonl", '{"question": "How many?", "answer": "many"}\n')
    assert "has no answer with a number alone behind ####" in refusal("questions", unscored, score=True)


def test_questions_with_functions_become_tools_and_expected_calls(tmp_path: Path) -> None:
    parameters = {"type": "dict", "properties": {"base": {"type": "float"}, "any": {"type": "any"}}}
    line = {"id": "a", "question": [[{"role": "user", "content": "Area?"}]],
            "function": [{"name": "geo.area", "description": "d", "parameters": parameters}]}  # fmt: skip
    path = write(tmp_path / "simple.json", json.dumps(line))
    (row,) = read("bfcl", path)
    schema = {"type": "object", "properties": {"base": {"type": "number"}, "any": {}}}
    assert json.loads(row.tools or "") == [
        {"type": "function", "function": {"name": "geo_area", "description": "d", "parameters": schema}}
    ]
    assert json.loads(row.expected.value if row.expected else "") == {"functions": {"geo_area": schema}}
    (tmp_path / "possible_answer").mkdir()
    write(tmp_path / "possible_answer" / "simple.json", '{"id": "a", "ground_truth": [{"geo.area": {"base": [3]}}]}')
    (row,) = read("bfcl", path)
    assert json.loads(row.expected.value if row.expected else "")["calls"] == [{"geo_area": {"base": [3]}}]


def test_openai_bodies_may_have_times_and_sessions(tmp_path: Path) -> None:
    bare = ['{"at_s": 2.5, "session": "a", "prompt": "x"}', '{"prompt": "y", "timestamp": 4}']
    trace_rows = read("openai-jsonl", write(tmp_path / "bare.jsonl", "\n".join(bare)))
    assert [(row.at_s, row.session) for row in trace_rows] == [(0.0, "a"), (1.5, None)]
    stamped = ['{"timestamp": "2024-05-10T00:00:00Z", "body": {"prompt": "x", "session": "b"}}']
    stamped += ['{"body": {"prompt": "y", "timestamp": "2024-05-10T00:00:00.75Z"}}']
    trace_rows = read("openai-jsonl", write(tmp_path / "stamped.jsonl", "\n".join(stamped)))
    assert [(row.at_s, row.session) for row in trace_rows] == [(0.0, "b"), (0.75, None)]


def test_logs_of_requests_and_responses_have_their_times_and_lengths(tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 20}
    usage = {"usage": {"prompt_tokens": 9, "completion_tokens": 12}}
    lines = [
        {"ts": 1_700_000_000.0, "request": body, "response": usage},
        {"ts": 1_700_000_003.0, "request": {"url": "/v1", "body": body}, "response": {"status": 200, "body": usage}},
        {"ts": 1_700_000_004.0, "request_body": json.dumps(body), "response": {"error": "timeout"}},
    ]
    rows = read("openai-jsonl", write(tmp_path / "log.jsonl", "\n".join(map(json.dumps, lines))))
    assert [(row.at_s, row.output_tokens) for row in rows] == [(0.0, 12), (3.0, 12), (4.0, 20)]
    assert all(row.messages == (user("a"),) for row in rows)


@pytest.mark.parametrize("content", ["", None])
def test_a_prompt_without_text_is_refused(tmp_path: Path, content: str | None) -> None:
    path = write(tmp_path / "chats.jsonl", json.dumps([{"role": "user", "content": content}]))
    assert refusal("openai-jsonl", path) == ", row 1: its prompt is empty"


def test_a_line_may_be_the_messages_alone(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (row,) = read("openai-jsonl", write(tmp_path / "chats.jsonl", json.dumps(chat)))
    assert (row.messages, row.answer) == ((user("a"),), "b")


@pytest.mark.parametrize(
    ("name", "good", "bad_lines"),
    [
        ("openai-jsonl", {"prompt": "a", "max_tokens": 3}, ['{"model": "m"}', "{", '{"body": {"messages": 3}}']),
        ("questions", {"prompt": "a"}, ['{"prompt": ""}', "[1]", '{"prompt": "a", "max_tokens": "x"}']),
    ],
)
def test_lines_that_cannot_be_read_are_left_out_and_counted_if_asked(
    name: str, good: dict[str, object], bad_lines: list[str], tmp_path: Path
) -> None:
    line = json.dumps(good)
    path = write(tmp_path / "trace.jsonl", "\n".join([line, *bad_lines, line]))
    with pytest.raises(BadTrace, match=r"row 2: .*; --option skip_bad=true leaves such lines out and counts them"):
        read(name, path)
    assert len(read(name, path, skip_bad=True)) == 2
    counted, *_ = trace_format(name, {"path": str(path), "skip_bad": True}).notes()
    assert counted.startswith(f"{name}: 3 lines that cannot be read are left out; the first: {path}, row 2: ")
    assert not any("left out; the first" in note for note in trace_format(name, {"path": str(path)}).notes())
    none = write(tmp_path / "none.jsonl", "\n".join(bad_lines))
    with pytest.raises(BadTrace, match=r"none of its 3 lines can be read; the first: \S+, row 1"):
        read(name, none, skip_bad=True)
    with pytest.raises(BadTrace, match=r"row 1: (?!.*skip_bad)"):
        read(name, none)


def test_single_messages_of_conversations_are_no_questions(tmp_path: Path) -> None:
    lines = [{"message_id": "p", "parent_id": None, "role": "prompter", "text": "a"}]
    path = write(tmp_path / "tree.jsonl", json.dumps(lines[0]))
    assert detect(str(path)) == "questions"
    with pytest.raises(BadTrace, match=r"is one message of a conversation \(it has role and parent_id"):
        read("questions", path)
    assert len(read("questions", path, field="text")) == 1, "what the message offers"


def test_images_of_conversations_are_said_to_be_left_out(tmp_path: Path) -> None:
    talk = {"conversations": [{"from": "human", "value": "<image>Q"}, {"from": "gpt", "value": "A"}]}
    path = write(tmp_path / "trace.json", json.dumps([talk | {"image": "0.jpg"}, talk]))
    notes = trace_format("sharegpt", {"path": str(path)}).notes()
    assert "sharegpt: the images of 1 conversations are left out; <image> stays in their text" in notes


def test_prompt_sets_are_known_by_their_fields(tmp_path: Path) -> None:
    sets = [
        {"question_id": 81, "category": "writing", "turns": ["First?", "Second?", "Third?"]},
        {"uid": "3", "cluster": "c", "prompt": "Why?"},
        {"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "canonical_solution": "..."},
        {"question": "How many?", "answer": "#### 18"},
    ]
    path = write(tmp_path / "trace.jsonl", "".join(json.dumps(line) + "\n" for line in sets))
    asked = (user("First?"), assistant(""), user("Second?"), assistant(""), user("Third?"))
    assert read("questions", path) == [
        TraceRow(None, None, 256, "1", messages=asked[:1]),
        TraceRow(None, None, 256, "1", messages=asked[:3]),
        TraceRow(None, None, 256, "1", messages=asked),
        TraceRow(None, None, 256, messages=(user("Why?"),)),
        TraceRow(None, None, 256, prompt="def f():\n"),
        TraceRow(None, None, 256, messages=(user("How many?"),)),
    ]


def test_a_prompt_set_can_be_told_which_field_and_form_to_take(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.jsonl", '{"prompt": "P", "goal": "G", "entry_point": "f"}\n')
    assert read("questions", path, field="goal", form="chat", output_tokens=9) == [
        TraceRow(None, None, 9, messages=(user("G"),))
    ]
    assert read("questions", path, form="completion") == [TraceRow(None, None, 256, prompt="P")]
