"""The formats that are tables: Azure, BurstGPT, the flat Claude Code table, and any CSV."""

import csv
import json
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bakeoff.workloads.traces import burstgpt, reading
from bakeoff.workloads.traces.formats import detect, trace_format
from bakeoff.workloads.traces.row import TraceRow
from tests.workloads.traces.samples import SAMPLES, read, refusal, write

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST_8 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
FLAT = "trace_id,req_index,input_tokens,output_tokens,prefix_hit_blocks,think_time_s\n"


@pytest.mark.parametrize(
    ("stamps", "offsets_s"),
    [
        (["2023-11-16 18:17:03.9799600", "2023-11-16 18:17:04.0319600"], [0, 0.052]),
        (["2024-05-10 00:00:00.009930+00:00", "2024-05-12 00:00:00+00:00"], [0, 2 * 86400 - 0.00993]),
        (["2024-05-10 23:59:59.9999999", "2024-05-11 00:00:00", "2024-05-11 00:00:00.0000001"], [0, 1e-7, 2e-7]),
        (["2024-02-28 12:00:00+00:00", "2024-02-29 12:00:00.5", "2024-03-01T12:00:00Z"], [0, 86400.5, 2 * 86400]),
        (["2024-05-10 02:00:00+02:00", "2024-05-10 00:00:01+00:00"], [0, 1]),
        (["2024-05-10 00:00", "2024-05-10 00:00:00.123456789"], [0, 0.123456789]),
    ],
)
def test_azure_stamps_of_every_form_count_from_the_first(
    stamps: list[str], offsets_s: list[float], tmp_path: Path
) -> None:
    rows = read("azure", write(tmp_path / "trace.csv", AZURE + "".join(f"{stamp},5,6\n" for stamp in stamps)))
    assert [row.at_s for row in rows] == offsets_s


def test_azure_failures_are_left_out_wherever_they_stand(tmp_path: Path) -> None:
    times = ["18:17:01,9,0", "18:17:02,10,1", "18:17:03,0,0", "18:17:04,11,2", "18:17:05,12,0"]
    path = write(tmp_path / "trace.csv", AZURE + "".join(f"2023-11-16 {row}\n" for row in times))
    assert read("azure", path) == [TraceRow(0.0, 10, 1), TraceRow(2.0, 11, 2)]


@pytest.mark.parametrize("block_bytes", [1, 100, 1000, 10**6])
def test_azure_rows_do_not_depend_on_the_blocks_they_are_read_in(
    block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamps = [f"2024-05-{10 + i // 1440:02} {i // 60 % 24:02}:{i % 60:02}:{i % 59:02}.25" for i in range(2000)]
    rows = [f"{stamp}+00:00,{i + 1},{i % 4}" for i, stamp in enumerate(stamps)]  # every fourth request failed
    path = write(tmp_path / "trace.csv", AZURE + "\n".join(rows))
    monkeypatch.setattr(reading, "_BLOCK_BYTES", block_bytes)
    wanted = [TraceRow(60.0 * (i - 1) + i % 59 - 1, i + 1, i % 4) for i in range(2000) if i % 4]
    assert read("azure", path) == wanted
    rows[1500] = rows[1499]  # an equal time is no step back
    rows[1700] = rows[1500]
    message = refusal("azure", write(path, AZURE + "\n".join(rows)))
    assert message == ", row 1702: its time is before that of the previous row; sort the file by its time column"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    gaps_100ns=st.lists(st.integers(0, 10**13), min_size=1, max_size=40),
    tokens=st.data(),
    decimals=st.sampled_from([0, 3, 6, 7]),
    zone=st.sampled_from(["", "+00:00"]),
)
def test_azure_rows_that_were_written_are_read_back(
    gaps_100ns: list[int], tokens: st.DataObject, decimals: int, zone: str, tmp_path: Path
) -> None:
    """With blocks of any size, and with rows that only the strict parser can read."""
    unit = 10 ** (7 - decimals)
    wanted, text, now = [], AZURE, 5 * 10**9 // unit * unit
    for i, gap in enumerate(gaps_100ns):
        now += gap // unit * unit if i else 0
        inputs = tokens.draw(st.integers(1, 10**8))
        outputs = tokens.draw(st.integers(1, 10**8))
        seconds, rest = divmod(now, 10**7)
        day, clock = divmod(seconds, 86400)
        year, day = 2001 + day // 365 % 3, day % 365  # three years without a leap day
        stamp = f"{_date(year, day)} {clock // 3600:02}:{clock // 60 % 60:02}:{clock % 60:02}"
        fraction = f".{rest:07}"[: decimals + 1] if decimals else ""
        text += f"{stamp}{fraction}{zone},{inputs}{tokens.draw(st.sampled_from(['', '', '.0', ' ']))},{outputs}\n"
        wanted.append((now, inputs, outputs))
    if wanted[-1][0] >= 3 * 365 * 86400 * 10**7:
        return
    rows = read("azure", write(tmp_path / "trace.csv", text))
    first = wanted[0][0]
    assert rows == [TraceRow((now - first) * 100 / 1e9, inputs, outputs) for now, inputs, outputs in wanted]


def _date(year: int, day: int) -> str:
    return (date(year, 1, 1) + timedelta(days=day)).isoformat()


def test_burstgpt_of_six_columns_has_requests_on_their_own_without_the_failures(tmp_path: Path) -> None:
    text = SAMPLES["burstgpt"] + "50,GPT-4,0,0,0,API log\n51,GPT-4,7,0,7,API log\n60,GPT-4,8,9,17,API log\n"
    rows = read("burstgpt", write(tmp_path / "trace.csv", text))
    assert rows == [TraceRow(0.0, 472, 18), TraceRow(40.0, 1087, 230), TraceRow(55.0, 8, 9)]


def test_burstgpt_of_eight_columns_has_sessions_whose_think_time_counts_from_the_answers_end(tmp_path: Path) -> None:
    rows = [
        "100.0,a,43,GPT-4,906,446,1352,Conversation log",
        "120.0,,,GPT-4,36,29,65,API log",
        "130.0,b,8,GPT-4,1779,123,1902,Conversation log",
        "140.0,b,9,GPT-4,1900,0,1900,Conversation log",  # failed: the answer at 138 remains b's last one
        "141.0,a,5,GPT-4,1400,10,1410,Conversation log",  # before the first answer had ended
        "150.0,b,1,GPT-4,1950,20,1970,Conversation log",
        "160.0,a,1,GPT-4,1500,30,1530,Conversation log",
    ]
    trace_rows = read("burstgpt", write(tmp_path / "trace.csv", BURST_8 + "\n".join(rows)))
    assert [(row.at_s, row.session, row.think_s, row.output_tokens) for row in trace_rows] == [
        (0.0, "a", None, 446),
        (20.0, None, None, 29),
        (30.0, "b", None, 123),
        (41.0, "a", 0.0, 10),
        (50.0, "b", 12.0, 20),
        (60.0, "a", 14.0, 30),
    ]


def test_burstgpt_forgets_the_session_that_has_been_quiet_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(burstgpt, "_MAX_SESSIONS", 2)
    rows = [f"{i},{name},0,GPT-4,9,4,13,Conversation log" for i, name in enumerate("abacab")]
    trace_rows = read("burstgpt", write(tmp_path / "trace.csv", BURST_8 + "\n".join(rows)))
    assert [row.think_s for row in trace_rows] == [None, None, 2.0, None, 2.0, None]


def test_the_flat_table_shares_exactly_the_blocks_that_it_says(tmp_path: Path) -> None:
    rows = ["s1,0,130,5,0,0.0", "s1,1,200,0,2,2.5", "s1,2,90,7,1,", "s1,4,320,7,3,9", "s2,0,130,5,0,3.0"]
    first, second, third, fourth, other = read("claude-code-flat", write(tmp_path / "t.csv", FLAT + "\n".join(rows)))
    assert [len(row.blocks) for row in (first, second, third, fourth, other)] == [3, 4, 2, 5, 3]
    assert {row.block_tokens for row in (first, second, third, fourth, other)} == {64}
    assert shared(first, second) == 2
    assert shared(second, third) == 1
    assert shared(third, fourth) == 1  # the third is too short for three blocks: they come from the longest prompt
    assert shared(second, fourth) == 3
    assert not {*other.blocks} & {*first.blocks, *second.blocks, *third.blocks, *fourth.blocks}
    assert [row.think_s for row in (first, second, third, fourth, other)] == [None, 2.5, None, 9.0, None]
    assert [row.output_tokens for row in (first, second)] == [5, 1]  # an abandoned request still filled the cache
    assert [row.session for row in (fourth, other)] == ["s1", "s2"]
    assert first.at_s is None


def shared(first: TraceRow, second: TraceRow) -> int:
    """The number of leading blocks that two prompts share."""
    equal = [a == b for a, b in zip(first.blocks, second.blocks, strict=False)]
    return [*equal, False].index(False)


def test_names_of_blocks_are_the_same_on_every_machine(tmp_path: Path) -> None:
    (row, _) = read("claude-code-flat", write(tmp_path / "trace.csv", SAMPLES["claude-code-flat"]))
    assert row.blocks == (693914819786123604, 693914819786123605, 693914819786123606)


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("azure", "timestamp,context_tokens,generated_tokens"),
        ("burstgpt", "timestamp,request_tokens,response_tokens"),
        ("csv", "At_S,Input Tokens,OUTPUT_TOKENS"),
    ],
)  # fmt: skip
def test_columns_are_known_in_another_spelling(name: str, header: str, tmp_path: Path) -> None:
    stamp = "2023-11-16 18:17:03" if name == "azure" else "3"
    path = write(tmp_path / "trace.csv", f"{header}\n{stamp},5,6\n")
    assert detect(str(path)) == name
    (row,) = read(name, path)
    assert (row.input_tokens, row.output_tokens) == (5, 6)


def test_columns_that_no_field_holds_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.csv", "timestamp,input_tokens,output_tokens,session\n700,5,6,a\n")
    (row,) = read("csv", path)
    assert (row.at_s, row.session) == (None, "a")
    *_, note = trace_format("csv", {"path": str(path)}).notes()
    assert note.startswith("csv: not used: timestamp; ")
    timed = trace_format("csv", {"path": str(path), "columns": {"at_s": "timestamp"}})
    assert not any("not used" in note for note in timed.notes())


def test_any_csv_is_read_by_a_map_of_its_columns(tmp_path: Path) -> None:
    rows = ["1500,100,10.0,ann,", '"2000",200, 20 ,,', "2500,1,0,ann,4", "3000,5,6,ann,500"]
    columns = {"at_s": 'when;"x"', "input_tokens": "prompt", "output_tokens": "answer", "session": "user"}
    path = write(tmp_path / "trace.csv", "\n".join(['"when;""x""",prompt,answer,user,pause', *rows]))
    trace_rows = read("csv", path, columns={**columns, "think_s": "pause"}, time_unit_s=0.001)
    assert trace_rows == [
        TraceRow(0.0, 100, 10, "ann"),
        TraceRow(0.5, 200, 20),
        TraceRow(1.5, 5, 6, "ann", 0.5),
    ]


@pytest.mark.parametrize("unit", [1, 10**3, 10**6, 10**9])
def test_a_time_since_1970_tells_its_unit(unit: int, tmp_path: Path) -> None:
    text = f"at_s,input_tokens,output_tokens\n{1764230400 * unit},2,1\n{1764230402 * unit},4,3\n"
    assert [row.at_s for row in read("csv", write(tmp_path / "trace.csv", text))] == [0, 2]
    body = {"prompt": "a", "max_tokens": 1}
    lines = [json.dumps(body | {"timestamp": at * unit}) for at in (1764230400, 1764230402)]
    assert [row.at_s for row in read("openai-jsonl", write(tmp_path / "t.jsonl", "\n".join(lines)))] == [0, 2]


def test_any_csv_finds_our_own_names_and_time_stamps(tmp_path: Path) -> None:
    text = "output_tokens,extra,at_s,input_tokens\n1,x,2024-05-10T00:00:01Z,2\n3,y,2024-05-10 00:00:01.25,4\n"
    assert read("csv", write(tmp_path / "trace.csv", text)) == [TraceRow(0.0, 2, 1), TraceRow(0.25, 4, 3)]
    lengths_only = write(tmp_path / "lengths.csv", "num_prefill_tokens,num_decode_tokens\n7,8\n")
    columns = {"input_tokens": "num_prefill_tokens", "output_tokens": "num_decode_tokens"}
    assert read("csv", lengths_only, columns=columns) == [TraceRow(None, 7, 8)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(
            st.floats(0, 1e9),
            st.integers(1, 10**8),
            st.integers(1, 10**8),
            st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=8),
            st.none() | st.floats(0, 1e9),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_csv_rows_that_were_written_are_read_back(
    rows: list[tuple[float, int, int, str, float | None]], tmp_path: Path
) -> None:
    ordered = sorted(rows, key=lambda row: row[0])
    path = tmp_path / "trace.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["at_s", "input_tokens", "output_tokens", "session", "think_s"])
        writer.writerows(ordered)
    assert read("csv", path) == [
        TraceRow(at_s - ordered[0][0], inputs, outputs, session.strip() or None, think_s)
        for at_s, inputs, outputs, session, think_s in ordered
    ]
