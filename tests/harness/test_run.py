"""Whole runs against the truth server, which stands in for an engine that runs already."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import results
from engines import pick_port
from engines.errors import EngineError
from harness.experiment import Experiment, experiment_from
from harness.observer import Estimate, PlainObserver
from harness.run import create_run, recover, run_experiment
from harness.truth import Schedule, truth_process
from results.errors import NotWritable
from results.records import Outcome, Phase, RunStatus, Verdict
from results.store import RunFolder
from tests.workloads.small_tokenizers import checkpoint


def experiment(tmp_path: Path, url: str, **changes: Any) -> Experiment:
    data: dict[str, Any] = {
        "name": "t",
        "repeats": 2,
        "model": {"name": "truth", "tokenizer": str(checkpoint(tmp_path / "tok"))},
        "engines": [{"adapter": "reference", "url": url}],
        "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 5}},
        "loads": [{"concurrency": 3}, {"rate_per_s": 20.0, "arrival": "poisson"}],
        "trial": {"duration_s": 1.2, "warmup_requests": 1},
        "client": {"calibrate": False},
    }
    return experiment_from({**data, **changes}, "t")


@asynccontextmanager
async def truth() -> AsyncGenerator[str]:
    port = pick_port()
    async with truth_process(Schedule(0.02, 0.005), port):
        yield f"http://127.0.0.1:{port}"


def run(tmp_path: Path, during: Callable[[asyncio.Task[None]], Any] | None = None, **changes: Any) -> results.Run:
    """Run an experiment to its end, or strike it with ``during``."""

    async def scene() -> None:
        async with truth() as url:
            made = experiment(tmp_path, url, **changes)
            observer = PlainObserver(Console(quiet=True), made)
            task = asyncio.create_task(run_experiment(made, create_run(made, tmp_path / "runs"), observer))
            if during:
                await during(task)
            await asyncio.gather(task, return_exceptions=during is not None)

    asyncio.run(scene())
    return results.load(next((tmp_path / "runs").iterdir()))


def test_a_run_holds_every_trial_with_all_its_requests(tmp_path: Path):
    found = run(tmp_path)
    assert found.status is RunStatus.COMPLETE
    assert [trial.record.verdict for trial in found.finished] == [Verdict.VALID] * 4
    assert [trial.record.order for trial in found.finished] == [1, 2, 3, 4]
    for trial in found.finished:
        phases = [request.phase for request in trial.requests]
        assert phases.count(Phase.WARMUP) == 1
        assert phases.count(Phase.MEASURED) == trial.record.planned_requests
        assert {request.outcome for request in trial.requests} == {Outcome.OK}
        assert trial.metrics["itl_p50_s"].value == pytest.approx(0.005, abs=0.003)
        assert trial.metrics["ttft_p50_s"].value == pytest.approx(0.02, abs=0.02)
        assert {"host", "client", "sampler", "client_loop"} <= {sample.source for sample in trial.telemetry}
    assert all(cell.intervals["output_tokens_per_s"].n == 2 for cell in found.cells)
    assert found.manifest.environment["cores"] >= 1


def test_the_clients_error_is_found_once_for_each_level_and_stored(tmp_path: Path):
    found = run(tmp_path, client={"max_error_share": 1000.0})  # whatever else this machine is doing
    errors = [trial.record.client_error for trial in found.finished]
    assert not any("client error" in reason for trial in found.finished for reason in trial.record.reasons)
    assert errors[:2] == errors[2:]
    assert errors[0] != errors[1]
    for cell, error in zip(found.cells, errors, strict=False):
        assert error is not None
        assert cell.client_error == error
        assert error.itl_s is not None
        assert 0 < error.itl_s < 1
        assert 0 < error.ttft_s < 1
        assert error.requests >= 5
    assert all(len(trial.record.clients) == 1 for trial in found.finished)


def test_a_client_that_errs_too_much_is_measured_thrice_and_voids_its_trials(tmp_path: Path):
    found = run(tmp_path, loads=[{"rate_per_s": 20.0, "arrival": "constant"}], client={"max_error_share": 1e-6})
    for trial in found.finished:
        assert trial.record.verdict is Verdict.INVALID
        blamed = {reason.split(" is known")[0] for reason in trial.record.reasons}
        assert {"client error: TTFT", "client error: the gap between chunks"} <= blamed
        assert trial.record.client_error is not None
        assert trial.record.client_error.requests > 2 * 20


def test_why_the_error_is_not_known_is_stored(tmp_path: Path):
    found = run(tmp_path, repeats=1)
    assert [trial.record.uncalibrated for trial in found.finished] == ["client.calibrate is off"] * 2
    assert {cell.uncalibrated for cell in found.cells} == {"client.calibrate is off"}


def test_repeats_send_the_same_shape_in_other_words_and_levels_another(tmp_path: Path):
    first, second, *again = [trial.record for trial in run(tmp_path).finished]
    assert [record.workload_sha256 for record in again] == [first.workload_sha256, second.workload_sha256]
    assert first.workload_sha256 != second.workload_sha256
    sent = [record.traffic for record in (first, second, *again)]
    assert all(traffic and traffic.off_length == 0 and traffic.requests > 0 for traffic in sent)
    assert len({traffic.sha256 for traffic in sent if traffic}) == 4
    assert [traffic.prompt_tokens for traffic in sent[:2] if traffic] == [t.prompt_tokens for t in sent[2:] if t]


def test_an_interrupt_keeps_what_was_measured(tmp_path: Path):
    async def strike(task: asyncio.Task[None]) -> None:
        pattern = "runs/*/trials/r1-reference-2/streams-0.frames"
        while not any(path.stat().st_size for path in tmp_path.glob(pattern)):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0)
        task.cancel()

    found = run(tmp_path, strike)
    assert found.status is RunStatus.INTERRUPTED
    assert len(found.finished) == 1
    ((plan, requests),) = found.salvaged
    assert plan.id == "r1-reference-2"
    assert requests
    assert found.requests[found.requests.trial == plan.id].verdict.isna().all()


def test_streams_of_a_crash_are_decoded_once(tmp_path: Path):
    found = run(tmp_path)
    folder = RunFolder.open(found.path)
    trial = folder.trial("r2-reference-1")
    whole = trial.read_requests()
    (trial.path / "trial.json").unlink()
    (trial.path / "requests.jsonl").unlink()
    assert recover(folder) == 1
    assert recover(folder) == 0
    assert trial.read_requests() == whole
    again = results.load(found.path)
    assert [plan.id for plan in again.unfinished] == ["r2-reference-1"]
    assert len(again.salvaged[0][1]) == len(whole)


@pytest.mark.parametrize("schema", [1, 2])
def test_streams_that_an_older_version_left_undecoded_are_read(tmp_path: Path, schema: int):
    """Its experiment stands in the manifest in the words of that time: the address among the adapter's options."""
    golden = Path(results.__file__).parents[1] / "tests" / "results" / "golden" / f"schema-{schema}"
    folder = RunFolder.open(shutil.copytree(golden, tmp_path / "run"))
    trial = folder.trial("r2-reference-1")
    whole = trial.read_requests()
    (trial.path / "trial.json").unlink()
    (trial.path / "requests.jsonl").unlink()
    assert recover(folder) == 1
    for found, stored in zip(trial.read_requests(), whole, strict=True):
        for name in ("index", "phase", "planned_ns", "sent_ns", "chunk_ns", "chunk_tokens", "outcome", "text"):
            assert getattr(found, name) == getattr(stored, name)


def test_a_folder_that_cannot_be_made_fails_before_anything_starts(tmp_path: Path):
    (tmp_path / "runs").write_text("in the way", encoding="utf-8")
    made = experiment(tmp_path, "http://127.0.0.1:9")
    with pytest.raises(NotWritable, match="choose"):
        create_run(made, tmp_path / "runs")


def test_an_address_where_nothing_listens_gives_invalid_trials(tmp_path: Path):
    url = f"http://127.0.0.1:{pick_port()}"
    changes = {"engines": [{"adapter": "openai", "url": url}], "loads": [{"concurrency": 1}]}
    found = run(tmp_path, **changes, repeats=1, trial={"duration_s": 0.3, "max_requests": 3})
    (trial,) = found.finished
    assert trial.record.verdict is Verdict.INVALID
    assert "3 of 3 requests failed (3 refused)" in trial.record.reasons[0]


def test_an_engine_that_does_not_start_fails_the_run_with_its_last_words(tmp_path: Path):
    folder = checkpoint(tmp_path / "tok")
    (folder / "config.json").write_text("{}", encoding="utf-8")
    found = run(tmp_path, engines=[{"adapter": "reference"}], model={"path": str(folder)}, repeats=2)
    assert found.status is RunStatus.FAILED
    assert found.manifest.failure is not None
    assert found.manifest.failure.startswith("reference, repeat 1: it did not start")
    assert not found.finished  # and repeat 2 was not tried again


def test_a_wrong_model_fails_with_one_line(tmp_path: Path):
    made = experiment(tmp_path, "", engines=[{"adapter": "reference"}], model={"path": str(tmp_path / "none")})
    with pytest.raises(EngineError, match="does not exist"):
        asyncio.run(run_experiment(made, create_run(made, tmp_path / "runs"), PlainObserver(Console(quiet=True), made)))
    assert results.load(next((tmp_path / "runs").iterdir())).status is RunStatus.FAILED


def test_the_time_left_learns_from_what_was_seen(tmp_path: Path):
    made = experiment(tmp_path, "http://127.0.0.1:9", trial={"duration_s": 10})
    estimate = Estimate(made)
    guess = estimate.left_s()
    record = run(tmp_path).finished[0].record
    estimate.finished(record)
    measured_s = (record.ended_ns - record.started_ns) / 1e9
    assert guess == pytest.approx(2 * 6 + 4 * 13)
    assert estimate.left_s() == pytest.approx(2 * 6 + 2 * 13 + measured_s)
