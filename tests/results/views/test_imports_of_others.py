"""Result files of AIPerf and GuideLLM become runs; their lines are written by hand after those tools' schemas."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from bakeoff.harness.run_import import import_aiperf, import_guidellm
from bakeoff.results import NotImportable, Run, load
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.records import Outcome, Verdict

S = 1_000_000_000
MS = 1_000_000


def aiperf_line(number: int, **changes: Any) -> dict[str, Any]:
    """A request of 100 ms to the first token, and two more tokens 10 ms apart; two are in flight at once."""
    start = 1_760_000_000 * S + (number // 2) * 200 * MS
    metadata = {"session_num": number, "conversation_id": f"c{number}", "turn_index": 0, "request_start_ns": start,
                "credit_issued_ns": start - MS, "request_end_ns": start + 120 * MS,
                "benchmark_phase": "profiling", "worker_id": "w", "was_cancelled": False}  # fmt: skip
    metrics = {"time_to_first_token": {"value": 100.0, "unit": "ms"}, "request_latency": {"value": 120.0, "unit": "ms"},
               "inter_chunk_latency": {"value": [10.0, 10.0], "unit": "ms"},
               "output_sequence_length": {"value": 3, "unit": "tokens"},
               "input_sequence_length": {"value": 64, "unit": "tokens"}}  # fmt: skip
    return {"metadata": metadata | changes.pop("metadata", {}), "metrics": metrics, "error": None} | changes


def aiperf(folder: Path, *lines: dict[str, Any], summary: dict[str, Any] | None = None) -> Run:
    folder.mkdir(exist_ok=True)
    (folder / "profile_export.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    if summary is not None:
        (folder / "profile_export_aiperf.json").write_text(json.dumps(summary), encoding="utf-8")
    return load(import_aiperf(folder, folder / "runs").path)


def values(run: Run, *names: str) -> list[float | None]:
    return [run.finished[0].metrics[name].value for name in names]


def test_aiperfs_lines_are_measured_as_ours(tmp_path: Path) -> None:
    warm_up = aiperf_line(0, metadata={"benchmark_phase": "warmup"})
    config = {"models": ["m"], "phases": [{"name": "profiling", "type": "concurrency", "concurrency": 2}]}
    summary = {"input_config": config, "start_time": "2025-10-09T10:53:20+02:00"}
    run = aiperf(tmp_path / "a", warm_up, *(aiperf_line(i) for i in range(8)), summary=summary)
    (trial,) = run.finished
    assert trial.record.verdict is Verdict.VALID
    assert trial.record.findings[-1].code is FindingCode.IMPORTED
    assert (trial.record.load.label, len(trial.requests)) == ("c=2", 8)
    assert run.manifest.created_utc == "2025-10-09T08:53:20+00:00"
    assert values(run, "ttft_p50_s", "itl_p50_s", "tpot_p50_s", "e2e_p50_s") == pytest.approx(
        [0.101, 0.01, 0.01, 0.121]
    )
    assert trial.record.engine_description is not None
    assert trial.record.engine_description.model == "m"


def test_an_answer_of_aiperf_may_end_with_its_last_token(tmp_path: Path) -> None:
    """Seconds since 1970 as floats may put the last token up to 0.24 µs behind an end at the same nanosecond."""
    rng, lines, crossed = random.Random(1), [], 0
    for number in range(100):
        start, first, gap = (
            1_760_000_000 * S + rng.randrange(S),
            rng.randrange(50 * MS, 100 * MS),
            rng.randrange(5 * MS),
        )
        end = start + first + gap
        crossed += start / S + (first + gap) / MS / 1e3 > end / S
        line = aiperf_line(
            number, metadata={"request_start_ns": start, "request_end_ns": end, "credit_issued_ns": start}
        )
        line["metrics"]["time_to_first_token"]["value"] = first / MS
        line["metrics"]["inter_chunk_latency"]["value"] = [gap / MS]
        lines.append(line)
    assert crossed > 10
    assert len(aiperf(tmp_path / "a", *lines).finished[0].requests) == 100


def test_aiperfs_load_without_a_summary_is_what_was_in_flight(tmp_path: Path) -> None:
    assert aiperf(tmp_path / "a", *(aiperf_line(i) for i in range(8))).finished[0].record.load.concurrency == 2
    rated = {"input_config": {"loadgen": {"request_rate": 5.0, "concurrency": 9}}}
    rate = aiperf(tmp_path / "b", *(aiperf_line(i) for i in range(8)), summary=rated).finished[0].record.load
    assert (rate.rate_per_s, rate.arrival, rate.max_in_flight) == (5.0, "poisson", 9)


def test_a_first_token_at_0_s_is_no_measurement_of_aiperf(tmp_path: Path) -> None:
    zero = {"value": 0.0, "unit": "ms"}
    lines = [aiperf_line(number) for number in range(3)]
    lines[1]["metrics"]["time_to_first_token"] = zero
    lines[2]["metrics"] = {"time_to_first_token": zero, "inter_chunk_latency": {"value": [], "unit": "ms"}}
    requests = {request.session: request for request in aiperf(tmp_path / "a", *lines).finished[0].requests}
    outcomes = [requests[name].outcome for name in ("c0", "c1", "c2")]
    assert outcomes == [Outcome.OK, Outcome.STREAM_ERROR, Outcome.EMPTY]
    assert requests["c1"].error == "the file states 0 s to the first token, which is no measurement"


def test_answers_that_aiperf_did_not_stream_are_measured_at_their_end(tmp_path: Path) -> None:
    lines = [aiperf_line(number) for number in range(4)]
    for line in lines:
        del line["metrics"]["time_to_first_token"], line["metrics"]["inter_chunk_latency"]
    run = aiperf(tmp_path / "a", *lines)
    assert {request.outcome for request in run.finished[0].requests} == {Outcome.OK}
    assert values(run, "ttft_p50_s", "tpot_p50_s") == [None, None]
    assert values(run, "e2e_p50_s") == pytest.approx([0.121])


def test_aiperfs_failures_and_answers_without_gaps(tmp_path: Path) -> None:
    refused = aiperf_line(1, metrics={}, error={"code": 503, "type": "Busy", "message": "full"})
    cut = aiperf_line(2, metadata={"was_cancelled": True})
    empty = aiperf_line(3, metrics={"request_latency": {"value": 5.0, "unit": "ms"}})
    coarse = aiperf_line(4)
    del coarse["metrics"]["inter_chunk_latency"]
    run = aiperf(tmp_path / "a", refused, cut, empty, coarse)
    requests = run.finished[0].requests
    by_session = {request.session: request for request in requests}
    outcomes = [by_session[name].outcome for name in ("c1", "c2", "c3", "c4")]
    assert outcomes == [Outcome.HTTP_ERROR, Outcome.CANCELLED, Outcome.EMPTY, Outcome.OK]
    assert (by_session["c1"].status, by_session["c1"].error) == (503, "Busy: full")
    assert by_session["c4"].chunk_tokens == [1, 2]
    (note,) = run.manifest.notes
    assert note.endswith("; 1 of 4 requests were cancelled by the tool: neither answered nor failed")


def guidellm_stats(number: int, **timings: Any) -> dict[str, Any]:
    start = 1_760_000_000.0 + 0.2 * number
    times = {"targeted_start": start, "request_start": start, "first_token_iteration": start + 0.1,
             "last_token_iteration": start + 0.12, "request_end": start + 0.13}  # fmt: skip
    return {
        "request_id": str(number), "output": "a b c",
        "info": {"conversation_id": f"c{number}", "turn_index": 0, "timings": times | timings, "error": None},
        "input_metrics": {"text_tokens": 64, "total_tokens": 64}, "output_metrics": {"total_tokens": 3},
    }  # fmt: skip


def guidellm(folder: Path, *benchmarks: dict[str, Any]) -> Run:
    file = folder / "benchmarks.json"
    file.write_text(json.dumps({"metadata": {}, "benchmarks": list(benchmarks)}), encoding="utf-8")
    return load(import_guidellm(file, folder / "runs").path)


def benchmark(strategy: dict[str, Any], **groups: Any) -> dict[str, Any]:
    config = {"strategy": strategy, "backend": {"kind": "openai_http", "model": "m"}}
    requests = {"successful": [guidellm_stats(i) for i in range(8)], "errored": [], "incomplete": [], "total": None}
    return {"config": config, "requests": requests | groups, "start_time": 1_760_000_000.0}


def test_guidellms_benchmarks_are_trials(tmp_path: Path) -> None:
    run = guidellm(
        tmp_path, benchmark({"type_": "synchronous"}), benchmark({"type_": "constant", "rate": 5.0}),
        benchmark({"type_": "concurrent", "streams": 4}),
    )  # fmt: skip
    assert [trial.record.load.label for trial in run.finished] == ["c=1", "constant 5/s", "c=4"]
    assert values(run, "ttft_p50_s", "tpot_p50_s", "e2e_p50_s") == pytest.approx([0.1, 0.01, 0.12])
    assert run.manifest.created_utc == "2025-10-09T08:53:20+00:00"
    assert not any(found.code is FindingCode.ENGINE_FROZE for trial in run.finished for found in trial.record.findings)


def test_guidellms_benchmarks_of_several_servers_are_several_engines(tmp_path: Path) -> None:
    urls = ("http://a:1", "http://b:1", "http://a:1")
    made = [benchmark({"type_": "concurrent", "streams": 4}) for _ in urls]
    for one, url in zip(made, urls, strict=True):
        one["config"]["backend"]["target"] = url
    run = guidellm(tmp_path, *made)
    assert [(trial.record.engine, trial.record.repeat) for trial in run.finished] == [
        ("http://a:1", 1), ("http://b:1", 1), ("http://a:1", 2)
    ]  # fmt: skip
    assert {trial.record.engine for trial in guidellm(tmp_path, made[0], made[2]).finished} == {"guidellm"}


def test_reports_of_guidellms_first_versions_are_read(tmp_path: Path) -> None:
    def first(number: int) -> dict[str, Any]:
        start = 1_760_000_000.0 + 0.2 * number
        times = {"start_time": start, "end_time": start + 0.13, "first_token_time": start + 0.1}
        return times | {"last_token_time": start + 0.12, "output": "a b c", "prompt_tokens": 64, "output_tokens": 3}

    groups = {"successful": [first(number) for number in range(8)], "errored": [], "incomplete": []}
    run = guidellm(tmp_path, {"args": {"strategy": {"type_": "concurrent", "streams": 4}}, "requests": groups})
    assert run.finished[0].record.load.label == "c=4"
    assert values(run, "ttft_p50_s", "tpot_p50_s", "e2e_p50_s") == pytest.approx([0.1, 0.01, 0.12])


def test_guidellms_failures_and_requests_that_were_never_sent(tmp_path: Path) -> None:
    errored = [guidellm_stats(1, first_token_iteration=None, last_token_iteration=None)]
    unsent = [guidellm_stats(2, request_start=None), guidellm_stats(3)]
    run = guidellm(tmp_path, benchmark({"type_": "synchronous"}, errored=errored, incomplete=unsent))
    outcomes = [request.outcome for request in run.finished[0].requests]
    assert outcomes.count(Outcome.STREAM_ERROR) == outcomes.count(Outcome.CANCELLED) == 1
    assert len(outcomes) == 10


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"request_end_ns": 5}, "impossible times"), ({"credit_issued_ns": 2 * 1_760_000_000 * S}, "impossible times"),
        ({"was_cancelled": True}, "every request was cancelled"),
    ],
)  # fmt: skip
def test_what_no_tool_measures_is_refused_and_leaves_no_run(
    metadata: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(NotImportable, match=named):
        aiperf(tmp_path / "a", aiperf_line(0, metadata=metadata))
    assert not list((tmp_path / "a").glob("runs/*"))


@pytest.mark.parametrize(("value", "unit"), [(0.1, "s"), (0.1, "seconds"), (1e5, "us"), (1e8, "nanoseconds")])
def test_units_of_times_are_read(tmp_path: Path, value: float, unit: str) -> None:
    line = aiperf_line(0)
    line["metrics"]["time_to_first_token"] = {"value": value, "unit": unit}
    (request,) = aiperf(tmp_path / "a", line).finished[0].requests
    assert request.chunk_ns[0] - (request.sent_ns or 0) == 100 * MS


@pytest.mark.parametrize(
    "odd", [{"info": "x"}, {"info": {"timings": []}}, {"output_metrics": [1]}, {"info": {"turn_index": "two"}}]
)
def test_odd_fields_of_guidellm_are_one_line(odd: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(NotImportable):
        guidellm(tmp_path, benchmark({"type_": "synchronous"}, successful=[guidellm_stats(0) | odd]))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"benchmarks": []}', '{"benchmarks": [{"requests": {}}]}'])
def test_what_is_no_result_is_one_line(content: str, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_text(content, encoding="utf-8")
    for read in (import_aiperf, import_guidellm):
        with pytest.raises(NotImportable) as raised:
            read(file, tmp_path / "runs")
        assert "\n" not in str(raised.value)
