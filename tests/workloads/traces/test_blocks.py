"""The formats that name prompt blocks: Mooncake, Bailian, Claude Code; and coarse clocks."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bakeoff.workloads.rng import Rng
from bakeoff.workloads.traces import ticks
from bakeoff.workloads.traces.formats import trace_format
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.traces.ticks import spread, tick_s
from tests.workloads.traces.samples import SESSION, read, refusal, times_s, write


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def ticking(stamps_ms: list[int]) -> str:
    return lines([{"timestamp": at, "input_length": 1 + i, "output_length": 2} for i, at in enumerate(stamps_ms)])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(1, 5000), st.integers(1, 10**8), st.integers(0, 2**64)),
        min_size=1,
        max_size=30,
    )
)
def test_mooncake_rows_that_were_written_are_read_back(rows: list[tuple[int, int, int, int]], tmp_path: Path) -> None:
    rows = sorted(rows)
    blocks = [tuple(range(first, first + -(-length // 512))) for _, length, _, first in rows]
    text = lines(
        [
            {"timestamp": at, "input_length": length, "output_length": output, "hash_ids": names, "new": "ignored"}
            for (at, length, output, _), names in zip(rows, blocks, strict=True)
        ]
    )
    assert read("mooncake", write(tmp_path / "trace.jsonl", text), ticks="burst", time_unit_s=1) == [
        TraceRow(at - rows[0][0], length, output, blocks=names, block_tokens=512)
        for (at, length, output, _), names in zip(rows, blocks, strict=True)
    ]


def test_mooncake_failures_are_left_out_and_rows_may_name_no_blocks(tmp_path: Path) -> None:
    text = lines(
        [
            {"timestamp": 5, "input_length": 9, "output_length": 0},
            {"timestamp": 20, "input_length": 9, "output_length": 1},
            {"timestamp": 520, "input_length": 600, "output_length": 4, "hash_ids": [3, 9]},
        ]
    )
    assert read("mooncake", write(tmp_path / "trace.jsonl", text)) == [
        TraceRow(0.0, 9, 1),
        TraceRow(0.5, 600, 4, blocks=(3, 9), block_tokens=512),
    ]


def test_bailian_chats_are_sessions_by_their_root(tmp_path: Path) -> None:
    chats = [(159, -1), (160, -1), (161, 159), (162, 161), (163, 42), (164, 163), (165, 159)]
    text = lines(
        [
            {
                "chat_id": chat,
                "parent_chat_id": parent,
                "timestamp": 61.25 + i,
                "input_length": 33,
                "output_length": 5,
                "type": "text",
                "turn": 1,
                "hash_ids": [i, 7, 8],
            }
            for i, (chat, parent) in enumerate(chats)
        ]
    )
    path = write(tmp_path / "trace.jsonl", text)
    rows = read("mooncake", path)
    assert rows == read("mooncake", path, block_tokens=16, time_unit_s=1.0)
    note = trace_format("mooncake", {"path": str(path)}).notes()[0]
    assert note.endswith("blocks of 16 tokens as recorded; timestamps count seconds")
    assert [row.session for row in rows] == ["159", "160", "159", "159", "42", "42", "159"]
    assert [row.at_s for row in rows] == [0, 1, 2, 3, 4, 5, 6]
    assert (rows[2].blocks, rows[2].block_tokens, rows[2].think_s) == ((2, 7, 8), 16, None)


@pytest.mark.parametrize(("chat", "stamps"), [(False, [0, 1, 2]), (False, [0.0, 0.7, 1.4]), (True, [0, 2000, 4000])])
def test_times_that_may_be_seconds_are_asked_for(chat: bool, stamps: list[float], tmp_path: Path) -> None:
    rows = [
        {"timestamp": at, "input_length": 9, "output_length": 1} | ({"chat_id": 1} if chat else {}) for at in stamps
    ]
    path = write(tmp_path / "trace.jsonl", lines(rows))
    assert refusal("mooncake", path).endswith("set time_unit_s to 0.001 or 1")
    assert [row.at_s for row in read("mooncake", path, time_unit_s=1)] == stamps


def test_arrivals_of_a_coarse_tick_are_spread_over_it_in_their_order(tmp_path: Path) -> None:
    """Ticks of 3 s ± 3 ms, as in the published trace."""
    stamps = sorted([0] * 9 + [3000] * 4 + [5999] * 6 + [12002] * 5 + [15000])
    path = write(tmp_path / "trace.jsonl", ticking(stamps))
    rows = read("mooncake", path)
    assert [row.input_tokens for row in rows] == list(range(1, 26))
    offsets = times_s(rows)
    assert offsets == sorted(offsets)
    assert len({*offsets}) == 25
    assert offsets[0] == 0  # the first row's offset within its tick is subtracted from all
    assert all(abs(offset - at / 1000) < 2.999 for offset, at in zip(offsets, stamps, strict=True))
    assert read("mooncake", path) == rows
    assert read("mooncake", path, seed="2") != rows
    assert [row.at_s for row in read("mooncake", path, ticks="burst")] == [at * 0.001 for at in stamps]


@pytest.mark.parametrize(
    ("times_s", "tick"),
    [
        ([0.0] * 6 + [3.0] * 4, 3.0),
        ([0.0, 0.0, 2.999, 2.999, 9.001, 9.001, 12.0, 12.0], 2.999),
        ([5.0, 5.0, 8.0, 8.0, 11.0, 11.0], None),  # too few
        ([0.0] * 10, None),  # a single stamp shows no tick
        ([0.0, 0.1, 0.3, 0.7, 1.5, 1.9, 2.2, 4.0], None),  # a smooth clock
        ([0.0] * 4 + [3.0] * 4 + [7.4] * 4, None),  # bursts, but not at multiples
    ],
)
def test_a_clock_ticks_where_stamps_repeat_at_multiples(times_s: list[float], tick: float | None) -> None:
    assert tick_s(times_s) == tick


def test_spread_arrivals_stay_in_their_tick_and_fill_it_evenly() -> None:
    rows = [(3.0 * (i // 400), i) for i in range(4000)]
    spread_rows = list(spread(iter(rows), Rng("7", "test")))
    assert [item for _, item in spread_rows] == list(range(4000))
    within = [at - before for (at, _), (before, _) in zip(spread_rows, rows, strict=True)]
    assert min(within) >= 0
    assert max(within) < 3.0
    assert sum(within) / 4000 == pytest.approx(1.5, abs=4 * 3 / (12 * 4000) ** 0.5)


def test_a_tick_without_end_is_refused_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticks, "MAX_ROWS_A_TICK", 20)
    path = write(tmp_path / "trace.jsonl", ticking([0] * 8 + [3000] * 8 + [6000] * 21))
    assert refusal("mooncake", path) == (": more than 20 rows are at 6 s; set ticks = 'burst' to send them at once")
    assert len(read("mooncake", path, ticks="burst")) == 37


def session(name: str | None = "s1", **changes: object) -> str:
    return json.dumps({**SESSION, "id": name, **changes})


def test_claude_code_sessions_keep_their_blocks_apart(tmp_path: Path) -> None:
    write(tmp_path / "b.json.gz", session("s2"))
    write(tmp_path / "a.json", session("s1"))
    write(tmp_path / "notes.txt", "not a session")
    first, second, third, fourth = read("claude-code", tmp_path)
    assert [row.session for row in (first, second, third, fourth)] == ["s1", "s1", "s2", "s2"]
    assert [(row.at_s, row.think_s, row.output_tokens) for row in (first, second)] == [(None, None, 5), (None, 2.5, 6)]
    # 130 and 200 tokens in blocks of 64, the last one partial
    assert [len(row.blocks) for row in (first, second)] == [3, 4]
    assert first.blocks[:2] == second.blocks[:2]
    assert first.blocks[2] not in second.blocks
    assert not {*first.blocks, *second.blocks} & {*third.blocks, *fourth.blocks}
    assert all(0 <= name < 2**63 for row in (first, second, third, fourth) for name in row.blocks)
    assert read("claude-code", tmp_path / "a.json") == [first, second]


def test_claude_code_blocks_of_global_names_are_shared_between_sessions(tmp_path: Path) -> None:
    for name in ("s1", "s2"):
        write(tmp_path / f"{name}.json", session(name, hash_id_scope="global"))
    first, _, third, _ = read("claude-code", tmp_path)
    assert first.blocks[:2] == third.blocks[:2]
    assert first.blocks[2] != third.blocks[2]


def test_claude_code_answers_that_were_given_up_ask_for_one_token(tmp_path: Path) -> None:
    gone = {"t": 9.0, "type": "s", "in": 256, "out": 0, "hash_ids": [1, 2, 3, 4]}
    requests = [*SESSION["requests"], gone]
    rows = read("claude-code", write(tmp_path / "a.json", session(None, requests=requests)))
    assert [(row.session, row.input_tokens, row.output_tokens) for row in rows] == [
        ("a", 130, 5),
        ("a", 200, 6),
        ("a", 256, 1),
    ]
    assert rows[2].think_s == 5.0, "without a recorded pause, the time since the previous request"
    assert len(rows[2].blocks) == 4  # a whole number of blocks: no partial block


def test_a_session_without_think_times_pauses_from_the_end_of_an_answer_to_the_next_request(tmp_path: Path) -> None:
    recorded = {"type": "n", "in": 64, "out": 5, "hash_ids": [1]}
    starts = [{"t": 0.0, "api_time": 3.0}, {"t": 10.0, "api_time": 9.0}, {"t": 12.0}, {"t": 20.5}, {}]
    rows = read("claude-code", write(tmp_path / "a.json", session(None, requests=[recorded | at for at in starts])))
    assert [row.think_s for row in rows] == [None, 7.0, 0.0, 8.5, None]
    flat = "trace_id,req_index,t_s,input_tokens,output_tokens,prefix_hit_blocks,think_time_s\n"
    rows = read("claude-code-flat", write(tmp_path / "a.csv", flat + "s,0,1,9,5,0,\ns,1,4.5,9,5,0,\ns,2,6,9,5,0,1\n"))
    assert [row.think_s for row in rows] == [None, 3.5, 1.0]


def test_claude_code_sessions_without_blocks_are_read(tmp_path: Path) -> None:
    requests = [{"t": 0.0, "type": "n", "in": 130, "out": 5}]
    (row,) = read("claude-code", write(tmp_path / "a.json", session(requests=requests)))
    assert row == TraceRow(None, 130, 5, "s1")


def test_a_claude_code_session_in_two_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.json", session("s1"))
    write(tmp_path / "b.json.gz", session("s1"))
    assert refusal("claude-code", tmp_path) == "/b.json.gz: repeats the session 's1' of a.json; remove one of them"


def test_a_folder_without_sessions_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "readme.md", "nothing")
    assert refusal("claude-code", tmp_path) == ": has no session files (*.json, *.json.gz, *.jsonl, *.jsonl.gz)"
