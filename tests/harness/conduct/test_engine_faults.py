"""Two engines, of which the first fails: the failure is identified, and the other engine continues.

One test uses processes: both are Quill, the imaginary engine of docs/adapters.md. At full size, with deadlines, this is
``tests/acceptance/engines/life_cycle.py``; failing launches are in ``tests/engines/test_launcher.py``. How a run
handles an engine that fails is tested in virtual time.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bakeoff import results
from bakeoff.engines import registry
from bakeoff.harness.conduct.run import create_run, run_experiment
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.harness.virtual import Death, Fault, VirtualEngine, virtual_experiment, virtual_run
from bakeoff.harness.virtual.runs import QUIET
from bakeoff.results.files.frames import FrameLog
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import invalid
from bakeoff.results.log.store import RunFolder
from bakeoff.results.records import Phase, RunStatus, StreamRecord, Verdict
from tests.engines.quill import install, model

FEW = 3
"""Answers after which the load is on."""
SERVER = "tests.engines.fakes.quill"
BAD = "black"
"""The ink by which the misbehaving engine's process is found."""
Strike = Callable[[], Awaitable[None]]
VOID, GOOD = Verdict.INVALID, Verdict.VALID


@pytest.fixture
def quill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    programs = install(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    registry._others.cache_clear()
    yield
    registry._others.cache_clear()
    left = [child for child in psutil.Process().children(recursive=True) if SERVER in child.cmdline()]
    assert left == [], "no engine outlives its run"


async def struck(tmp_path: Path, *strikes: Strike) -> RunFolder:
    """A run of two real engines; the first engine's trials are disturbed in turn, except for the last."""
    data = {
        "name": "t",
        "repeats": 1,
        "model": {"name": "smol", "path": str(model(tmp_path / "model"))},
        "engines": [
            {"adapter": "quill", "label": "bad", "options": {"ink": BAD}},
            {"adapter": "quill", "label": "good"},
        ],
        "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 5}},
        "loads": [{"concurrency": 1}, {"concurrency": 2}, {"concurrency": 3}],
        "trial": {"ramp_s": 0.2, "duration_s": 1.5, "warm_up_s": 0.0, "max_failure_share": 0.05},
        "client": {"calibrate": False},
        "quality": {"samples": 0},
    }
    experiment = experiment_from(data, "t")
    folder = create_run(experiment, tmp_path / "runs")
    task = asyncio.create_task(run_experiment(experiment, folder, QUIET))
    for level, strike in enumerate(strikes, start=1):
        while measured(folder.path / f"trials/r1-bad-{level}") < FEW:
            assert not task.done()
            await asyncio.sleep(0.01)
        await strike()
    await task
    return folder


def measured(trial: Path) -> int:
    """Number of measured requests that have ended so far."""
    streams = (stream for log in trial.glob("*.frames") for stream in FrameLog(log, StreamRecord))
    return sum(stream.phase is Phase.MEASURED for stream in streams)


def bad_engine() -> psutil.Process:
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # also a zombie, which has no command line
            words = child.cmdline()
            if SERVER in words and BAD in words and "guard.py" not in " ".join(words):
                return child
    raise AssertionError("the engine is not running")


async def stop_for_a_second() -> None:
    engine = bad_engine()
    engine.send_signal(signal.SIGSTOP)
    await asyncio.sleep(1.0)
    engine.send_signal(signal.SIGCONT)


async def kill() -> None:
    bad_engine().kill()


@pytest.mark.usefixtures("quill")
def test_a_real_engine_that_is_stopped_goes_on_and_one_that_is_killed_is_started_again(tmp_path: Path) -> None:
    run = results.load(asyncio.run(struck(tmp_path, stop_for_a_second, kill)).path)
    expected_codes = {FindingCode.ENGINE_STOPPED, FindingCode.ENGINE_DIED, FindingCode.FAILED_REQUESTS}
    codes = {t.record.id: [f.code for f in t.record.invalidating if f.code in expected_codes] for t in run.finished}
    repeated = {trial: codes.pop(trial) for trial in [*codes] if trial.endswith("-again")}
    assert repeated["r1-bad-1-again"] == []
    undisturbed = {"r1-bad-3", "r1-good-1", "r1-good-2", "r1-good-3"}
    assert codes.pop("r1-bad-1")[0] is FindingCode.ENGINE_STOPPED
    assert codes.pop("r1-bad-2")[0] is FindingCode.ENGINE_DIED
    assert codes == {trial: [] for trial in undisturbed}, "whatever else this machine is doing"
    death = "the engine's process ended by itself (signal 9)"
    assert run.status is RunStatus.FAILED
    assert (run.manifest.failure or "").startswith(f"bad, repeat 1: {death}")


def played(tmp_path: Path, bad: VirtualEngine, **trial: Any) -> tuple[results.Run, dict[str, Verdict]]:
    """Run two virtual engines; returns the run and the verdict of each trial."""
    loads = [{"concurrency": 1}, {"concurrency": 2}]
    limits = {"ramp_s": 0.2, "duration_s": 1.5, "warm_up_s": 0.0, **trial}
    experiment = virtual_experiment(["bad", "good"], loads, repeats=1, trial=limits)
    run = virtual_run(experiment, {"bad": bad, "good": VirtualEngine()}, tmp_path)
    return run, {trial.record.id: trial.record.verdict for trial in run.finished}


def test_an_engine_that_dies_in_every_trial_is_started_for_each(tmp_path: Path) -> None:
    run, verdicts = played(tmp_path, VirtualEngine(deaths=(Death(after_requests=5, exit_status=137),)))
    assert verdicts == {"r1-bad-1": VOID, "r1-bad-2": VOID, "r1-good-1": GOOD, "r1-good-2": GOOD}
    death = "the engine's process ended by itself (signal 9)"
    died = invalid(FindingCode.ENGINE_DIED, detail=death)
    assert [trial.record.findings[0] for trial in run.finished[:2]] == [died] * 2
    assert run.manifest.failure == "; ".join([f"bad, repeat 1: {death}"] * 2)
    assert len(list((run.path / "engines").glob("bad-*.log"))) == 2


def test_an_engine_that_dies_before_every_trial_is_given_up(tmp_path: Path) -> None:
    """It dies during warm-up."""
    run, verdicts = played(tmp_path, VirtualEngine(deaths=(Death(after_requests=2),)), warm_up_s=6.0)
    assert verdicts == {"r1-good-1": GOOD, "r1-good-2": GOOD}
    assert (run.manifest.failure or "").count("ended by itself (exit status 1)") == 1
    assert len(list((run.path / "engines").glob("bad-*.log"))) == 1


def test_an_engine_that_does_not_start_is_given_up_and_the_other_goes_on(tmp_path: Path) -> None:
    run, verdicts = played(tmp_path, VirtualEngine(deaths=(Death(after_requests=0),)))
    assert run.status is RunStatus.FAILED
    assert (run.manifest.failure or "").startswith("bad, repeat 1: it did not start (exit status 1)")
    assert verdicts == {"r1-good-1": GOOD, "r1-good-2": GOOD}


def test_refused_requests_quote_the_engines_error(tmp_path: Path) -> None:
    run, verdicts = played(tmp_path, VirtualEngine(faults={Fault.HTTP_500: 1.0}))
    assert verdicts == {"r1-bad-1": VOID, "r1-bad-2": VOID, "r1-good-1": GOOD, "r1-good-2": GOOD}
    for trial in run.finished[:2]:
        finding = trial.record.findings[0]
        assert finding.code is FindingCode.RAMP_FAILED
        assert "HTTP 500: the virtual engine wants" in str(finding.parameters["error"])
    assert run.status is RunStatus.COMPLETE
