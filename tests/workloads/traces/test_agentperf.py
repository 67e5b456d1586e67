"""Replays of agentperf-local: one trace, a manifest with its traces, or a folder."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bakeoff.workloads.traces.formats import detect
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.types import Message
from tests.workloads.traces.samples import CALL, SHARED_DATA, read, refusal, write

FIXTURES = SHARED_DATA / "agent-sessions"
TOOL = {"type": "function", "function": {"name": "find", "parameters": {}}}
HELLO = (Message("user", "Hello"),)


def call(task: str, number: int, **fields: Any) -> dict[str, Any]:
    return {**CALL, "task_id": task, "conversation_id": task, "conversation_idx": number, **fields}


def text(*calls: dict[str, Any]) -> str:
    return "".join(json.dumps(call) + "\n" for call in calls)


def task(name: str, model_calls: int, tool_calls: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "task_id": name, "trace": f"traces/{name}.jsonl", "source_recording": "r", "model_calls": model_calls,
        "tool_calls": tool_calls, "total_recorded_tool_delay_ms": 0, **fields,
    }  # fmt: skip


def write_replay(folder: Path, *tasks: dict[str, Any], version: int = 1) -> Path:
    manifest = {"name": "n", "source": "s", "mode": "single_user_agentic_replay", "version": version, "tasks": tasks}
    (folder / "traces").mkdir(exist_ok=True)
    return write(folder / "manifest.json", json.dumps(manifest, indent=2))


def test_a_call_waits_for_the_tools_of_the_one_before_it(tmp_path: Path) -> None:
    calls = (
        call("t", 0, simulated_tool_delay_ms_after=1500),
        call("t", 2, tools=[TOOL]),
        call("u", 0, simulated_tool_delay_ms_after=0.5),
        call("u", 1),
    )
    assert read("agentperf", write(tmp_path / "t.jsonl", text(*calls))) == [
        TraceRow(None, None, 7, "t", None, messages=HELLO),
        TraceRow(None, None, 7, "t", 1.5, messages=HELLO, tools=json.dumps([TOOL], separators=(",", ":"))),
        TraceRow(None, None, 7, "u", None, messages=HELLO),
        TraceRow(None, None, 7, "u", 0.0005, messages=HELLO),
    ]


@pytest.mark.parametrize(
    ("target", "recorded", "bound", "tokens"),
    [(5, 6, 7, 5), (None, 6, 7, 6), (None, None, 7, 7), (None, None, None, 99), (0, 6, 7, 1)],
)
def test_the_length_is_the_target_else_the_recorded_one_else_the_bound(
    target: int | None, recorded: int | None, bound: int | None, tokens: int, tmp_path: Path
) -> None:
    lengths = {"target_output_tokens": target, "recorded_completion_tokens": recorded, "max_output_tokens": bound}
    path = write(tmp_path / "t.jsonl", text(call("t", 0, **lengths)))
    assert [row.output_tokens for row in read("agentperf", path, output_tokens=99)] == [tokens]


def test_a_manifest_gives_the_order_of_its_traces(tmp_path: Path) -> None:
    manifest = write_replay(tmp_path, task("b", 1), task("a", 2, 1))
    write(tmp_path / "traces/b.jsonl.gz", text(call("b", 0)))
    write(tmp_path / "traces/a.jsonl", text(call("a", 0, recorded_tool_calls_after=[{"duration_ms": 1}]), call("a", 1)))
    assert [row.session for row in read("agentperf", manifest)] == ["b", "a", "a"]
    assert read("agentperf", tmp_path) == read("agentperf", manifest)
    assert [row.session for row in read("agentperf", tmp_path / "traces/a.jsonl")] == ["a", "a"]
    compact = write(tmp_path / "manifest.json", json.dumps(json.loads(manifest.read_text())))
    assert len(read("agentperf", compact)) == 3


def test_a_folder_of_traces_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    write(tmp_path / "b.jsonl", text(call("x", 0)))
    write(tmp_path / "a.jsonl.gz", text(call("y", 0)))
    assert detect(str(tmp_path)) == "agentperf"
    assert [row.session for row in read("agentperf", tmp_path)] == ["y", "x"]
    write(tmp_path / "c.jsonl", text(call("y", 0)))
    assert refusal("agentperf", tmp_path) == (
        "/c.jsonl, row 1: repeats the conversation 'y' of a.jsonl.gz; remove one of them"
    )


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([task("a", 2)], "/traces/a.jsonl: has 1 model calls, but the manifest lists 2; fetch both again"),
        ([task("a", 1, 3)], "/traces/a.jsonl: has 0 tool calls, but the manifest lists 3; fetch both again"),
        ([task("b", 1, trace="traces/a.jsonl")], (
            "/traces/a.jsonl, row 1: is of task 'a', but the manifest lists its file for 'b'"
        )),
        ([task("b", 1)], "/traces/b.jsonl: does not exist; give the path of the trace's file"),
        ([task("a", 1), task("a", 1)], "/manifest.json, task a: is listed twice; remove one of them"),
        ([task("a", 1, trace="../a.jsonl")], (
            "/manifest.json, task a: its trace must be a path within the manifest's folder"
        )),
        ([], "/manifest.json: has no tasks"),
    ],
)  # fmt: skip
def test_a_manifest_that_does_not_fit_its_traces_is_refused(
    tasks: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    write_replay(tmp_path, *tasks)
    write(tmp_path / "traces/a.jsonl", text(call("a", 0)))
    assert refusal("agentperf", tmp_path) == message


def test_a_folder_says_which_manifest_to_give(tmp_path: Path) -> None:
    assert refusal("agentperf", tmp_path) == ": has neither a manifest.json nor traces (*.jsonl, *.jsonl.gz)"
    write_replay(tmp_path, task("a", 1)).rename(tmp_path / "manifest-arm64.json")
    write(tmp_path / "manifest-x86_64.json", "{}")
    assert refusal("agentperf", tmp_path) == (
        ": has several manifests; give one of manifest-arm64.json, manifest-x86_64.json"
    )
    assert refusal("agentperf", write_replay(tmp_path, version=2)) == ": has version 2; only version 1 can be read"


@pytest.mark.skipif(not (FIXTURES / "aa_mini_manifest.json").exists(), reason="needs the replay aa-mini-v1")
def test_the_bundled_mini_replay(tmp_path: Path) -> None:
    """6 calls and 5 calls of tools of 50 ms each; the history grows by a call, its result and a question."""
    trace = FIXTURES / "aa_mini_library_01.jsonl.gz"
    assert detect(str(trace)) == detect(str(FIXTURES / "aa_mini_manifest.json")) == "agentperf"
    (tmp_path / "traces").mkdir()
    (tmp_path / "manifest.json").write_bytes((FIXTURES / "aa_mini_manifest.json").read_bytes())
    (tmp_path / "traces/aa-mini-library-01.jsonl").write_bytes(gzip.decompress(trace.read_bytes()))
    rows = read("agentperf", tmp_path)
    assert rows == read("agentperf", trace)
    assert [(row.output_tokens, row.think_s, len(row.messages)) for row in rows] == [
        (256, None, 2), (256, 0.05, 5), (256, 0.05, 8), (256, 0.05, 11), (256, 0.05, 14), (256, 0.05, 17)
    ]  # fmt: skip
    assert {row.session for row in rows} == {"aa-mini-library-01"}
    names = [tool["function"]["name"] for tool in json.loads(rows[0].tools or "")]
    assert names == ["search_catalog", "get_availability", "reserve_book", "update_reservation"]
    assert rows[1].messages[2].tool_calls[0].arguments == '{"topic":"introductory astronomy","branch":"North"}'
