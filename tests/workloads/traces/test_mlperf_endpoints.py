"""Conversations of MLPerf Endpoints: what is sent, when, and how long the answers are."""

import json
from pathlib import Path
from typing import Any

import pytest

from bakeoff.workloads.approximate import ApproximateTokenizer
from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.formats import detect
from bakeoff.workloads.traces.replay import Replay
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.types import Message, ToolCall
from tests.workloads.traces.samples import SHARED_DATA, read, refusal, write

FIXTURE = SHARED_DATA / "agent-sessions/mlperf_edge_agentic.jsonl.gz"
TOOL = {"type": "function", "function": {"name": "sky", "parameters": {}}}
TOOLS = '[{"type":"function","function":{"name":"sky","parameters":{}}}]'


def row(turn: int, role: str, **fields: Any) -> dict[str, Any]:
    return {"conversation_id": "a", "turn": turn, "role": role, **fields}


def call(name: str, arguments: Any = "{}") -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": "sky", "arguments": arguments}}


def read_rows(folder: Path, *rows: dict[str, Any], **options: Any) -> list[TraceRow]:
    path = write(folder / "trace.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return read("mlperf-endpoints", path, **options)


ASKED = row(1, "user", content="Weather?", system="Be brief.", tools=[TOOL], delay_seconds=9.0)
CALLED = row(
    2, "assistant", reasoning_content="Two places.", tool_calls=[call("x", '{"at":"N"}'), call("y", {"at": 1})]
)
RESULTS = row(
    3, "tool", delay_seconds=0.25,
    tool_results=[{"tool_call_id": "x", "content": "20"}, {"tool_call_id": "y", "content": "30"}],
)  # fmt: skip
ANSWERED = row(4, "assistant", content="20 and 30.")
CHAT = (
    Message("system", "Be brief."),
    Message("user", "Weather?"),
    Message(
        "assistant", "", (ToolCall("x", "sky", '{"at":"N"}'), ToolCall("y", "sky", '{"at":1}')), reasoning="Two places."
    ),
    Message("tool", "20", tool_call_id="x"),
    Message("tool", "30", tool_call_id="y"),
    Message("assistant", "20 and 30."),
    Message("user", "Thanks"),
)


def test_rows_of_user_and_tool_are_sent_with_the_rows_before_them(tmp_path: Path) -> None:
    thanks = row(5, "user", content="Thanks")
    other = {**row(1, "user", content="Alone?"), "conversation_id": "b"}
    assert read_rows(tmp_path, {"_type": "dataset_metadata"}, ASKED, CALLED, RESULTS, ANSWERED, thanks, other) == [
        TraceRow(
            None, None, None, "a", 9.0, messages=CHAT[:2], tools=TOOLS,
            answer='Two places.\n{"name": "sky", "arguments": {"at":"N"}}\n{"name": "sky", "arguments": {"at":1}}',
        ),
        TraceRow(None, None, None, "a", 0.25, messages=CHAT[:5], tools=TOOLS, answer="20 and 30."),
        TraceRow(None, None, 256, "a", 0.0, messages=CHAT, tools=TOOLS),
        TraceRow(None, None, 256, "b", 0.0, messages=(Message("user", "Alone?"),)),
    ]  # fmt: skip


def test_a_user_may_go_on_after_results_without_an_answer(tmp_path: Path) -> None:
    _, results, went_on = read_rows(tmp_path, ASKED, CALLED, RESULTS, row(4, "user", content="Never mind"))
    assert results.output_tokens == went_on.output_tokens == 256
    assert went_on.messages == (*CHAT[:5], Message("user", "Never mind"))


def test_a_bound_holds_where_the_model_ends_the_answer_or_none_is_recorded(tmp_path: Path) -> None:
    talk = (CALLED, {**RESULTS, "max_completion_tokens": 70}, ANSWERED, row(5, "user", content="Thanks"))
    bounded = read_rows(tmp_path, {**ASKED, "max_new_tokens": 50}, *talk)
    assert [request.output_tokens for request in bounded] == [50, 70, 50], "the first row's bound holds for later ones"
    plain = [
        row(1, "user", content="a", max_new_tokens=50),
        row(2, "assistant", content="b"),
        row(3, "user", content="c"),
    ]
    assert [request.output_tokens for request in read_rows(tmp_path, *plain)] == [None, 50]
    assert [request.output_tokens for request in read_rows(tmp_path, ASKED, output_tokens=8)] == [8]


def test_tools_of_a_row_replace_those_of_the_first(tmp_path: Path) -> None:
    rows = read_rows(tmp_path, ASKED, CALLED, {**RESULTS, "tools": []}, ANSWERED)
    assert [request.tools for request in rows] == [TOOLS, None]


def test_a_file_of_metadata_alone_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.jsonl", '{"_type": "dataset_metadata"}\n')
    assert refusal("mlperf-endpoints", path) == ": has no conversations"


@pytest.mark.skipif(not FIXTURE.exists(), reason="needs the conversations of MLPerf Endpoints")
def test_recorded_conversations() -> None:
    """256 rows: 54, 86 and 116; the first and every second one are sent, and three of them have two results."""
    assert detect(str(FIXTURE)) == "mlperf-endpoints"
    rows = read("mlperf-endpoints", FIXTURE)
    names = ("sympy__sympy-12096", "psf__requests-1142", "pallets__flask-5014")
    assert {name: sum(row.session == name for row in rows) for name in names} == dict(
        zip(names, (58, 43, 27), strict=True)
    )
    assert all(row.answer and row.tools and row.tools == rows[0].tools for row in rows)
    lasts = [[row for row in rows if row.session == name][-1] for name in names]
    # a system message, the rows but the last answer, and a message more for each second result
    assert [len(last.messages) for last in lasts] == [116, 86, 57]
    assert sum(message.role == "tool" for last in lasts for message in last.messages) == 128
    assert sum(bool(message.reasoning) for last in lasts for message in last.messages) == 125
    second = rows[1]
    assert second.think_s == 0.218472
    assert second.messages[2].reasoning.startswith("Let me analyze the PR description:")
    assert second.messages[2].tool_calls[0].id == "functions.bash:0"


@pytest.mark.skipif(not FIXTURE.exists(), reason="needs the conversations of MLPerf Endpoints")
def test_recorded_reasoning_is_part_of_the_prompt() -> None:
    (session,) = Replay(str(FIXTURE), max_rows=2).sessions(ApproximateTokenizer(), Seed.of("1"))
    first, second = session.turns
    assert first.messages is not None
    assert second.messages is not None
    count = ApproximateTokenizer().count
    answer, result = second.messages[2:]
    assert first.output_tokens > count(answer.reasoning) > 60
    assert second.input_tokens - first.input_tokens > count(answer.reasoning) + count(result.content)
