"""AIPerf's two forms: Mooncake's lines with sessions, and conversations that fork and spawn each other."""

import json
from pathlib import Path
from typing import Any

import pytest

from bakeoff.workloads.traces import aiperf_dag
from bakeoff.workloads.traces.formats import trace_format
from bakeoff.workloads.traces.grouping import sessions_of
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.types import ToolCall
from tests.workloads.traces.samples import read, refusal, write

Fields = dict[str, Any]


def lines(*records: Fields) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def said(row: TraceRow) -> str:
    """The prompt, answers that are not recorded as dots."""
    return " ".join(message.content or "." for message in row.messages)


def asked(text: str, **fields: Any) -> Fields:
    """A turn with one message of the user."""
    return {"messages": [{"role": "user", "content": text}], **fields}


def conversation(name: str, *turns: Fields, **fields: Any) -> Fields:
    return {"session_id": name, "turns": list(turns), **fields}


# Mooncake with session_id


def test_lengths_of_later_turns_follow_earlier_text_and_answers(tmp_path: Path) -> None:
    records = [
        {"session_id": "a", "input_length": 300, "output_length": 40},
        {"session_id": "a", "delay": 2000, "input_length": 150, "output_length": 20},
        {"input_length": 7},
        {"session_id": "b", "input_length": 5, "output_length": 1, "extra": {"max_tokens": 12, "top_p": 1}},
    ]
    rows = read("mooncake", write(tmp_path / "t", lines(*records)), output_tokens=99)
    assert rows == [
        TraceRow(None, 300, 40, "a"),
        TraceRow(None, 490, 20, "a", 2.0),
        TraceRow(None, 7, 99),
        TraceRow(None, 5, 12, "b"),
    ]


def test_blocks_of_the_first_turn_begin_the_later_prompts(tmp_path: Path) -> None:
    """40 + 5 tokens before the second turn: two whole blocks of 16 as recorded, then blocks of the session's own."""
    records = [
        {"session_id": "a", "input_length": 40, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"session_id": "a", "input_length": 20, "output_length": 6, "hash_ids": [8, 9]},
        {"session_id": "a", "input_length": 9, "output_length": 6},
        {"session_id": "b", "input_length": 40, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"session_id": "b", "input_length": 20, "output_length": 5},
    ]
    first, second, third, other, after = read("mooncake", write(tmp_path / "t", lines(*records)), block_tokens=16)
    assert first.blocks == other.blocks == (1, 2, 3)
    assert (second.input_tokens, len(second.blocks)) == (65, 5)
    assert (third.input_tokens, len(third.blocks)) == (80, 5)
    assert second.blocks[:2] == third.blocks[:2] == after.blocks[:2] == (1, 2)
    assert second.blocks[2:4] == third.blocks[2:4]
    assert second.blocks[4] != third.blocks[4], "the first is partial"
    assert not set(second.blocks[2:]) & set(after.blocks[2:])


@pytest.mark.parametrize("text", ["a note", "", ["a", "b"]])
def test_text_beside_another_prompt_is_not_sent(text: object, tmp_path: Path) -> None:
    records = [
        {"session_id": "a", "text_input": "One", "text": text},
        {"input_length": 3, "output_length": 2, "text": text},
    ]
    for record in records:
        (row,) = read("mooncake", write(tmp_path / "t", lines(record)))
        assert said(row) in {"One", ""}


def test_text_grows_and_whole_prompts_stand_alone(tmp_path: Path) -> None:
    records = [
        {"session_id": "a", "text_input": "One", "output_length": 4},
        {"session_id": "a", "text": "Two", "output_length": 4},
        {"session_id": "b", "messages": [{"role": "user", "content": "M"}], "tools": [{"type": "function"}]},
        {"payload": {"prompt": "P", "max_tokens": 3, "temperature": 0}, "output_length": 8},
        {"payload": {"messages": [{"role": "user", "content": "Q"}], "max_completion_tokens": 3, "model": "m"}},
    ]
    rows = read("mooncake", write(tmp_path / "t", lines(*records)))
    assert [(said(row), row.prompt, row.output_tokens, row.tools) for row in rows] == [
        ("One", None, 4, None),
        ("One . Two", None, 4, None),
        ("M", None, 256, '[{"type":"function"}]'),
        ("", "P", 8, None),
        ("Q", None, 3, None),
    ]


def test_sessions_with_times_may_alternate(tmp_path: Path) -> None:
    records = [
        {"session_id": "a", "timestamp": 1000, "input_length": 3, "output_length": 1},
        {"session_id": "b", "timestamp": 1500.5, "input_length": 3, "output_length": 1},
        {"session_id": "a", "timestamp": 4000, "input_length": 3, "output_length": 1},
        {"session_id": "b", "delay": 250, "input_length": 3, "output_length": 1},
    ]
    rows = read("mooncake", write(tmp_path / "t", lines(*records)))
    assert [(row.at_s, row.session, row.think_s) for row in rows] == [
        (0.0, "a", None), (0.5005, "b", None), (3.0, "a", None), (None, "b", 0.25)
    ]  # fmt: skip


def test_rows_of_aiperfs_own_writer_are_grouped_one_session_at_a_time(tmp_path: Path) -> None:
    """All sessions have the same time, so memory must not wait for a later one."""
    turns = [
        {"session_id": name, "input_length": 8, "output_length": 2, **({"delay": 5} if k else {"timestamp": 0.0})}
        for name in "abc"
        for k in range(2)
    ]
    rows = iter(read("mooncake", write(tmp_path / "t", lines(*turns))))
    taken: list[TraceRow] = []
    sessions = sessions_of(taken.append(row) or row for row in rows)
    assert [(row.session, row.input_tokens, row.think_s) for row in next(sessions)] == [
        ("a", 8, None),
        ("a", 18, 0.005),
    ]
    assert len(taken) == 4
    assert [[row.session for row in session] for session in sessions] == [["b", "b"], ["c", "c"]]


PLAIN = '{"timestamp": 0, "input_length": 6, "output_length": 5}\n'


@pytest.mark.parametrize(
    ("content", "row", "message"),
    [
        (lines({"session_id": "a"}), 1, "has no prompt; it must have exactly one of input_length, text_input, "),
        (lines({"input_length": 3, "text_input": "a"}), 1, "has input_length and text_input; it must have exactly one"),
        (lines({"text_input": "a", "hash_ids": [1]}), 1, "has hash_ids beside text_input; they need an input_length"),
        (lines({"text_input": "a", "tools": [{}]}), 1, "has tools beside text_input; they need messages"),
        (lines({"payload": {"input": "a"}}), 1, "its body must hold either messages or a prompt"),
        (lines({"text_input": "a", "delay": -1}), 1, "Expected `float` >= 0.0 - at `$.delay`"),
        (lines({"session_id": "a", "input_length": 3}, {"text_input": "b"}), 2, "has text, but earlier rows have "),
        (lines({"text_input": "a", "timestamp": 3}, {"text_input": "b"}), 2, "has no timestamp, but the first row "),
        (lines({"text_input": "a"}, {"text_input": "b", "timestamp": 3}), 2, "has a timestamp, but the first row "),
        (lines(*({"session_id": name, "input_length": 3} for name in "aba")), 3, "continues the session 'a' after "),
        (lines(*({"session_id": name, "input_length": 3, **({} if k else {"timestamp": 1})}
                 for k in range(2) for name in "ab")), 4, "continues the session 'b' after "),
        (lines(*({"session_id": name, "input_length": 3} for name in ("a", None, "a"))), 3, "continues the session"),
        (lines({"input_length": 600, "hash_ids": [1]}), 1, "has 1 hash_ids, but 600 tokens make 2 blocks of 512; set "),
        (PLAIN + lines({**json.loads(PLAIN), "session_id": "a"}), 2, "has a session_id, but the first row has none "),
        (PLAIN + lines({"input_length": 3}), 2, "Object missing required field `timestamp`"),
    ],
)  # fmt: skip
def test_a_wrong_row_of_sessions_is_refused_by_its_number(content: str, row: int, message: str, tmp_path: Path) -> None:
    assert refusal("mooncake", write(tmp_path / "t", content)).startswith(f", row {row}: {message}")


def test_each_form_has_its_notes(tmp_path: Path) -> None:
    plain = trace_format("mooncake", {"path": str(write(tmp_path / "plain", PLAIN))}).notes()
    sessions = trace_format("mooncake", {"path": str(write(tmp_path / "t", lines({"text_input": "a"})))}).notes()
    assert "as recorded; timestamps count" in plain[0]
    assert "AIPerf's form" in sessions[0]


# Conversations that fork and spawn each other

TREE = lines(
    conversation("inner", asked("i0")),
    conversation(
        "root",
        asked("r0", spawns=["x", "y"], delay=700),
        asked("r1", delay=1500, spawns=[{"children": ["x"], "join_at": 3}], forks=[{"child": "f", "background": True}]),
        asked("r2"),
        asked("r3", forks=["g"]),
    ),
    conversation("x", asked("x0"), asked("x1", spawns=["inner"])),
    conversation("y", asked("y0", delay=250)),
    conversation("f", asked("f0")),
    conversation("g", asked("g0"), asked("g1", max_tokens=3)),
    conversation("alone", asked("a0", max_tokens=8), asked("a1", delay=10)),
)


def test_a_tree_of_lines_is_one_session(tmp_path: Path) -> None:
    spoken = {"session_id": "s", "turns": [{"text": "One"}, {"text": "Two", "delay": 1000}]}
    one, two = read("aiperf-dag", write(tmp_path / "s", lines(spoken)))
    assert (said(one), said(two), two.think_s) == ("One", "One . Two", 1.0)
    rows = read("aiperf-dag", write(tmp_path / "t", TREE))
    tree, alone = rows[:-2], rows[-2:]
    assert [(said(row), row.agent, row.parents, row.think_s) for row in tree] == [
        ("r0", "", (), 0.0),
        ("x0", "x", (0,), 0.0),
        ("x0 . x1", "x", (1,), 0.0),
        ("i0", "inner", (2,), 0.0),  # after x's last turn, so nobody waits for it
        ("y0", "y", (0,), 0.25),
        ("r0 . r1", "", (0, 2, 4), 1.5),
        ("r0 . r1 . f0", "f", (5,), 0.0),
        ("x0", "x#2", (5,), 0.0),
        ("x0 . x1", "x#2", (7,), 0.0),
        ("i0", "inner#2", (8,), 0.0),
        ("r0 . r1 . r2", "", (5,), 0.0),
        ("r0 . r1 . r2 . r3", "", (10, 8), 0.0),
        ("r0 . r1 . r2 . r3 . g0", "g", (11,), 0.0),
        ("r0 . r1 . r2 . r3 . g0 . g1", "g", (12,), 0.0),
    ]
    assert {row.session for row in tree} == {"root"}
    assert [(row.session, said(row), row.parents, row.output_tokens, row.think_s) for row in alone] == [
        ("alone", "a0", None, 8, 0.0), ("alone", "a0 . a1", None, 256, 0.01)
    ]  # fmt: skip


def test_children_that_do_not_fit_in_memory_are_read_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "t.gz", TREE)
    rows = read("aiperf-dag", path)
    monkeypatch.setattr(aiperf_dag, "_IN_MEMORY_BYTES", 1)
    assert read("aiperf-dag", path) == rows


def test_an_orchestrator_is_the_session_of_its_rounds(tmp_path: Path) -> None:
    content = lines(
        conversation("o", orchestrator=True, spawns=["x", "y"], rounds=2, think_time_ms=400),
        conversation("p", orchestrator=True, rounds=[{"spawns": ["y"]}, {"spawns": ["x"], "think_time_ms": 9}]),
        conversation("x", asked("x0")),
        conversation("y", asked("y0"), asked("y1")),
        conversation("q", asked("q0"), pre_session_spawns=["x"]),
    )
    rows = read("aiperf-dag", write(tmp_path / "t", content))
    assert [(row.session, said(row), row.parents, row.think_s) for row in rows] == [
        ("o", "x0", (), 0.0),
        ("o", "y0", (), 0.0),
        ("o", "y0 . y1", (1,), 0.0),
        ("o", "x0", (0, 2), 0.4),
        ("o", "y0", (0, 2), 0.4),
        ("o", "y0 . y1", (4,), 0.0),
        ("p", "y0", None, 0.0),
        ("p", "y0 . y1", None, 0.0),
        ("p", "x0", None, 0.009),
        ("q", "q0", (), 0.0),
        ("q", "x0", (), 0.0),
    ]


def test_turns_may_hold_their_own_history_tools_and_lengths(tmp_path: Path) -> None:
    result = {"role": "tool", "content": "seen", "tool_call_id": "c1"}
    said_before = {"role": "assistant", "content": "A"}
    content = lines(
        conversation("alone", asked("a0"), asked("a1"), context_mode="message_array_with_responses"),
        conversation("tool", asked("t0", tools=[{"type": "function"}]), {"messages": [result]}),
        conversation("given", asked("g0", extra={"max_completion_tokens": 5}), {"messages": [said_before]}),
    )
    rows = read("aiperf-dag", write(tmp_path / "t", content))
    assert [said(row) for row in rows] == ["a0", "a1", "t0", "t0 . seen", "g0", "g0 A"]
    assert rows[3].messages[1].tool_calls == (ToolCall("c1", "recorded_tool", "{}"),)
    assert (rows[2].tools, rows[4].output_tokens) == ('[{"type":"function"}]', 5)


@pytest.mark.parametrize(
    ("records", "row", "message"),
    [
        ([conversation("a", asked("a")), conversation("a", asked("b"))], 2, (
            "repeats the session_id 'a' of row 1; give each conversation its own"
        )),
        ([conversation("a", asked("a", forks=["z"]))], 1, (
            "forks or spawns 'z', which is the session_id of no line; add that conversation"
        )),
        ([conversation("a", asked("a", forks=["b"])), conversation("b", asked("b", spawns=["a"]))], 1, (
            "descends from no root, so from itself; remove one of its parents"
        )),
        ([conversation("r", asked("r", spawns=["a"])), conversation("a", asked("a", spawns=["a"]))], 2, (
            "is its own descendant: 'a' -> 'a'; remove one of these forks or spawns"
        )),
        ([conversation("a", asked("a", forks=["b"]), asked("a")), conversation("b", asked("b"))], 1, (
            "turn 0 forks 'b', which ends the conversation, but turns follow; set background, or move it to the "
            "last turn"
        )),
        ([conversation("a", asked("a", spawns=[{"children": ["b"], "join_at": 2}]), asked("a")),
          conversation("b", asked("b"))], 1, "turn 0 has join_at 2; it must be from 1 to 1"),
        ([conversation("a", asked("a", spawns=["b", "b"])), conversation("b", asked("b"))], 1, (
            "turn 0 spawns 'b' twice; remove one of them"
        )),
        ([conversation("a", asked("a", colour=1))], 1, "Object contains unknown field `colour` - at `$.turns[0]`"),
        ([conversation("a", {"messages": []})], 1, "Expected `array` of length >= 1 - at `$.turns[0].messages`"),
        ([conversation("a", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})], 1, (
            "turn 0: a message has a part of type 'image_url'; only text can be replayed"
        )),
        ([conversation("a")], 1, "has no turns; only an orchestrator may have none"),
        ([conversation("a", orchestrator=True)], 1, (
            "is an orchestrator that needs either spawns or a list of rounds that have them"
        )),
        ([conversation("a", asked("a", forks=["b"])),
          conversation("b", asked("b"), context_mode="message_array_with_responses")], 2, (
            "is forked by row 1, but takes no history; spawn it instead"
        )),
    ],
)  # fmt: skip
def test_a_wrong_conversation_is_refused_by_its_row(
    records: list[Fields], row: int, message: str, tmp_path: Path
) -> None:
    assert refusal("aiperf-dag", write(tmp_path / "t", lines(*records))) == f", row {row}: {message}"


def test_children_that_double_are_refused_before_they_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aiperf_dag, "MAX_REQUESTS", 1000)
    doubling = [
        conversation(f"{n}", asked("t", spawns=[f"{n + 1}"]), asked("t", spawns=[f"{n + 1}"])) for n in range(50)
    ]
    path = write(tmp_path / "t", lines(*doubling, conversation("50", asked("t"))))
    assert refusal("aiperf-dag", path).endswith("belongs to a session of more than 1000 requests; split the session")
    path = write(tmp_path / "deep", lines(*(conversation(f"{n}", asked("t", forks=[f"{n + 1}"])) for n in range(200)),
                                          conversation("200", asked("t"))))  # fmt: skip
    assert ", row 101: is more than 100 conversations below its root" in refusal("aiperf-dag", path)


@pytest.mark.parametrize(("first", "gap_s", "unit_s"), [(1_700_000_000, 20.0, 1.0), (1_700_000_000_000, 2000.0, 0.001)])
def test_times_since_1970_tell_their_unit(tmp_path: Path, first: float, gap_s: float, unit_s: float) -> None:
    lines = [
        {"timestamp": first + gap_s * number, "input_length": 60.0, "output_length": "5", "session_id": f"s{number}"}
        for number in range(3)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = read("mooncake", path)
    assert [row.at_s for row in rows] == pytest.approx([0, gap_s * unit_s, 2 * gap_s * unit_s])
    (note, *_) = trace_format("mooncake", {"path": str(path)}).notes()
    assert note.endswith("timestamps count seconds" if unit_s == 1 else "timestamps count 0.001 s")


def test_times_that_may_be_seconds_are_refused_in_aiperfs_form(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [{"timestamp": 0.7 * number, "input_length": 60, "session_id": f"s{number}"} for number in range(4)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert refusal("mooncake", path).endswith("set time_unit_s to 0.001 or 1")
    assert [row.at_s for row in read("mooncake", path, time_unit_s=1)] == pytest.approx([0, 0.7, 1.4, 2.1])
    dense = [{"timestamp": 5 * number, "input_length": 60, "session_id": f"s{number}"} for number in range(4)]
    path.write_text("".join(json.dumps(line) + "\n" for line in dense))
    assert [row.at_s for row in read("mooncake", path)] == pytest.approx([0, 0.005, 0.01, 0.015])
