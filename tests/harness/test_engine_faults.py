"""Two engines, of which the first misbehaves: the failure has a name, comes in time, and the others go on.

Both are Quill, the imaginary engine of docs/adapters.md, started as processes of their own. The same in large, with
deadlines, is ``benchmarks/engines/life_cycle.py``.
"""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import results
from engines import registry
from harness.experiment import experiment_from
from harness.run import create_run, run_experiment
from results.frames import FrameLog
from results.records import Phase, RunStatus, StreamRecord, TrialPlan, TrialRecord, Verdict
from tests.engines.fakes.quill import FakeQuill
from tests.engines.fakes.stage import Script, running
from tests.engines.processes import Held
from tests.engines.quill import install, model

SOON_S = 10.0
FEW = 3
"""Answers after which the load is on."""
SERVER = "tests.engines.fakes.quill"
BAD = "black"
"""The ink by which the misbehaving engine's process is found."""
Strike = Callable[[], Awaitable[None]]


class Events:
    """An observer that notes when what happened."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}

    def fetching(self, have_bytes: int, total_bytes: int | None) -> None:
        raise AssertionError("nothing is fetched")

    def starting(self, label: str, repeat: int) -> None:
        self.times.setdefault(f"starting {label}", time.monotonic())

    def trial_started(self, plan: TrialPlan) -> None:
        self.times[f"begun {plan.id}"] = time.monotonic()

    def trial_finished(self, record: TrialRecord) -> None:
        self.times[f"done {record.id}"] = time.monotonic()


@pytest.fixture(autouse=True)
def _quill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    programs = install(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    registry._others.cache_clear()
    yield
    registry._others.cache_clear()
    left = [child for child in psutil.Process().children(recursive=True) if SERVER in child.cmdline()]
    assert left == [], "no engine outlives its run"


class Scene:
    """A run of two engines, ``bad`` and ``good``, two trials each.

    Args:
        tmp_path: a fresh folder.
        strike: what befalls the first one in its first trial.
        fake: what it is, where it runs already.
        settle_s: as in the experiment.
        bad: what its table says besides.
    """

    def __init__(
        self,
        tmp_path: Path,
        strike: Strike | None = None,
        fake: FakeQuill | None = None,
        settle_s: float = 0.0,
        **bad: Any,
    ) -> None:
        self.events = Events()
        self.struck_s = 0.0
        self._folder = tmp_path
        self._strike = strike
        data = {
            "name": "t",
            "repeats": 1,
            "model": {"name": "smol", "path": str(model(tmp_path / "model"))},
            "engines": [
                {"adapter": "quill", "label": "bad", "options": {"ink": BAD}, **bad},
                {"adapter": "quill", "label": "good"},
            ],
            "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 5}},
            "loads": [{"concurrency": 1}, {"concurrency": 2}],
            "trial": {"duration_s": 1.5, "warmup_requests": 1, "settle_s": settle_s, "max_failure_share": 0.05},
            "client": {"calibrate": False},
            "quality": {"samples": 0},
        }
        asyncio.run(self._attached(fake, data) if fake else self._play(data))
        self.run = results.load(next((tmp_path / "runs").iterdir()))
        self.trials = {trial.record.id: trial.record for trial in self.run.finished}
        self.good = [self.trials[f"r1-good-{level}"].verdict for level in (1, 2)]

    async def _attached(self, fake: FakeQuill, data: dict[str, Any]) -> None:
        async with running(fake) as url:
            data["engines"][0]["url"] = url
            await self._play(data)

    async def _play(self, data: dict[str, Any]) -> None:
        experiment = experiment_from(data, "t")
        folder = create_run(experiment, self._folder / "runs")
        task = asyncio.create_task(run_experiment(experiment, folder, self.events))
        if self._strike:
            while measured(folder.path / "trials/r1-bad-1") < FEW:
                assert not task.done()
                await asyncio.sleep(0.01)
            self.struck_s = time.monotonic()
            await self._strike()
        await task

    def after_s(self, event: str) -> float:
        """From the strike to an event."""
        return self.events.times[event] - self.struck_s


def measured(trial: Path) -> int:
    """Measured requests that have ended so far."""
    streams = (stream for log in trial.glob("*.frames") for stream in FrameLog(log, StreamRecord))
    return sum(stream.phase is Phase.MEASURED for stream in streams)


def bad_engine() -> psutil.Process:
    found = (child for child in psutil.Process().children(recursive=True) if SERVER in child.cmdline())
    return next(child for child in found if BAD in child.cmdline() and "guard.py" not in " ".join(child.cmdline()))


async def kill() -> None:
    bad_engine().kill()


async def kill_guard() -> None:
    engine, guard = bad_engine(), bad_engine().parent()
    assert guard is not None
    with Held(engine.pid) as held:
        guard.kill()
        assert await asyncio.to_thread(held.gone_within, SOON_S)


async def stop_for_a_second() -> None:
    engine = bad_engine()
    engine.send_signal(signal.SIGSTOP)
    await asyncio.sleep(1.0)
    engine.send_signal(signal.SIGCONT)


@pytest.mark.parametrize(
    ("strike", "reason"),
    [
        (kill, "engine died: the engine's process ended by itself (signal 9)"),
        (kill_guard, "engine died: the engine's guard was ended by signal 9, and the engine with it"),
    ],
)
def test_an_engine_that_is_killed_voids_its_trial_and_is_started_again(
    tmp_path: Path, strike: Strike, reason: str
) -> None:
    scene = Scene(tmp_path, strike)
    assert scene.trials["r1-bad-1"].reasons[0] == reason
    assert scene.after_s("done r1-bad-1") < SOON_S
    assert scene.trials["r1-bad-2"].verdict is Verdict.VALID
    assert scene.good == [Verdict.VALID] * 2
    assert scene.run.status is RunStatus.FAILED
    assert (scene.run.manifest.failure or "").startswith(f"bad, repeat 1: {reason.removeprefix('engine died: ')}")


def test_an_engine_that_was_stopped_for_a_while_voids_its_trial_and_goes_on(tmp_path: Path) -> None:
    scene = Scene(tmp_path, stop_for_a_second)
    assert "engine was stopped: none of its processes ran for" in scene.trials["r1-bad-1"].reasons[0]
    assert scene.trials["r1-bad-2"].verdict is Verdict.VALID
    assert scene.run.status is RunStatus.COMPLETE


def test_an_engine_that_dies_of_its_memory_says_so(tmp_path: Path) -> None:
    scene = Scene(tmp_path, args=["--fault", "starve-later"])
    for level in (1, 2):
        (reason, *_) = scene.trials[f"r1-bad-{level}"].reasons
        assert reason.startswith("engine died: the engine ran out of memory (exit status 1): MemoryError: a buffer of ")
        assert "lower memory_fraction, max_model_len or max_num_seqs" in reason
    assert scene.good == [Verdict.VALID] * 2


def test_an_engine_that_dies_before_every_trial_is_not_started_for_ever(tmp_path: Path) -> None:
    """It settles at first, and does not survive it."""
    scene = Scene(tmp_path, settle_s=6.0, args=["--fault", "starve-later"])
    assert set(scene.trials) == {"r1-good-1", "r1-good-2"}
    assert (scene.run.manifest.failure or "").count("the engine ran out of memory (exit status 1)") == 1


@pytest.mark.parametrize(
    ("bad", "failure"),
    [
        (
            {"args": ["--fault", "never-ready"], "ready_timeout_s": 3.0},
            "did not answer 200 within 3 s (last: HTTP 503)",
        ),
        ({"args": ["--fault", "starve"]}, "the engine ran out of memory (exit status 1): MemoryError: a buffer of "),
        ({"args": ["--fault", "crash"]}, "it did not start (exit status 1): quill: the model is torn: 3 of 5 tensors"),
        ({"args": ["--no-such"]}, "it did not start (exit status 2): quill-server: error: unrecognized arguments"),
        ({"program": "/nowhere/quill"}, "cannot start /nowhere/quill; is it installed?"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(map(str, next(iter(value.values())))),
)
def test_an_engine_that_does_not_start_is_given_up_and_the_other_goes_on(
    tmp_path: Path, bad: dict[str, Any], failure: str
) -> None:
    scene = Scene(tmp_path, **bad)
    assert scene.run.status is RunStatus.FAILED
    assert failure in (scene.run.manifest.failure or "")
    assert set(scene.trials) == {"r1-good-1", "r1-good-2"}
    assert scene.good == [Verdict.VALID] * 2
    times = scene.events.times
    assert times["starting good"] - times["starting bad"] < bad.get("ready_timeout_s", 0) + SOON_S


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        scene = Scene(tmp_path, port=port)
    assert f"bad, repeat 1: port {port} cannot be used (Address already in use)" in (scene.run.manifest.failure or "")
    assert scene.good == [Verdict.VALID] * 2


def test_a_server_that_has_another_model_is_told_by_its_own_words(tmp_path: Path) -> None:
    scene = Scene(tmp_path, fake=FakeQuill(Script(), [], "other", {}))
    for level in (1, 2):
        assert "first: HTTP 404: the model smol does not exist" in scene.trials[f"r1-bad-{level}"].reasons[0]
    assert scene.good == [Verdict.VALID] * 2
