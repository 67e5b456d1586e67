"""Sessions with sub-agents in both dialects of their form, against their recorded times and written-out statistics."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bakeoff.workloads.graph import Links
from bakeoff.workloads.traces.claude_code import ClaudeCode
from bakeoff.workloads.traces.formats import detect
from bakeoff.workloads.traces.row import TraceRow
from tests.workloads.traces.samples import read, write

SHARED = Path(__file__).parents[4] / "shared/data"


def request(t: float, tokens: int, out: int, ids: list[int], api_time: float, **fields: Any) -> dict[str, Any]:
    return {
        "t": t,
        "type": "n",
        "model": "m",
        "in": tokens,
        "out": out,
        "hash_ids": ids,
        "api_time": api_time,
        **fields,
    }


def group(t: float, agent: str, duration_ms: int | None, *inner: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "t": t, "type": "subagent", "agent_id": agent, "subagent_type": "Explore", "duration_ms": duration_ms,
        "total_tokens": 9, "tool_use_count": None, "status": "completed", "models": ["m"], "requests": list(inner),
        **fields,
    }  # fmt: skip


def session(name: str, *entries: dict[str, Any]) -> dict[str, Any]:
    return {"id": name, "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": list(entries)}


FIRST = request(0.0, 300, 40, [1, 2, 3, 4], 5.0)
LAST = request(32.0, 420, 9, [1, 2, 3, 4, 5, 6], 2.0)
RAW = session(
    "a",
    FIRST,
    group(26.0, "x", 20500, request(0.0, 130, 20, [11, 12], 4.0), request(9.0, 200, 10, [11, 12, 13], 9.0)),
    group(31.0, "y", 25500, request(0.0, 70, 5, [11], 24.0)),
    LAST,
)
AGENTX = session(
    "a",
    FIRST,
    group(5.5, "x", 18000, request(5.5, 130, 20, [11, 12], 4.0), request(14.5, 200, 10, [11, 12, 13], 9.0)),
    group(5.5, "y", 24000, request(5.5, 70, 5, [11], 24.0)),
    LAST,
)
"""The same session in both dialects: two sub-agents start at 5.5 s, and the main agent waits for both."""


def starts_s(rows: list[TraceRow], answers_s: list[float]) -> list[float]:
    pauses = [row if row.think_s is not None else TraceRow(None, 1, 1, think_s=0.0, parents=()) for row in rows]
    return Links.of(pauses).times_s(answers_s)[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("recorded", [RAW, AGENTX], ids=["kv-cache-tester", "agentx"])
def test_recorded_answer_times_give_the_recorded_starts(tmp_path: Path, recorded: dict[str, Any]):
    rows = read("claude-code", write(tmp_path / "a.jsonl", json.dumps(recorded)))
    assert [(row.agent, row.parents) for row in rows] == [
        ("", ()), ("x", (0,)), ("y", (0,)), ("x", (1,)), ("", (0, 3, 2))
    ]  # fmt: skip
    assert starts_s(rows, [5.0, 4.0, 24.0, 9.0, 2.0]) == pytest.approx([0.0, 5.5, 5.5, 14.5, 32.0])


def test_a_sub_agent_that_ends_with_a_tool_keeps_its_main_agent_waiting(tmp_path: Path):
    """Whichever of the two ends last, the main agent goes on one second later."""
    rows = read("claude-code", write(tmp_path / "a.json", json.dumps(RAW, indent=1)))
    assert rows[4].lags_s == pytest.approx((0.0, 2.5, 1.5))
    assert rows[4].think_s == pytest.approx(1.0)
    slow_first, slow_second = (starts_s(rows, [1.0, 1.0, y_s, x_s, 1.0])[4] for x_s, y_s in ((60.0, 1.0), (1.0, 60.0)))
    assert slow_first == pytest.approx(1.0 + 0.5 + 1.0 + 5.0 + 60.0 + 2.5 + 1.0)
    assert slow_second == pytest.approx(1.0 + 0.5 + 60.0 + 1.5 + 1.0)


def test_a_launched_sub_agent_starts_at_its_time_and_its_main_agent_goes_on(tmp_path: Path):
    """Such a group has no duration, so its time is no end; another group of the file tells the dialect."""
    launched = group(5.25, "x", None, request(0.0, 130, 20, [11, 12], 50.0), status="async_launched")
    ended = group(9.0, "y", 1000, request(0.0, 70, 5, [11], 1.0))
    recorded = session("a", FIRST, launched, request(6.0, 320, 1, [1, 2, 3, 4, 5], 1.0), ended, LAST)
    rows = read("claude-code", write(tmp_path / "a.json", json.dumps(recorded)))
    assert starts_s(rows, [5.0, 50.0, 1.0, 1.0, 2.0]) == pytest.approx([0.0, 5.25, 6.0, 8.0, 32.0])
    assert [row.parents for row in rows] == [(), (0,), (0,), (2,), (2, 3)], "nobody waits for the launched one"


def test_a_sub_agent_does_not_wait_for_a_call_that_was_in_flight_when_it_started(tmp_path: Path):
    """It starts 3 s after the first answer, however long the main agent's second call takes."""
    beside = group(8.0, "x", 1000, request(8.0, 130, 20, [11, 12], 1.0))
    recorded = session("a", FIRST, request(6.0, 320, 1, [1, 2, 3, 4, 5], 10.0), beside, LAST)
    rows = read("claude-code", write(tmp_path / "a.json", json.dumps(recorded)))
    assert [(row.agent, row.parents) for row in rows] == [("", ()), ("", (0,)), ("x", (0,)), ("", (1, 2))]
    for second_s in (10.0, 20.0):
        assert starts_s(rows, [5.0, second_s, 1.0, 2.0])[2] == pytest.approx(8.0)


def test_a_sub_agent_that_no_answer_precedes_waits_for_the_call_in_flight(tmp_path: Path):
    beside = group(2.0, "x", 1000, request(2.0, 130, 20, [11, 12], 1.0))
    rows = read("claude-code", write(tmp_path / "a.json", json.dumps(session("a", FIRST, beside, LAST))))
    assert [(row.agent, row.parents) for row in rows] == [("", ()), ("x", (0,)), ("", (0, 1))]


def test_the_dialect_is_that_of_the_file_even_where_a_session_does_not_tell(tmp_path: Path):
    silent = session("b", FIRST, group(0.0, "x", 1000, request(0.0, 70, 5, [11], 1.0)), LAST)
    path = write(tmp_path / "traces.jsonl", "\n".join(map(json.dumps, (silent, AGENTX, session("c", FIRST)))))
    assert detect(str(path)) == "claude-code"
    rows = read("claude-code", path)
    assert [row.session for row in rows] == ["b"] * 3 + ["a"] * 5 + ["c"]
    assert rows[-1].parents is None, "a conversation"


def test_think_times_of_agentx_count_from_any_agent_so_they_are_no_pauses(tmp_path: Path):
    recorded = session("a", *AGENTX["requests"][:3], request(32.0, 420, 9, [1, 2, 3, 4, 5, 6], 2.0, think_time=0.25))
    del recorded["requests"][0]["api_time"]
    rows = read("claude-code", write(tmp_path / "a.json", json.dumps(recorded)))
    assert rows[-1].think_s == pytest.approx(32.0 - 29.5)
    FIRST["api_time"] = 5.0


def test_figures_count_hits_of_all_agents_and_of_the_main_agent(tmp_path: Path):
    figures = ClaudeCode(str(write(tmp_path / "a.jsonl", json.dumps(RAW)))).figures()
    assert (figures["sub_agents"], figures["sub_agent_requests"]) == (2, 3)
    # 4 + 2 + 1 + 3 + 6 ids; 1 of y's and 2 of x's second and 4 of the last are known
    assert (figures["blocks"], figures["block_hit_share"]) == (16, pytest.approx(7 / 16))
    assert (figures["main_agent_blocks"], figures["main_agent_block_hit_share"]) == (10, pytest.approx(4 / 10))


@pytest.mark.skipif(not SHARED.exists(), reason="needs the sessions of kv-cache-tester")
def test_statistics_of_recorded_sessions(tmp_path: Path):
    """Computed by hand from the files, with sub-agents at their true starts."""
    path = SHARED / "agent-sessions/claude_code_subagents.traces.jsonl.gz"
    rows = read("claude-code", path)
    for agents, expected in ((False, (328, 33_035_969, 176_386)), (True, (110, 5_370_255, 61_278))):
        part = [row for row in rows if bool(row.agent) is agents]
        sums = sum(row.input_tokens or 0 for row in part), sum(row.output_tokens or 0 for row in part)
        assert (len(part), *sums) == expected
    figures = ClaudeCode(str(path)).figures()
    assert figures["sub_agents"] == 11
    assert figures["block_hit_share"] == pytest.approx(565_176 / 599_887, abs=0.001)
    assert figures["main_agent_block_hit_share"] == 493_021 / 516_031
    with gzip.open(path, "rt") as file:
        recorded = json.loads(file.readline())
    tree = [row for row in rows if row.session == recorded["id"]]
    first_of_agents = [row for row in tree if row.agent and row.parents == (0,)]
    assert [18.78 + (row.think_s or 0.0) for row in first_of_agents] == pytest.approx([19.461, 19.474, 19.474])
    joins = [row for row in tree if not row.agent and len(row.parents or ()) > 1]
    assert [len(row.parents or ()) for row in joins] == [4, 2]
    assert joins[0].think_s == pytest.approx(228.0 - 211.347)
    assert joins[1].think_s == pytest.approx(763.0 - 723.533)
