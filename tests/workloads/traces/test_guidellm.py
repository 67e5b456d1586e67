"""Conversation graphs of GuideLLM: histories, pauses and refusals, against written-out expectations."""

import json
from pathlib import Path
from typing import Any

import pytest

from bakeoff.workloads import Seed, Tokenizer
from bakeoff.workloads.shapes import session_shapes
from bakeoff.workloads.traces.guidellm import GuideLlm
from bakeoff.workloads.traces.replay import Replay
from bakeoff.workloads.types import ToolCall
from tests.workloads.traces.samples import read, refusal, write


def turn(name: str, *parents: str | tuple[str, str], **fields: Any) -> dict[str, Any]:
    """A turn with its name as text; a parent alone is ``full``; columns and settings by their names."""
    settings = {
        key: fields.pop(key) for key in ("relative_timestamp", "requeue_delay", "trace_duration") if key in fields
    }
    refs = [(parent, "full") if isinstance(parent, str) else parent for parent in parents]
    return {
        "node_id": name,
        "agent_id": fields.pop("agent_id", "default"),
        "parents": [{"parent_node_id": parent, "history_context": context} for parent, context in refs],
        "columns": {"text_column": [name], **fields},
        "settings": settings or None,
    }  # fmt: skip


def lengths(name: str, *parents: str | tuple[str, str], tokens: tuple[int, int], **fields: Any) -> dict[str, Any]:
    counts = {"prompt_tokens_count_column": [tokens[0]], "output_tokens_count_column": [tokens[1]]}
    return turn(name, *parents, text_column=[], **counts, **fields)


def graph(*turns: dict[str, Any], **fields: Any) -> str:
    return json.dumps({"conversation_turns": json.dumps({"turns": turns, **fields})}) + "\n"


def said(row: Any) -> str:
    """The prompt, answers as dots."""
    return " ".join(message.content or "." for message in row.messages)


BRANCHED = [
    turn("m0"),
    turn("m1", "m0", ("b1", "last")),
    turn("m2", "m1"),
    turn("b0", ("m0", "new"), agent_id="helper"),
    turn("b1", "b0", agent_id="helper"),
    turn("c0", ("b1", "last"), agent_id="helper"),
    turn("c1", "c0", agent_id="helper"),
]
"""A main agent whose helper starts afresh and whose last pair it gets; then a summary that begins a history."""


def test_histories_are_those_that_parents_bring(tmp_path: Path) -> None:
    rows = read("guidellm", write(tmp_path / "t", graph(*BRANCHED)))
    assert [(said(row), row.agent, row.parents) for row in rows] == [
        ("m0", "", ()),
        ("b0", "helper", (0,)),
        ("b0 . b1", "helper", (1,)),
        ("m0 . b1 . m1", "", (0, 2)),
        ("m0 . b1 . m1 . m2", "", (3,)),
        ("b1 . c0", "helper", (2,)),
        ("c0 . c1", "helper", (5,)),
    ]
    assert {row.session for row in rows} == {"1"}
    assert {message.role for message in rows[3].messages} == {"user", "assistant"}


def test_three_forms_of_a_line_are_one_graph(tmp_path: Path) -> None:
    bare = {"graph_id": None, "turns": BRANCHED}
    forms = [bare, {"conversation_turns": bare}, {"conversation_turns": json.dumps(bare)}]
    first, second, third = (read("guidellm", write(tmp_path / "t", json.dumps(form))) for form in forms)
    assert first == second == third


def test_lengths_count_texts_and_answers_of_the_history(tmp_path: Path) -> None:
    turns = [
        lengths("m0", tokens=(100, 10)),
        lengths("m1", "m0", ("b1", "last"), tokens=(50, 20)),
        lengths("m2", "m1", tokens=(7, 3)),
        lengths("b0", ("m0", "new"), agent_id="helper", tokens=(30, 4)),
        lengths("b1", "b0", agent_id="helper", tokens=(8, 6)),
        lengths("n", ("m2", "new"), tokens=(5, 1)),
    ]
    rows = read("guidellm", write(tmp_path / "t", graph(*turns)))
    assert [(row.input_tokens, row.output_tokens, row.agent) for row in rows] == [
        (100, 10, ""),
        (30, 4, "helper"),
        (30 + 4 + 8, 6, "helper"),
        (100 + 10 + 8 + 6 + 50, 20, ""),
        (174 + 20 + 7, 3, ""),
        (5, 1, "main#2"),  # begins afresh, so it must share nothing
    ]


def test_a_chain_is_a_conversation_and_its_pauses_are_its_parents(tmp_path: Path) -> None:
    turns = [turn("a", requeue_delay=1.5), turn("b", "a", requeue_delay=2.5), turn("c", "b")]
    rows = read("guidellm", write(tmp_path / "t", graph(*turns, graph_id="g")))
    assert [(row.session, row.think_s, row.parents) for row in rows] == [
        ("1:g", 0.0, None), ("1:g", 1.5, None), ("1:g", 2.5, None)
    ]  # fmt: skip


def test_delays_of_several_parents_count_from_their_own_ends(tmp_path: Path) -> None:
    turns = [turn("a", requeue_delay=5), turn("b", ("a", "new")), turn("c", "a", ("b", "last"))]
    rows = read("guidellm", write(tmp_path / "t", graph(*turns)))
    assert [(row.parents, row.think_s, row.lags_s) for row in rows] == [
        ((), 0.0, ()), ((0,), 5.0, ()), ((0, 1), 0.0, (5.0, 0.0))
    ]  # fmt: skip


@pytest.mark.parametrize(("limit_s", "pauses_s"), [(None, (3.0, (0.0, 2.0, 297.0))), (10.0, (3.0, (0.0, 2.0, 7.0)))])
def test_the_longest_pause_holds_for_each_parent(
    tmp_path: Path, bare: Tokenizer, limit_s: float | None, pauses_s: object
) -> None:
    turns = [
        lengths("a", tokens=(9, 3), requeue_delay=3), lengths("b", ("a", "new"), tokens=(9, 3), requeue_delay=5),
        lengths("c", ("a", "new"), tokens=(9, 3), requeue_delay=300),
        lengths("d", "a", ("b", "last"), ("c", "last"), tokens=(9, 3)),
    ]  # fmt: skip
    path = write(tmp_path / "t", graph(*turns))
    replay = Replay(path=str(path), format="guidellm", max_pause_s=limit_s)
    (session,) = replay.sessions(bare, Seed.of("1"))
    assert (session.turns[-1].think_s, session.turns[-1].lags_s) == pauses_s
    (shape,) = session_shapes(replay, bare, Seed.of("1"))
    assert (shape.links.pauses_s[-1], shape.links.lags_s[-1]) == pauses_s


def test_times_give_starts_and_pauses_from_recorded_ends(tmp_path: Path) -> None:
    first = [
        turn("late", relative_timestamp=30),
        turn("a", relative_timestamp=20, trace_duration=2),
        turn("b", ("a", "new"), relative_timestamp=23, trace_duration=4),
        turn("c", "a", ("b", "last"), relative_timestamp=28),
    ]
    rows = read("guidellm", write(tmp_path / "t", graph(*first) + graph(turn("z", relative_timestamp=21))))
    assert [(said(row)[-1], row.at_s, row.think_s) for row in rows] == [
        ("a", 0.0, 0.0), ("b", None, 1.0), ("c", None, 1.0), ("e", None, 10.0), ("z", 1.0, 0.0)
    ]  # fmt: skip


def test_a_turn_with_tools_is_a_call_and_its_result(tmp_path: Path) -> None:
    tools = json.dumps([{"type": "function", "function": {"name": "look"}}])
    turns = [
        turn("a", tools_column=[tools], tool_response_column=["seen"], output_tokens_count_column=[9]),
        turn("b", "a"),
    ]
    rows = read("guidellm", write(tmp_path / "t", graph(*turns)), output_tokens=33)
    assert [(row.output_tokens, row.tools is None) for row in rows] == [(33, False), (9, True), (33, True)]
    call, result = rows[1].messages[1:]
    assert call.tool_calls == (ToolCall("a-1", "look", "{}"),)
    assert (result.role, result.content, result.tool_call_id) == ("tool", "seen", "a-1")
    assert [message.role for message in rows[2].messages] == ["user", "assistant", "tool", "assistant", "user"]


def test_recorded_messages_and_prefixes_are_sent(tmp_path: Path) -> None:
    raw = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    turns = [turn("a", raw_messages_column=[raw]), turn("b", raw_messages_column=raw), turn("c", prefix_column=["P"])]
    rows = read("guidellm", write(tmp_path / "t", graph(*turns)))
    assert [said(row) for row in rows] == ["S U", "S U", "P c"]
    assert [message.role for message in rows[2].messages] == ["system", "user"]


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([turn("a"), turn("a")], "two turns have the node_id 'a'; give each its own"),
        ([turn("a"), turn("b", "x")], "turn 'b' has the parent 'x', which is no turn of its graph"),
        (
            [turn("r"), turn("a", "c"), turn("b", "a"), turn("c", "b")],
            "turns wait for each other: 'a' -> 'c' -> 'b' -> 'a'; remove one of these parents",
        ),
        ([turn("a", "a")], "turns wait for each other: 'a' -> 'a'; remove one of these parents"),
        (
            [turn("a"), turn("b"), turn("c", "a", "b")],
            "turn 'c' has two parents with the history_context 'full'; only one can precede it",
        ),
        ([turn("a", image_column=[{}])], "turn 'a' has a value in image_column; only text can be replayed"),
        ([turn("a", sound_column=[])], "Object contains unknown field `sound_column` - at `$.turns[0].columns`"),
        ([turn("a", ("a", "some"))], "Invalid enum value 'some' - at `$.turns[0].parents[0].history_context`"),
        (
            [turn("a"), lengths("b", tokens=(5, 5))],
            (
                "turn 'a' has no prompt tokens, but another turn of its graph has no text; give all turns "
                "a text_column or prompt tokens"
            ),
        ),
        ([], "its graph has no turns"),
    ],
)
def test_a_wrong_graph_is_refused_in_one_line(turns: list[dict[str, Any]], message: str, tmp_path: Path) -> None:
    assert refusal("guidellm", write(tmp_path / "t", graph(turn("ok")) + graph(*turns))) == f", row 2: {message}"


def test_graphs_of_text_and_of_lengths_or_with_and_without_times_are_not_mixed(tmp_path: Path) -> None:
    path = write(tmp_path / "t", graph(turn("a")) + graph(lengths("a", tokens=(5, 5))))
    assert refusal("guidellm", path).endswith("has lengths alone, but those of earlier rows have text; split the file")
    path = write(tmp_path / "t", graph(turn("a")) + graph(turn("a", relative_timestamp=1)))
    message = "has a relative_timestamp, but those of earlier rows have none; split the file"
    assert refusal("guidellm", path).endswith(message)
    assert refusal("guidellm", write(tmp_path / "t", "{}")).startswith(", row 1: has neither conversation_turns nor")


def test_notes_name_the_length_of_answers_that_state_none() -> None:
    assert any("requests 77" in note for note in GuideLlm("x", 77).notes())
