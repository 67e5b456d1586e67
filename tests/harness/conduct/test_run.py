"""Whole runs: one against the truth server as a running server, the others virtual."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from bakeoff import results
from bakeoff.engines import pick_port
from bakeoff.engines.errors import EngineError, NotReady
from bakeoff.harness.calibration.client_error import Shape
from bakeoff.harness.client import Fleet
from bakeoff.harness.conduct.progress import PlainObserver
from bakeoff.harness.conduct.recovery import recover
from bakeoff.harness.conduct.run import create_run, run_experiment
from bakeoff.harness.conduct.world import inside
from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.harness.truth import Schedule, truth_process
from bakeoff.harness.virtual import (
    Death,
    Fault,
    Fixed,
    PerToken,
    VirtualEngine,
    VirtualWorld,
    Whole,
    run_in,
    virtual_experiment,
    virtual_run,
)
from bakeoff.results.errors import NotWritable
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.log.run_log import Event, RunEnded, TrialFinished
from bakeoff.results.log.store import RunFolder
from bakeoff.results.records import ClientError, Outcome, Phase, RunStatus, Verdict
from tests.workloads.small_tokenizers import checkpoint

ENGINE = VirtualEngine(service=PerToken(Fixed(0.02), Fixed(0.005)))
LOADS = [{"concurrency": 3}, {"rate_per_s": 20.0, "arrival": "poisson"}]
TRIAL = {"ramp_s": 0.2, "duration_s": 1.2, "warm_up_s": 0.0, "max_foreign_share": 1.0}


def make_experiment(tmp_path: Path, url: str, **changes: Any) -> Experiment:
    data: dict[str, Any] = {
        "name": "t",
        "repeats": 2,
        "model": {"name": "truth", "tokenizer": str(checkpoint(tmp_path / "tok"))},
        "engines": [{"adapter": "reference", "url": url}],
        "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 5}},
        "loads": LOADS,
        "trial": TRIAL,
        "client": {"calibrate": False},
    }
    return experiment_from({**data, **changes}, "t")


@asynccontextmanager
async def truth() -> AsyncGenerator[str]:
    port = pick_port()
    async with truth_process(Schedule(0.02, 0.005), port):
        yield f"http://127.0.0.1:{port}"


def virtual(**changes: Any) -> Experiment:
    options: dict[str, Any] = {"repeats": 2, "trial": TRIAL, "loads": LOADS, **changes}
    return virtual_experiment(["reference"], **options)


def run(tmp_path: Path, world: VirtualWorld | None = None, **changes: Any) -> results.Run:
    """Run a virtual experiment to its end."""
    return run_in(world or VirtualWorld({"reference": ENGINE}), virtual(**changes), tmp_path / "runs")


def test_a_real_run_holds_every_trial_with_all_its_requests(tmp_path: Path):
    async def scene() -> None:
        async with truth() as url:
            client = {"max_error_share": 1000.0}  # whatever else this machine is doing
            experiment = make_experiment(tmp_path, url, repeats=1, client=client)
            await run_experiment(
                experiment, create_run(experiment, tmp_path / "runs"), PlainObserver(Console(quiet=True), experiment)
            )

    asyncio.run(scene())
    result = results.load(next((tmp_path / "runs").iterdir()))
    assert result.status is RunStatus.COMPLETE
    assert len(result.finished) == 2
    for trial in result.finished:
        assert len(trial.requests) == trial.record.planned_requests
        assert {Phase.RAMP, Phase.MEASURED} <= {request.phase for request in trial.requests}
        assert trial.record.window.length_s == pytest.approx(TRIAL["duration_s"])
        assert trial.record.ramp is not None
        assert trial.record.ramp.complete
        assert {request.outcome for request in trial.requests} == {Outcome.OK}
        assert trial.metrics["itl_p50_s"].value == pytest.approx(0.005, abs=0.003)
        assert trial.metrics["ttft_p50_s"].value == pytest.approx(0.02, abs=0.02)
        assert {"host", "client", "sampler", "client_loop"} <= {sample.source for sample in trial.telemetry}
        assert len(trial.record.clients) == 1
        error = trial.record.client_error
        assert error is not None
        assert 0 < error.by_metric["itl_p50_s"] < 1
        assert 0 < error.by_metric["ttft_p99_s"] < 1
        assert error.requests >= 5
    assert result.manifest.environment["cores"] >= 1


def test_a_run_holds_every_trial_in_its_order(tmp_path: Path):
    result = run(tmp_path)
    assert result.status is RunStatus.COMPLETE
    assert [trial.record.verdict for trial in result.finished] == [Verdict.VALID] * 4
    assert [trial.record.order for trial in result.finished] == [1, 2, 3, 4]
    assert all(cell.intervals["output_tokens_per_s"].n == 2 for cell in result.cells)
    assert [trial.metrics["itl_p50_s"].value for trial in result.finished] == pytest.approx([0.005] * 4)


class Calibrating(VirtualWorld):
    """A world whose n-th calibration returns an error of n times ``step_s`` seconds."""

    step_s = 1e-4
    calibrations = 0

    async def calibrate(self, fleet: Fleet, shape: Shape, transport: str) -> ClientError:
        self.calibrations += 1
        error_s = self.calibrations * self.step_s
        by_metric = {"ttft_p50_s": error_s, "chunk_gap_p50_s": error_s}
        return ClientError(requests=20, chunks_per_s=1e6, by_metric=by_metric, send_lag_s=0.0, cpu_s=0.0)


def test_the_client_error_is_measured_once_per_level_of_each_start(tmp_path: Path):
    world = Calibrating({"reference": ENGINE})
    result = run(tmp_path, world)
    errors = [trial.record.client_error for trial in result.finished]
    assert [error.by_metric["ttft_p50_s"] for error in errors if error] == pytest.approx([1e-4, 2e-4, 3e-4, 4e-4])
    assert world.calibrations == 4
    assert [cell.client_error for cell in result.cells] == [errors[3], errors[2]]


def test_a_large_client_error_is_measured_five_times_and_invalidates_the_trials(tmp_path: Path):
    world = Calibrating({"reference": ENGINE})
    world.step_s = 0.01
    result = run(tmp_path, world, loads=LOADS[1:])
    assert world.calibrations == 5 * len(result.finished), "a stored error makes no trial INVALID"
    for trial in result.finished:
        assert trial.record.verdict is Verdict.INVALID
        errors = [finding for finding in trial.record.invalidating if finding.code is FindingCode.CLIENT_ERROR]
        assert {finding.parameters["latency"] for finding in errors} == {"ttft", "chunk_gap"}
        assert trial.record.client_error is not None
    first = result.finished[0].record.client_error
    assert first is not None
    assert first.by_metric["ttft_p50_s"] == pytest.approx(0.03), "the median of five"


def test_a_disturbance_of_seconds_makes_no_trial_invalid(tmp_path: Path):
    class Disturbed(Calibrating):
        step_s = 1e-6
        began_s: float | None = None

        async def calibrate(self, fleet: Fleet, shape: Shape, transport: str) -> ClientError:
            now_s = self.now_ns() / 1e9
            self.began_s = now_s if self.began_s is None else self.began_s
            error = await super().calibrate(fleet, shape, transport)
            large = dict.fromkeys(error.by_metric, 0.05)
            return msgspec.structs.replace(error, by_metric=large) if now_s < self.began_s + 2 else error

    result = run(tmp_path, Disturbed({"reference": ENGINE}), loads=LOADS[1:])
    codes = {finding.code for trial in result.finished for finding in trial.record.findings}
    assert FindingCode.CLIENT_ERROR not in codes


def test_the_reason_for_an_unknown_client_error_is_stored(tmp_path: Path):
    result = run(tmp_path, repeats=1, client={"calibrate": False})
    assert [trial.record.uncalibrated for trial in result.finished] == ["client.calibrate is off"] * 2
    assert {cell.uncalibrated for cell in result.cells} == {"client.calibrate is off"}


def test_repeats_share_lengths_but_not_words_and_levels_differ_in_both(tmp_path: Path):
    records = [trial.record for trial in run(tmp_path).finished]
    first, second, *again = sorted(records, key=lambda record: (record.repeat, record.id))
    assert [record.workload_sha256 for record in again] == [first.workload_sha256, second.workload_sha256]
    assert first.workload_sha256 != second.workload_sha256
    sent = [record.traffic for record in (first, second, *again)]
    assert all(traffic and traffic.off_length == 0 and traffic.requests > 0 for traffic in sent)
    assert len({traffic.sha256 for traffic in sent if traffic}) == 4
    opened = [traffic for traffic in sent[1::2] if traffic]
    assert opened[0].prompt_tokens == opened[1].prompt_tokens, "a closed loop's plan is as long as the engine needs"


def test_an_interrupt_keeps_what_was_measured(tmp_path: Path):
    world, experiment = VirtualWorld({"reference": ENGINE}), virtual()

    async def struck() -> None:
        task = asyncio.create_task(
            run_experiment(experiment, create_run(experiment, tmp_path), PlainObserver(Console(quiet=True), experiment))
        )
        await asyncio.sleep(3.5)  # one for the start, 1.4 and a tail for the first trial
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with inside(world):
        world.run(struck())
    result = results.load(next(tmp_path.iterdir()))
    assert result.status is RunStatus.INTERRUPTED
    assert len(result.finished) == 1
    ((plan, requests),) = result.salvaged
    assert plan.id == "r1-reference-2"
    assert requests
    assert result.requests[result.requests.trial == plan.id].verdict.isna().all()


def is_end_of(trial: str, event: Event) -> bool:
    return isinstance(event, RunEnded) or (isinstance(event, TrialFinished) and event.record.id == trial)


def test_streams_of_a_crash_are_decoded_once(tmp_path: Path):
    result = run(tmp_path)
    folder = RunFolder.open(result.path)
    trial = folder.trial("r2-reference-1")
    whole = trial.read_requests()
    folder.write_log([event for event in folder.read_log().events if not is_end_of(trial.path.name, event)])
    (trial.path / "requests.jsonl").unlink()
    assert recover(folder) == 1
    assert recover(folder) == 0
    assert trial.read_requests() == whole
    again = results.load(result.path)
    assert [plan.id for plan in again.unfinished] == ["r2-reference-1"]
    assert len(again.salvaged[0][1]) == len(whole)


def test_a_folder_that_cannot_be_made_fails_before_anything_starts(tmp_path: Path):
    (tmp_path / "runs").write_text("in the way", encoding="utf-8")
    experiment = make_experiment(tmp_path, "http://127.0.0.1:9")
    with pytest.raises(NotWritable, match="cannot make the folder"):
        create_run(experiment, tmp_path / "runs")


def test_a_server_that_refuses_every_request_gives_invalid_trials(tmp_path: Path):
    gone = VirtualWorld({"reference": VirtualEngine(faults={Fault.REFUSED: 1.0})})
    result = run(tmp_path, gone, repeats=1, loads=[{"concurrency": 1}], trial=TRIAL | {"max_requests": 3})
    (trial,) = result.finished
    assert trial.record.verdict is Verdict.INVALID
    finding = trial.record.findings[0]
    assert finding.code is FindingCode.RAMP_FAILED
    assert finding.parameters["failed_requests"] == finding.parameters["measured_requests"]
    assert finding.parameters["outcome"] == Outcome.REFUSED.value
    assert result.cells[0].failures == (trial.metrics["failures"].value, finding.parameters["measured_requests"])


def test_an_address_where_nothing_listens_fails_before_any_request(tmp_path: Path):
    url = f"http://127.0.0.1:{pick_port()}"
    experiment = make_experiment(tmp_path, url)
    folder = create_run(experiment, tmp_path / "runs")
    asyncio.run(run_experiment(experiment, folder, PlainObserver(Console(quiet=True), experiment)))
    result = results.load(folder.path)
    assert not result.finished
    reason = "Connection refused; start the server or correct the address"
    assert result.manifest.failure == f"reference, repeat 1: {url} cannot be reached: {reason}"


class Unreachable(VirtualWorld):
    """Only its client reaches its servers, not the machine of the harness."""

    async def require_listener(self, url: str) -> None:
        raise NotReady(url)


@pytest.mark.parametrize(("client", "status"), [({}, RunStatus.FAILED), ({"ray": "auto"}, RunStatus.COMPLETE)])
def test_an_address_that_only_workers_elsewhere_reach_is_not_checked_from_here(
    tmp_path: Path, client: dict[str, Any], status: RunStatus
):
    engines = [{"adapter": "reference", "url": "http://10.0.0.7:8000"}]
    experiment = virtual_experiment([], [{"concurrency": 1}], engines=engines, client=client, repeats=1, trial=TRIAL)
    assert run_in(Unreachable({"reference": VirtualEngine()}), experiment, tmp_path).status is status


def test_an_engine_that_does_not_start_fails_the_run_with_its_last_words(tmp_path: Path):
    result = run(tmp_path, VirtualWorld({"reference": VirtualEngine(deaths=(Death(after_requests=0),))}))
    assert result.status is RunStatus.FAILED
    assert result.manifest.failure is not None
    assert result.manifest.failure.startswith("reference, repeat 1: it did not start")
    assert not result.finished  # and repeat 2 was not tried again


def test_a_wrong_model_fails_with_one_line(tmp_path: Path):
    experiment = make_experiment(
        tmp_path, "", engines=[{"adapter": "reference"}], model={"path": str(tmp_path / "none")}
    )
    with pytest.raises(EngineError, match="does not exist"):
        asyncio.run(
            run_experiment(
                experiment, create_run(experiment, tmp_path / "runs"), PlainObserver(Console(quiet=True), experiment)
            )
        )
    assert results.load(next((tmp_path / "runs").iterdir())).status is RunStatus.FAILED


def test_near_capacity_a_latency_has_an_interval_only_where_the_window_is_long_enough(tmp_path: Path):
    """Four servers of 1 s remember for 25 s at 90 %, for 2 s at 65 %, and hardly at 40 %."""
    engine = VirtualEngine(service=Whole(Fixed(1.0)), slots=4, trial_noise=0.01)
    loads = [{"rate_per_s": rate, "arrival": "poisson"} for rate in (3.6, 2.6, 1.6)]
    experiment = virtual_experiment(["engine"], loads, repeats=3, seed=2, trial={"duration_s": 40.0})
    run = virtual_run(experiment, {"engine": engine}, tmp_path, seed=2)
    near, below, idle = run.cells
    warned = [{finding.code for finding in trial.record.findings} for trial in run.trials_of(near)]
    assert all(FindingCode.WINDOW_SHORT_FOR_QUEUE in codes for codes in warned)
    for name in ("ttft_p50_s", "ttft_p90_s", "e2e_p90_s"):
        interval = near.intervals[name]
        assert (interval.low, interval.high) == (None, None)
        assert "raise trial.duration_s to" in (interval.reason or "")
    assert near.intervals["requests_per_s"].low is not None
    for cell in (below, idle):
        assert cell.intervals["ttft_p90_s" if cell is below else "ttft_p50_s"].low is not None
        codes = {finding.code for trial in run.trials_of(cell) for finding in trial.record.findings}
        assert FindingCode.WINDOW_SHORT_FOR_QUEUE not in codes
