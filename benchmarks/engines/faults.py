"""Bar 5b: an engine that misbehaves in a run is named within its deadline + 2 s, and the next trial goes on.

``bakeoff run`` on two engines, of which the first one gets into trouble. Both are Quill, the imaginary engine of
docs/adapters.md: its server is small, and commits the faults that it is told to. Deadlines: a death has none; what
never gets ready has ``ready_timeout_s``; what was stopped is judged when its trial ends.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import msgspec
import psutil

import results
from benchmarks.bars import Bars
from benchmarks.engines.life_cycle import MARK, marked
from results.findings import FindingCode
from results.frames import FrameLog
from results.records import Phase, StreamRecord, Verdict
from results.text.findings import sentence
from tests.engines.quill import ROOT, install, model

SLACK_S = 2.0
STOP_S = 10.0
READY_TIMEOUT_S = 4.0
TRIAL_S = 4.0
LONG_TRIAL_S = 13.0
"""Of the trial in which an engine is stopped."""
SERVER = "tests.engines.fakes.quill"
Strike = Callable[[psutil.Process], None]

EXPERIMENT = """
name = "faults"
repeats = 1
[model]
name = "smol"
path = "{model}"
[[engines]]
adapter = "quill"
label = "bad"
options = {{ ink = "black" }}
{bad}
[[engines]]
adapter = "quill"
label = "good"
[workload]
name = "random"
options = {{ input_tokens = 8, output_tokens = 5 }}
[[loads]]
concurrency = 1
[[loads]]
concurrency = 2
[trial]
duration_s = {trial_s}
warmup_requests = 1
warm_up_s = 0
[client]
calibrate = false
"""


class Fault(msgspec.Struct, frozen=True):
    """One row of the table.

    Attributes:
        name: of the fault.
        expected: what its message must hold.
        finding: the first one of its first trial; None where the engine never starts.
        bad: the misbehaving engine's keys.
        strike: what befalls its process in its first trial.
        deadline_s: from the strike, or from its start, until it must be named; the slack comes on top.
        restarts: whether its second trial is valid all the same.
        trial_s: length of each trial.
    """

    name: str
    expected: str
    bad: str = ""
    finding: FindingCode | None = None
    strike: Strike | None = None
    deadline_s: float = 0.0
    restarts: bool = False
    trial_s: float = TRIAL_S


class Outcome(msgspec.Struct, frozen=True):
    """What a run said.

    Attributes:
        message: of the fault.
        finding: the first one of the bad engine's first trial.
        named_s: when, after the strike or the start.
        second: whether the bad engine's second trial is valid.
        good: how many of the other's are.
        left: processes.
        code: exit status.
    """

    message: str
    finding: FindingCode | None
    named_s: float
    second: bool
    good: int
    left: int
    code: int


def stop(engine: psutil.Process) -> None:
    """SIGSTOP, and SIGCONT after ten seconds."""
    engine.send_signal(signal.SIGSTOP)
    threading.Timer(STOP_S, engine.send_signal, (signal.SIGCONT,)).start()


def kill_guard(engine: psutil.Process) -> None:
    """The process above it."""
    guard = engine.parent()
    assert guard is not None
    guard.kill()


def faults(port: int, url: str) -> list[Fault]:
    """The table.

    Args:
        port: one on which somebody listens.
        url: of a server with another model.
    """
    never = f'args = ["--fault", "never-ready"]\nready_timeout_s = {READY_TIMEOUT_S}'
    return [
        Fault("killed", "the engine's process ended by itself (signal 9)", finding=FindingCode.ENGINE_DIED,
              strike=psutil.Process.kill, restarts=True),
        Fault("guard killed", "the engine's guard was ended by signal 9", finding=FindingCode.ENGINE_DIED,
              strike=kill_guard, restarts=True),
        Fault("stopped for 10 s", "", finding=FindingCode.ENGINE_STOPPED, strike=stop, restarts=True,
              deadline_s=LONG_TRIAL_S, trial_s=LONG_TRIAL_S),
        Fault("never ready", f"did not answer 200 within {READY_TIMEOUT_S:g} s", never, deadline_s=READY_TIMEOUT_S),
        Fault("port taken", f"port {port} cannot be used (Address already in use)", f"port = {port}"),
        Fault("model torn", "it did not start (exit status 1): quill: the model is torn",
              'args = ["--fault", "crash"]'),
        Fault("model not there", "HTTP 404: the model smol does not exist", f'url = "{url}"',
              finding=FindingCode.FAILED_REQUESTS, deadline_s=TRIAL_S),
        Fault("no memory at start", "ran out of memory (exit status 1): MemoryError", 'args = ["--fault", "starve"]'),
        Fault("no memory in a trial", "the engine ran out of memory (exit status 1): MemoryError",
              'args = ["--fault", "starve-later"]', finding=FindingCode.ENGINE_DIED),
        Fault("not installed", "cannot start /nowhere/quill; is it installed?", 'program = "/nowhere/quill"'),
    ]  # fmt: skip


class Harness:
    """``bakeoff run``, and when it said what."""

    def __init__(self, fault: Fault, folder: Path, site: Path, programs: Path, served: Path) -> None:
        file = folder / "faults.toml"
        file.write_text(EXPERIMENT.format(model=served, bad=fault.bad, trial_s=fault.trial_s), encoding="utf-8")
        env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(site)}
        argv = [Path(sys.executable).with_name("bakeoff"), "run", file, "--out", folder]
        self.lines: list[tuple[float, str]] = []
        self.folder = folder
        self.process = subprocess.Popen(
            argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=folder
        )
        assert self.process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(self.process.stderr,))
        self._reader.start()

    def _read(self, stderr: IO[str]) -> None:
        for line in stderr:
            self.lines.append((time.monotonic(), line.rstrip()))

    def engine(self) -> psutil.Process:
        """The bad one, when its first trial's load is on."""
        while self.process.poll() is None:
            logs = self.folder.glob("*/trials/r1-bad-1/*.frames")
            streams = (stream for log in logs for stream in FrameLog(log, StreamRecord))
            if sum(stream.phase is Phase.MEASURED for stream in streams) > 3:
                below = psutil.Process(self.process.pid).children(recursive=True)
                return next(one for one in below if SERVER in one.cmdline() and "black" in one.cmdline())
            time.sleep(0.01)
        sys.exit(f"the run ended too early: {self.lines}")

    def finish(self) -> int:
        """Its exit status."""
        code = self.process.wait(120)
        self._reader.join()
        return code

    def when(self, pattern: str) -> float:
        """When it said something."""
        return next((at for at, line in self.lines if re.search(pattern, line)), float("inf"))


def played(fault: Fault, folder: Path, site: Path, programs: Path, served: Path) -> Outcome:
    """One run."""
    harness = Harness(fault, folder, site, programs, served)
    struck_s = None
    if fault.strike:
        engine = harness.engine()
        struck_s = time.monotonic()
        fault.strike(engine)
    code = harness.finish()
    run = results.load(next(folder.glob("*/run.jsonl")).parent)
    trials = {trial.record.id: trial.record for trial in run.finished}
    first = trials.get("r1-bad-1")
    if struck_s is None:
        struck_s = harness.when("starting bad")
    finding = first.findings[0] if first and first.invalidating else None
    message = sentence(finding) if finding else run.manifest.failure or ""
    valid = {name for name, record in trials.items() if record.verdict is Verdict.VALID}
    return Outcome(
        message=message.splitlines()[0] if message else "",
        finding=finding.code if finding else None,
        named_s=harness.when(r"\] bad c=1 " if first else "starting good") - struck_s,
        second="r1-bad-2" in valid,
        good=len({"r1-good-1", "r1-good-2"} & valid),
        left=len(marked()),
        code=code,
    )


def main() -> None:
    bars = Bars()
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as busy:
        folder = Path(name)
        programs = install(folder / "site")
        served = model(folder / "model")
        with other_server(programs) as url:
            os.environ[MARK] = str(os.getpid())
            for fault in faults(busy.getsockname()[1], url):
                scene = folder / fault.name.replace(" ", "-")
                scene.mkdir()
                told = played(fault, scene, folder / "site", programs, served)
                print(f"{fault.name:<21} {told.named_s:6.2f} s of {fault.deadline_s:g} + {SLACK_S:g}  exit {told.code}"
                      f"  second {'valid' if told.second else '-':<5}  others {told.good} of 2  left {told.left}\n"
                      f"    {told.message}")  # fmt: skip
                _add(bars, fault, told)
    bars.finish()


def _add(bars: Bars, fault: Fault, told: Outcome) -> None:
    name = fault.name.replace(" ", "_")
    bars.add(f"{name}_named", told.finding is fault.finding and fault.expected in told.message, "==", 1)
    bars.add(f"{name}_late_s", told.named_s - fault.deadline_s, "<=", SLACK_S)
    bars.add(f"{name}_others_go_on", told.good + (told.second if fault.restarts else 1), "==", 3)
    bars.add(f"{name}_processes_left", told.left, "==", 0)


class other_server:  # noqa: N801  (a context manager)
    """A server that runs already and has another model."""

    def __init__(self, programs: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._program = programs / "quill-server"

    def __enter__(self) -> str:
        argv: list[Any] = [self._program, "--listen", f"127.0.0.1:{self._port}", "--model", "x", "--name", "other"]
        self._process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, cwd=ROOT)
        while not _answers(self._port):
            time.sleep(0.02)
        return f"http://127.0.0.1:{self._port}"

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    main()
