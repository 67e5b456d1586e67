"""The engine's own page in a whole run: the truth server answers the load, a page beside it shows made-up figures."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from bakeoff import results
from bakeoff.engines.adapters.reference import ReferenceEngine
from bakeoff.engines.metrics import Prometheus
from bakeoff.harness.conduct.progress import PlainObserver
from bakeoff.harness.conduct.run import create_run, run_experiment
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import is_against_engine
from bakeoff.results.records import Verdict
from bakeoff.results.run.cells import Trial
from tests.harness.conduct.test_run import make_experiment, truth
from tests.harness.pages import SOURCE, page_server

TOKENS = 5
"""In each answer of that experiment."""


def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Callable[[str], tuple[int, str]]) -> Trial:
    """One trial of an engine that shows its own counts on a page."""

    async def scene() -> None:
        async with truth() as url:
            made = make_experiment(tmp_path, url, repeats=1, loads=[{"concurrency": 3}])
            await run_experiment(made, create_run(made, tmp_path / "runs"), PlainObserver(Console(quiet=True), made))

    with page_server(say) as server:
        port = int(server.url.rpartition(":")[2])
        monkeypatch.setattr(ReferenceEngine, "metrics", Prometheus(SOURCE.values, SOURCE.histograms, port=port))
        asyncio.run(scene())
    (trial,) = results.load(next((tmp_path / "runs").iterdir())).finished
    return trial


def test_the_marks_stand_before_the_load_and_after_its_last_answer(tmp_path: Path, monkeypatch):
    trial = measured(tmp_path, monkeypatch, lambda _: (200, "running 3\ntokens_total 100\n"))
    readings = [record for record in trial.telemetry if record.source == "server"]
    before, after = (next(r.t_ns for r in readings if r.values.get("mark") == mark) for mark in ("before", "after"))
    counted = trial.load
    assert trial.record.started_ns < before < min(request.planned_ns for request in counted)
    assert max(request.ended_ns for request in counted) < after < trial.record.ended_ns
    assert sum("mark" not in record.values for record in readings) >= 2
    assert trial.server["server_running_peak"].value == 3.0
    assert trial.server["client_ttft_mean_s"].value == pytest.approx(0.02, abs=0.02)


def test_an_engine_that_counts_what_the_client_does_not_is_a_warning(tmp_path: Path, monkeypatch):
    tokens = itertools.count(0, 100_000)
    trial = measured(tmp_path, monkeypatch, lambda _: (200, f"tokens_total {next(tokens)}\n"))
    counted = sum(request.total_chunk_tokens for request in trial.load)
    assert counted == sum(request.requested_output_tokens or 0 for request in trial.load)
    assert not is_against_engine(trial.record.findings)
    (finding,) = [warning for warning in trial.record.warnings if warning.code is FindingCode.COUNTERS_DISAGREE]
    assert finding.parameters["client_tokens"] == counted


def test_an_engine_whose_counters_fall_was_restarted(tmp_path: Path, monkeypatch):
    tokens = itertools.chain([90_000] * 3, itertools.repeat(10))
    trial = measured(tmp_path, monkeypatch, lambda _: (200, f"tokens_total {next(tokens)}\n"))
    assert trial.record.verdict is Verdict.INVALID
    restarted = trial.record.findings[0]
    assert restarted.code is FindingCode.ENGINE_RESTARTED
    assert (restarted.parameters["before"], restarted.parameters["after"]) == (90_000, 10)


def test_a_page_that_is_not_there_costs_the_trial_nothing(tmp_path: Path, monkeypatch):
    trial = measured(tmp_path, monkeypatch, lambda _: (404, "no"))
    assert not is_against_engine(trial.record.findings)
    reason = trial.server["server_e2e_mean_s"].reason
    assert reason == "its metrics page could not be read: HTTP 404 Not Found at /metrics"
