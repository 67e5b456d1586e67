"""The analysis API: frames agree with records, and cells with trials."""

import json
from pathlib import Path

import pytest

from bakeoff import results
from bakeoff.results.export.benchmark_json import benchmark_json
from bakeoff.results.index import facts_of
from bakeoff.results.log.store import RunFolder
from bakeoff.results.metrics import CATALOGUE, Value, absent
from bakeoff.results.run.cells import why_absent
from tests.results.amending import amend_trial
from tests.results.builders import FAST, LOADS, Sheet, build_run


def test_frames_have_a_row_for_each_record(demo: results.Run) -> None:
    assert len(demo.trials) == 24
    assert len(demo.all_requests) == 24 * 26
    assert len(demo.chunks) == sum(len(r.chunk_ns) for t in demo.finished for r in t.requests)
    assert set(CATALOGUE) <= set(demo.trials.columns)
    assert {"rss_bytes", "cpu_s", "source"} <= set(demo.telemetry.columns)


def test_medians_of_the_frame_are_the_metrics(demo: results.Run) -> None:
    trial = demo.finished[0]
    frame = demo.all_requests.query("trial == @trial.record.id and phase == 'measured' and outcome == 'ok'")
    assert frame.ttft_s.median() == pytest.approx(trial.metrics["ttft_p50_s"].value)
    assert frame.tpot_s.median() == pytest.approx(trial.metrics["tpot_p50_s"].value)


def test_requests_are_those_that_the_report_counts(tmp_path: Path) -> None:
    """README's example: its medians are those of the table, where failed requests count as later than all others."""
    run = results.load(build_run(tmp_path, Sheet(repeats=1, invalid=(1,))))
    frame = run.requests
    frame.loc[frame.outcome != "ok", "ttft_s"] = float("inf")
    medians = frame.groupby(["engine", "load"]).ttft_s.median()
    shown = {(cell.engine, cell.load): cell.intervals["ttft_p50_s"].centre for cell in run.cells if cell.valid}
    assert {key: pytest.approx(value) for key, value in medians.items()} == shown
    assert len(run.requests) < len(run.all_requests)
    text, page = repr(run), run._repr_html_()
    assert text.startswith(f"demo: COMPLETE, {run.valid} of {run.planned} trials valid")
    for (engine, _), value in shown.items():
        assert engine in text
        assert f"{value:.6f}"[:6] in text
    assert "(" in text, "figures of the INVALID trial"
    assert page.count("<tr>") >= len(run.cells)
    nothing = results.load(
        build_run(tmp_path / "b", Sheet(repeats=1, engines={"a": FAST}, loads=LOADS[:1], invalid=(0,)))
    )
    assert list(nothing.requests.columns) == list(nothing.all_requests.columns)


def test_chunks_count_tokens(demo: results.Run) -> None:
    tokens = demo.chunks.groupby(["trial", "request"]).tokens.sum()
    request = demo.finished[0].requests[3]
    assert tokens[demo.finished[0].record.id, request.index] == request.total_chunk_tokens


def test_cells_rest_on_valid_trials_only(demo: results.Run) -> None:
    cells = {(cell.engine, cell.load): cell for cell in demo.cells}
    assert len(cells) == 8
    broken = cells["transformers", "c=1"]
    assert (broken.valid, broken.planned) == (2, 3)
    assert broken.intervals["ttft_p50_s"].n == 2
    assert broken.failures == (6, 72), "failures of INVALID trials are shown too"
    assert cells["reference", "c=1"].valid == 3


def test_a_cell_counts_failures_over_the_windows_as_the_metric_does(demo: results.Run) -> None:
    for cell in demo.cells:
        metrics = [trial.metrics["failures"].value or 0 for trial in demo.trials_of(cell)]
        assert cell.failures[0] == sum(metrics)
        assert cell.failures[1] == sum(len(trial.inside) for trial in demo.trials_of(cell))


def test_an_absent_metric_has_its_reason(demo: results.Run) -> None:
    cell = next(cell for cell in demo.cells if cell.engine == "transformers")
    assert "prompt_tokens_per_s" not in cell.intervals
    assert cell.reasons["prompt_tokens_per_s"] == "the engine did not report its prompt tokens"
    assert cell.reasons["ttft_p99_s"] == "p99 needs 662 observations, there are 24"
    assert cell.reasons["energy_per_output_token_j"] == "no GPU was sampled"
    assert cell.intervals.keys() | cell.reasons.keys() == set(CATALOGUE)


def test_a_percentile_that_one_repeat_lacks_is_absent_in_the_cell() -> None:
    """The repeats with enough requests for a p99 are the fastest: an interval over them alone would be too good."""
    few = absent("p99 needs 662 observations, there are 655")
    assert why_absent([Value(0.26), Value(0.27), few]) == f"absent in 1 of 3 valid trials: {few.reason}"
    assert why_absent([few, few]) == few.reason
    assert why_absent([]) == "no valid trial"
    assert why_absent([Value(0.26), Value(0.27)]) is None


def test_where_one_repeat_lacks_a_metric_nobody_shows_the_others(tmp_path: Path) -> None:
    """Three requests have a median and two have none: then neither the cell nor the index nor an export shows one."""
    sheet = Sheet(engines={"only": FAST}, loads=LOADS[:1], repeats=3, requests=3, invalid=())
    path = build_run(tmp_path, sheet)
    slow = RunFolder(path).trial("r2-e0-1")
    slow.write_requests(slow.read_requests()[:-1])
    amend_trial(path, "r2-e0-1", planned_requests=2)
    run = results.load(path)
    assert run.cells[0].reasons["ttft_p50_s"].startswith("absent in 1 of 3 valid trials: p50 needs 3 observations")
    (facts,) = facts_of(path).cells
    assert "ttft_p50_s" not in facts.metrics
    assert "itl_p50_s" in facts.metrics
    exported = {benchmark["params"]["metric"] for benchmark in json.loads(benchmark_json({"t": run}))["benchmarks"]}
    assert "itl_p50_s" in exported
    assert "ttft_p50_s" not in exported


def test_summary_frame_holds_every_interval(demo: results.Run) -> None:
    assert len(demo.summary) == sum(len(cell.intervals) for cell in demo.cells)
    row = demo.summary.query("engine == 'reference' and load == 'c=8' and metric == 'output_tokens_per_s'").iloc[0]
    assert row.low < row.centre < row.high


def test_a_run_in_which_no_trial_was_valid(tmp_path: Path) -> None:
    sheet = Sheet(engines={"only": FAST}, loads=LOADS[:1], repeats=2, requests=4, invalid=(0, 1))
    cell = results.load(build_run(tmp_path, sheet)).cells[0]
    assert cell.intervals == {}
    assert set(cell.reasons.values()) == {"no valid trial"}


def test_one_trial_has_no_interval(one_trial: results.Run) -> None:
    interval = one_trial.cells[0].intervals["ttft_p50_s"]
    assert interval.low is None
    assert interval.reason == "one trial has no interval; three or more give one"


def test_a_run_that_never_started_a_trial(tmp_path: Path) -> None:
    run = results.load(build_run(tmp_path, Sheet(finished=0)))
    assert run.finished == []
    assert len(run.trials) == len(run.requests) == len(run.all_requests) == len(run.chunks) == len(run.telemetry) == 0
