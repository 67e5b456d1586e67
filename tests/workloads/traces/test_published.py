"""The published traces themselves, if they are beside the checkout; the other tests read the same formats."""

import statistics
from itertools import pairwise

import pytest

from bakeoff.workloads.traces.formats import detect
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.traces.servegen_tables import clients, windows
from tests.workloads.traces.samples import SHARED_DATA, read, with_shared_data

pytestmark = with_shared_data


def means(rows: list[TraceRow]) -> tuple[float, float]:
    """Mean input and output lengths in tokens."""
    return (
        statistics.fmean(row.input_tokens for row in rows if row.input_tokens is not None),
        statistics.fmean(row.output_tokens for row in rows if row.output_tokens is not None),
    )


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("azure-llm-2023/AzureLLMInferenceTrace_code.first40min.csv.gz", "azure"),
        ("burstgpt/BurstGPT_1.head3.csv", "burstgpt"),
        ("burstgpt/BurstGPT_3.head4.csv", "burstgpt"),
        ("mooncake-fast25/synthetic_trace.jsonl.gz", "mooncake"),
        ("claude-code-sessions/traces", "claude-code"),
        ("claude-code-sessions/traces/trace_0538.json", "claude-code"),
        ("claude-code-sessions/requests_flat.csv.gz", "claude-code-flat"),
        ("servegen/language/m-large", "servegen"),
        ("spec-bench/question.jsonl.gz", "questions"),
        ("arena-hard/question_v0.1.jsonl.gz", "questions"),
        ("humaneval/HumanEval.jsonl.gz", "questions"),
        ("gsm8k/test.jsonl.gz", "questions"),
    ],
)
def test_published_traces_are_known_by_their_looks(path: str, name: str) -> None:
    assert detect(str(SHARED_DATA / path)) == name


@pytest.mark.parametrize(
    ("file", "rows", "inputs", "outputs", "last_s"),
    [("code", 7491, 15_282_456, 206_626, 2392.555564), ("conv", 14176, 16_942_346, 2_856_415, 2399.96463)],
)
def test_azure(file: str, rows: int, inputs: int, outputs: int, last_s: float) -> None:
    trace = read("azure", SHARED_DATA / f"azure-llm-2023/AzureLLMInferenceTrace_{file}.first40min.csv.gz")
    assert len(trace) == rows
    assert sum(row.input_tokens or 0 for row in trace) == inputs
    assert sum(row.output_tokens or 0 for row in trace) == outputs
    assert (trace[0].at_s, trace[-1].at_s) == (0.0, last_s)


def test_mooncake_conversation() -> None:
    """Token hit rate of an endless prefix cache: 37.4 %; the clock ticks every 3 s; 12,031 rows fit their blocks."""
    path = SHARED_DATA / "mooncake-fast25/conversation_trace.jsonl.gz"
    rows, burst = read("mooncake", path), read("mooncake", path, ticks="burst")
    assert len(rows) == len(burst) == 12_031
    assert means(rows) == (pytest.approx(12035, abs=0.5), pytest.approx(343, abs=0.5))
    assert len({row.at_s for row in burst}) == 1180
    assert len({row.at_s for row in rows}) == 12_031
    assert max(abs((row.at_s or 0) - (burst_row.at_s or 0)) for row, burst_row in zip(rows, burst, strict=True)) < 3
    seen, hits = set[int](), 0
    for row in rows:
        cached = [block in seen for block in row.blocks]
        hits += min([*cached, False].index(False) * row.block_tokens, row.input_tokens or 0)
        seen.update(row.blocks)
    assert hits / sum(row.input_tokens or 0 for row in rows) == pytest.approx(0.374, abs=0.0005)


def test_mooncake_synthetic_has_a_smooth_clock() -> None:
    path = SHARED_DATA / "mooncake-fast25/synthetic_trace.jsonl.gz"
    rows = read("mooncake", path)
    assert len(rows) == 3993
    assert means(rows) == (pytest.approx(15325, abs=0.5), pytest.approx(149, abs=0.5))
    assert rows == read("mooncake", path, ticks="burst")


def test_burstgpt_excerpts() -> None:
    first = read("burstgpt", SHARED_DATA / "burstgpt/BurstGPT_1.head3.csv")
    assert [(row.at_s, row.input_tokens, row.output_tokens) for row in first] == [
        (0.0, 472, 18),
        (40.0, 1087, 230),
        (113.0, 417, 276),
    ]
    third = read("burstgpt", SHARED_DATA / "burstgpt/BurstGPT_3.head4.csv")
    assert [row.at_s for row in third] == [0.0, 51.0, 82.0, 144.0]
    assert len({row.session for row in third}) == 4
    columns = {"at_s": "arrival_s", "input_tokens": "input_length", "output_tokens": "output_length"}
    path = SHARED_DATA / "burstgpt/burstgpt3_conversation_rows601-703.csv"
    excerpt = read("csv", path, columns={**columns, "session": "session8"})
    assert (len(excerpt), len({row.session for row in excerpt})) == (103, 57)


@pytest.mark.slow
def test_both_forms_of_the_claude_code_sessions_agree() -> None:
    recorded = read("claude-code", SHARED_DATA / "claude-code-sessions/traces")
    assert len(recorded) == 1154 + 44
    whole = by_session([row for row in recorded if not row.agent])
    flat = by_session(read("claude-code-flat", SHARED_DATA / "claude-code-sessions/requests_flat.csv.gz"))
    assert (len(whole), sum(map(len, whole.values()))) == (40, 1154)
    assert (len(flat), sum(map(len, flat.values()))) == (337, 20_315)
    for name, rows in whole.items():
        assert [lengths(row) for row in rows] == [lengths(row) for row in flat[name]]
        assert [shared(*pair) for pair in pairwise(rows)] == [shared(*pair) for pair in pairwise(flat[name])]
        pauses_s = [[row.think_s or 0.0 for row in of] for of in (rows, flat[name])]
        assert statistics.median(pauses_s[0]) == pytest.approx(statistics.median(pauses_s[1]), rel=0.2, abs=0.6)
        assert all(len(row.blocks) == -(-(row.input_tokens or 0) // 64) for row in rows)


def by_session(rows: list[TraceRow]) -> dict[str | None, list[TraceRow]]:
    by_id: dict[str | None, list[TraceRow]] = {}
    for row in rows:
        by_id.setdefault(row.session, []).append(row)
    return by_id


def lengths(row: TraceRow) -> tuple[int | None, int | None]:
    return row.input_tokens, row.output_tokens


def shared(first: TraceRow, second: TraceRow) -> int:
    equal = [a == b for a, b in zip(first.blocks, second.blocks, strict=False)]
    return [*equal, False].index(False)


@pytest.mark.slow
def test_servegen_reasoning_has_the_recorded_rate() -> None:
    """Half an hour, for which the clients' rates add up to 21,603 requests."""
    folder = SHARED_DATA / "servegen/reason/deepseek-r1"
    recorded = sum(
        window.rate_per_s * 600
        for client in clients(str(folder))
        for window in windows(client)
        if window.start_s in (36_000.0, 36_600.0, 37_200.0)
    )
    rows = read("servegen", folder, start_s=36_000.0, duration_s=1800.0)
    assert len(rows) == pytest.approx(recorded, rel=0.05)
    assert all(row.input_tokens and row.output_tokens and row.session is None for row in rows)


def test_servegen_chat_has_clients_without_lengths() -> None:
    rows = read("servegen", SHARED_DATA / "servegen/language/m-large", start_s=43_200.0, duration_s=60.0)
    assert len(rows) > 2000
    assert min(row.input_tokens or 0 for row in rows) >= 1


@pytest.mark.parametrize(
    ("path", "rows", "sessions", "completions"),
    [
        ("mt-bench/question.jsonl.gz", 160, 80, 0),
        ("spec-bench/question.jsonl.gz", 400, 80, 0),
        ("arena-hard/question_v0.1.jsonl.gz", 500, 0, 0),
        ("humaneval/HumanEval.jsonl.gz", 164, 0, 164),
        ("gsm8k/test.jsonl.gz", 1319, 0, 0),
    ],
)
def test_prompt_sets(path: str, rows: int, sessions: int, completions: int) -> None:
    trace = read("questions", SHARED_DATA / path)
    assert len(trace) == rows
    assert len({row.session for row in trace} - {None}) == sessions
    assert sum(row.prompt is not None for row in trace) == completions
