"""Result files of vllm bench serve become runs that can be shown, judged and compared."""

import codecs
import gzip
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bakeoff.harness.run_import import NOTE, import_vllm
from bakeoff.results import NotImportable, Run, load
from bakeoff.results.compare.comparison import compare_sides
from bakeoff.results.compare.sides import select
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import warning
from bakeoff.results.records import Outcome, RequestRecord, RunStatus, TokenSource, Verdict
from bakeoff.results.views import VIEWS, Log

SUMMARY = {
    "date": "20261120-101500", "endpoint_type": "openai", "backend": "openai", "label": None, "model_id": "m",
    "tokenizer_id": "m", "num_prompts": 8, "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 2,
    "duration": 4.4, "completed": 8, "failed": 0, "mean_ttft_ms": 100.0,
}  # fmt: skip


def result(requests: int = 8, gaps: int = 4, **changes: Any) -> dict[str, Any]:
    """Two slots; each answer takes 100 ms to its first token and 200 ms for each further one."""
    starts = [100.0 + 0.9 * (i // 2) for i in range(requests)]
    details = {
        "start_times": starts,
        "queue_times": [start - 100.0 for start in starts],
        "ttfts": [0.1] * requests,
        "itls": [[0.2] * gaps for _ in range(requests)],
        "latencies": [0.1 + 0.2 * gaps] * requests,
        "input_lens": [64] * requests,
        "output_lens": [gaps + 1] * requests,
        "generated_texts": ["a b c"] * requests,
        "errors": [""] * requests,
    }
    return {**SUMMARY, **details, **changes}


def write(path: Path, *results: dict[str, Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\n".join(map(msgspec.json.encode, results)))
    return path


def imported(folder: Path, *results: dict[str, Any]) -> Run:
    return load(import_vllm(write(folder / "r.json", *results), folder / "runs").path)


def requests_of(folder: Path, **changes: Any) -> list[RequestRecord]:
    return imported(folder, result(**changes)).finished[0].requests


def test_answers_without_a_token_and_an_error_are_empty(tmp_path: Path) -> None:
    """The tool writes a first-token time of 0 for them, which is no measurement."""
    empty = {"ttfts": [0.1, 0.0] * 4, "itls": [[0.2] * 4, []] * 4, "output_lens": [5, 0] * 4}
    requests = requests_of(tmp_path, **empty)
    assert [request.outcome for request in requests[:2]] == [Outcome.OK, Outcome.EMPTY]
    assert requests[1].chunk_ns == []


@pytest.fixture(name="kolkata")
def fixture_kolkata(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine's time zone is five and a half hours ahead of UTC."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("kolkata")
def test_the_same_file_has_the_same_date_in_every_zone(tmp_path: Path) -> None:
    """Lists sort runs by it, among runs of other machines."""
    manifest = imported(tmp_path, result()).manifest
    assert manifest.created_utc == manifest.ended_utc == "2026-11-20T10:15:00+00:00"


def test_without_a_date_it_is_the_time_of_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "r.json", result(date="yesterday"))
    os.utime(file, (1_800_000_000, 1_800_000_000))
    assert load(import_vllm(file, tmp_path / "runs").path).manifest.created_utc == "2027-01-15T08:00:00+00:00"


def test_a_detailed_file_becomes_a_valid_run(tmp_path: Path) -> None:
    run = imported(tmp_path, result())
    (trial,) = run.finished
    assert (run.status, trial.record.verdict) == (RunStatus.COMPLETE, Verdict.VALID)
    assert (trial.record.load.label, trial.record.engine) == ("c=2", "openai")
    assert trial.metrics["ttft_p50_s"].value == pytest.approx(0.1)
    assert trial.metrics["itl_p50_s"].value == pytest.approx(0.2)
    assert trial.requests[0].token_source is TokenSource.CHUNKS
    assert trial.record.warnings == [
        warning(FindingCode.DRAIN_IN_RATES, drain_s=0.900000001, window_s=3.600000001),
        warning(FindingCode.IMPORTED, tool="vllm bench serve"),
    ]
    assert run.manifest.notes == [NOTE]


def test_its_own_view_says_what_the_file_says(tmp_path: Path) -> None:
    (trial,) = imported(tmp_path, result()).finished
    view = VIEWS["vllm"].view(Log.of(trial))
    assert view.figures["Mean TTFT (ms)"].value.value == pytest.approx(100)
    assert view.figures["P99 E2EL (ms)"].value.value == pytest.approx(900)
    assert view.cannot == ()


def test_without_details_one_line_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotImportable, match="measure again with --save-detailed") as raised:
        import_vllm(write(tmp_path / "r.json", SUMMARY), tmp_path / "runs")
    assert "\n" not in str(raised.value)
    assert "start_times, ttfts, itls" in str(raised.value)
    assert not (tmp_path / "runs").exists(), "nothing was made"


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"nonsense", b'{"duration": "long"}', b"\xff"])
def test_another_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "r.json").write_bytes(data)
    with pytest.raises(NotImportable, match=r"r\.json"):
        import_vllm(tmp_path / "r.json", tmp_path / "runs")


def test_lists_of_different_lengths_are_damage(tmp_path: Path) -> None:
    with pytest.raises(NotImportable, match="differ in length"):
        import_vllm(write(tmp_path / "r.json", result(ttfts=[0.1])), tmp_path / "runs")


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(NotImportable, match="cannot be read"):
        import_vllm(tmp_path / "no.json", tmp_path / "runs")


def test_several_results_of_one_load_are_repeats(tmp_path: Path) -> None:
    run = imported(tmp_path, result(), result(), result(max_concurrency=4))
    assert [(t.record.load.label, t.record.repeat) for t in run.finished] == [("c=2", 1), ("c=2", 2), ("c=4", 1)]
    assert run.cells[0].intervals["ttft_p50_s"].n == 2


def test_a_file_that_was_laid_out_by_hand_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(msgspec.json.format(msgspec.json.encode(result())))
    assert len(load(import_vllm(tmp_path / "r.json", tmp_path / "runs").path).finished[0].requests) == 8


def test_chunks_that_bakeoff_has_exported_keep_their_tokens(tmp_path: Path) -> None:
    """The file's own lists spread 9 tokens over five chunks by the gaps before them, and give the first one a token."""
    counts = [[3, 1, 1, 1, 3]] * 8
    (plain,) = {tuple(record.chunk_tokens) for record in requests_of(tmp_path / "a", output_lens=[9] * 8)}
    (kept,) = {
        tuple(record.chunk_tokens)
        for record in requests_of(tmp_path / "b", output_lens=[9] * 8, bakeoff_chunk_tokens=counts)
    }
    assert (plain, kept) == ((1, 2, 2, 2, 2), (3, 1, 1, 1, 3))
    (other,) = {
        tuple(record.chunk_tokens)
        for record in requests_of(tmp_path / "c", output_lens=[8] * 8, bakeoff_chunk_tokens=counts)
    }
    assert sum(other) == 8, "counts of another number of tokens are not taken"


def test_two_measurements_of_a_closed_loop_are_the_same_traffic_whatever_their_number(tmp_path: Path) -> None:
    lengths = list(range(60, 110))
    few, many, other = (
        imported(tmp_path / str(i), result(len(given), input_lens=given))
        for i, given in enumerate((lengths[:40], lengths, lengths[::-1]))
    )
    assert few.finished[0].record.workload_sha256 == many.finished[0].record.workload_sha256
    assert many.finished[0].record.workload_sha256 != other.finished[0].record.workload_sha256


@pytest.mark.parametrize(
    ("backend", "spare", "kept", "empty"),
    [
        ("openai", 0, (0, 5), []),
        ("openai", 1, (0, 4), [4]),  # a finish chunk
        ("openai-chat", 1, (1, 5), [0]),  # a role chunk
        ("openai-chat", 2, (1, 4), [0, 4]),
        ("openai", 2, (1, 4), [0, 4]),
    ],
)
def test_chunks_without_tokens_are_told_apart(
    tmp_path: Path, backend: str, spare: int, kept: tuple[int, int], empty: list[int]
) -> None:
    record = requests_of(tmp_path, backend=backend, output_lens=[5 - spare] * 8)[0]
    arrivals = [round((100.1 + 0.2 * i) * 1e9) for i in range(5)]
    assert record.chunk_ns == arrivals[slice(*kept)]
    assert record.empty_chunk_ns == [arrivals[i] for i in empty]
    assert record.chunk_tokens == [1] * (5 - spare)


def test_tokens_in_groups_are_spread_over_the_chunks(tmp_path: Path) -> None:
    record = requests_of(tmp_path, output_lens=[17] * 8, generated_texts=["a b c d e"] * 8)[0]
    assert (sum(record.chunk_tokens), record.token_source) == (17, TokenSource.APPORTIONED)


def test_more_chunks_than_tokens_and_two_is_a_guess_that_is_said(tmp_path: Path) -> None:
    run = imported(tmp_path, result(output_lens=[1] * 8))
    assert run.finished[0].requests[0].token_source is TokenSource.ASSUMED
    (assumed,) = [finding for finding in run.finished[0].record.warnings if finding.code is FindingCode.TOKENS_ASSUMED]
    assert assumed.parameters["assumed_requests"] == 8


def test_an_open_loop_counts_from_the_planned_arrival(tmp_path: Path) -> None:
    """vLLM's own TTFT omits the time in the client's queue."""
    run = imported(tmp_path, result(request_rate=4.0, queue_times=[0.05] * 8))
    (trial,) = run.finished
    assert trial.record.load.label == "poisson 4/s ≤2"
    assert trial.metrics["ttft_p50_s"].value == pytest.approx(0.15)
    assert trial.metrics["send_lag_p50_s"].value == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        ("Bad Request", Outcome.HTTP_ERROR),
        ("Traceback (most recent call last):\n  File\naiohttp.ClientPayloadError: broken", Outcome.STREAM_ERROR),
        ("Traceback (most recent call last):\nClientConnectorError: Cannot connect to host", Outcome.REFUSED),
        ("Traceback (most recent call last):\nasyncio.exceptions.TimeoutError", Outcome.TIMEOUT),
        ("Never received a valid chunk to calculate TTFT.This response will be marked as failed!", Outcome.EMPTY),
    ],
)
def test_failures_keep_their_kind_and_their_last_line(tmp_path: Path, error: str, outcome: Outcome) -> None:
    run = imported(tmp_path, result(errors=[error] + [""] * 7, output_lens=[0] + [5] * 7))
    record = run.finished[0].requests[0]
    assert (record.outcome, record.error, record.chunk_ns) == (outcome, error.splitlines()[-1], [])
    assert run.finished[0].record.verdict is Verdict.INVALID, "one of eight is too many"


def test_two_imports_are_compared_and_the_noise_that_would_undo_it_is_named(tmp_path: Path) -> None:
    sides = []
    for name, ttft in (("a", 0.1), ("b", 0.2)):
        (tmp_path / name).mkdir()
        runs = [result(label=name, ttfts=[ttft + 0.001 * i] * 8) for i in range(3)]
        sides.append(select(str(imported(tmp_path / name, *runs).path)))
    comparison = {comparison.metric: comparison for comparison in compare_sides(*sides).comparisons}["ttft_p50_s"]
    assert comparison.ratio is not None
    assert comparison.ratio.centre == pytest.approx(2, rel=0.02)
    assert comparison.judgement.value == "worse"
    assert comparison.evidence is not None
    assert comparison.evidence.withstands == pytest.approx(math.log(2) / (2.576 * math.sqrt(2)), rel=0.02)


def test_other_prompts_are_other_traffic(tmp_path: Path) -> None:
    a = imported(tmp_path, result()).finished[0].record.workload_sha256
    assert imported(tmp_path, result(input_lens=[65] * 8)).finished[0].record.workload_sha256 != a


def test_tokens_that_the_text_cannot_have_are_not_placed(tmp_path: Path) -> None:
    run = imported(tmp_path, result(output_lens=[500] * len(result()["output_lens"])))
    assert {source for trial in run.finished for source in trial.requests.values("token_source")} == {
        TokenSource.UNPLACED
    }


@pytest.mark.parametrize("encode", [gzip.compress, lambda data: codecs.BOM_UTF8 + data])
def test_compressed_files_marks_nulls_and_whole_floats_are_read(
    encode: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    columns = result()
    count = len(columns["errors"])
    columns |= {"errors": [None] * count, "output_lens": [float(length) for length in columns["output_lens"]]}
    (tmp_path / "r.json").write_bytes(encode(json.dumps(columns).encode()))
    (trial,) = load(import_vllm(tmp_path / "r.json", tmp_path / "runs").path).finished
    assert trial.record.verdict is Verdict.VALID


def test_a_document_with_an_infinite_rate_or_several_results_is_read(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps([result(request_rate=math.inf)] * 2))
    run = load(import_vllm(tmp_path / "r.json", tmp_path / "runs").path)
    assert [trial.record.load.concurrency is not None for trial in run.finished] == [True, True]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"ttfts": 1e30}, "times of more than 30 days"),
        ({"start_times": 1e30}, "times of more than 30 days"),
        ({"queue_times": [-1e12, 0.0]}, "times of more than 30 days"),
        ({"output_lens": 10**12}, "impossible numbers of tokens"),
        ({"input_lens": -1}, "impossible numbers of tokens"),
        ({"generated_texts": ["a"] * 99}, "generated_texts has 99 entries"),
        ({"queue_times": [0.0] * 99}, "queue_times has 99 entries"),
    ],
)
def test_impossible_columns_are_one_line(change: dict[str, Any], problem: str, tmp_path: Path) -> None:
    columns = result()
    for name, value in change.items():
        columns[name] = value if isinstance(value, list) else [value, *columns[name][1:]]
    if "queue_times" in change and len(columns["queue_times"]) == 2:
        columns["queue_times"] = [-1e12, *[0.0] * (len(columns["ttfts"]) - 1)]
    with pytest.raises(NotImportable, match=problem):
        import_vllm(write(tmp_path / "r.json", columns), tmp_path / "runs")
