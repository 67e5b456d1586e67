"""An engine's fault is reported within its deadline + 2 s, and the next trial runs.

``bakeoff run`` on two engines, of which the first one has a fault. Both are Quill, the imaginary engine of
docs/adapters.md, whose small server has options that make it fail. Deadlines: none for a death, ``ready_timeout_s`` for
an engine that never becomes ready, and the end of the trial for a stopped engine.
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

from bakeoff import results
from bakeoff.results.files.frames import FrameLog
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.records import Phase, StreamRecord, Verdict
from bakeoff.results.text.findings import sentence
from benchmarks.bars import Bars
from tests.acceptance.engines.life_cycle import MARK, marked_processes
from tests.engines.quill import ROOT, install, model

SLACK_S = 2.0
STOP_S = 10.0
READY_TIMEOUT_S = 4.0
TRIAL_S = 4.0
LONG_TRIAL_S = 13.0
"""Length of the trials of the run in which the engine is stopped."""
SERVER = "tests.engines.fakes.quill"
Injection = Callable[[psutil.Process], None]

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
warm_up_s = 0
[client]
calibrate = false
"""


class Fault(msgspec.Struct, frozen=True):
    """One row of the table.

    Attributes:
        name: of the fault.
        expected: text that its message must contain.
        finding: first finding of the faulty engine's first trial; None if the engine never starts.
        bad: the faulty engine's keys in the experiment file.
        inject: called with the engine's process during its first trial.
        deadline_s: time from the injection, or from the engine's start, to the report, without the slack.
        restarts: whether the engine's second trial is valid nevertheless.
        trial_s: length of each trial.
    """

    name: str
    expected: str
    bad: str = ""
    finding: FindingCode | None = None
    inject: Injection | None = None
    deadline_s: float = 0.0
    restarts: bool = False
    trial_s: float = TRIAL_S


class Outcome(msgspec.Struct, frozen=True):
    """The result of a run.

    Attributes:
        message: of the fault.
        finding: first finding of the bad engine's first trial.
        reported_s: time from the injection or the start to the report.
        second: whether the bad engine's second trial is valid.
        good: number of the good engine's valid trials.
        left: number of processes left behind.
        code: exit status.
    """

    message: str
    finding: FindingCode | None
    reported_s: float
    second: bool
    good: int
    left: int
    code: int


def stop(engine: psutil.Process) -> None:
    """Send SIGSTOP, and SIGCONT after ten seconds."""
    engine.send_signal(signal.SIGSTOP)
    threading.Timer(STOP_S, engine.send_signal, (signal.SIGCONT,)).start()


def kill_guard(engine: psutil.Process) -> None:
    """Kill the engine's parent process."""
    guard = engine.parent()
    assert guard is not None
    guard.kill()


def faults(port: int, url: str) -> list[Fault]:
    """The table.

    Args:
        port: a port on which another socket listens.
        url: of a server with another model.
    """
    never = f'args = ["--fault", "never-ready"]\nready_timeout_s = {READY_TIMEOUT_S}'
    return [
        Fault("killed", "the engine's process ended by itself (signal 9)", finding=FindingCode.ENGINE_DIED,
              inject=psutil.Process.kill, restarts=True),
        Fault("guard killed", "the engine's guard was ended by signal 9", finding=FindingCode.ENGINE_DIED,
              inject=kill_guard, restarts=True),
        Fault("stopped for 10 s", "", finding=FindingCode.ENGINE_STOPPED, inject=stop, restarts=True,
              deadline_s=LONG_TRIAL_S, trial_s=LONG_TRIAL_S),
        Fault("never ready", f"did not answer 200 within {READY_TIMEOUT_S:g} s", never, deadline_s=READY_TIMEOUT_S),
        Fault("port taken", f"port {port} cannot be used (Address already in use)", f"port = {port}"),
        Fault("model torn", "it did not start (exit status 1): quill: the model is torn",
              'args = ["--fault", "crash"]'),
        Fault("model not there", "HTTP 404: the model smol does not exist", f'url = "{url}"',
              finding=FindingCode.NOT_FOUND, deadline_s=TRIAL_S),
        Fault("no memory at start", "ran out of memory (exit status 1): MemoryError", 'args = ["--fault", "starve"]'),
        Fault("no memory in a trial", "the engine ran out of memory (exit status 1): MemoryError",
              'args = ["--fault", "starve-later"]', finding=FindingCode.ENGINE_DIED),
        Fault("not installed", "cannot start /nowhere/quill; is it installed?", 'program = "/nowhere/quill"'),
    ]  # fmt: skip


class Harness:
    """``bakeoff run``, and the time of each line of its error output."""

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
        """Wait for the load of the bad engine's first trial; returns the engine's process."""
        while self.process.poll() is None:
            logs = self.folder.glob("*/trials/r1-bad-1/*.frames")
            streams = (stream for log in logs for stream in FrameLog(log, StreamRecord))
            if sum(stream.phase is Phase.MEASURED for stream in streams) > 3:
                descendants = psutil.Process(self.process.pid).children(recursive=True)
                return next(child for child in descendants if SERVER in child.cmdline() and "black" in child.cmdline())
            time.sleep(0.01)
        sys.exit(f"the run ended too early: {self.lines}")

    def finish(self) -> int:
        """Wait for the end of the run; returns its exit status."""
        code = self.process.wait(120)
        self._reader.join()
        return code

    def time_of(self, pattern: str) -> float:
        """Time of the first line that matches; infinity if none does."""
        return next((time_s for time_s, line in self.lines if re.search(pattern, line)), float("inf"))


def run_with(fault: Fault, folder: Path, site: Path, programs: Path, served: Path) -> Outcome:
    """Run the experiment with a fault."""
    harness = Harness(fault, folder, site, programs, served)
    injected_s = None
    if fault.inject:
        engine = harness.engine()
        injected_s = time.monotonic()
        fault.inject(engine)
    code = harness.finish()
    run = results.load(next(folder.glob("*/run.jsonl")).parent)
    trials = {trial.record.id: trial.record for trial in run.finished}
    first = trials.get("r1-bad-1")
    if injected_s is None:
        injected_s = harness.time_of("starting bad")
    finding = first.findings[0] if first and first.invalidating else None
    message = sentence(finding) if finding else run.manifest.failure or ""
    valid = {name for name, record in trials.items() if record.verdict is Verdict.VALID}
    return Outcome(
        message=message.splitlines()[0] if message else "",
        finding=finding.code if finding else None,
        reported_s=harness.time_of(r"\] bad c=1 " if first else "starting good") - injected_s,
        second="r1-bad-2" in valid,
        good=len({"r1-good-1", "r1-good-2"} & valid),
        left=len(marked_processes()),
        code=code,
    )


def main() -> None:
    bars = Bars()
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as listener:
        folder = Path(name)
        programs = install(folder / "site")
        served = model(folder / "model")
        with other_server(programs) as url:
            os.environ[MARK] = str(os.getpid())
            for fault in faults(listener.getsockname()[1], url):
                scratch = folder / fault.name.replace(" ", "-")
                scratch.mkdir()
                outcome = run_with(fault, scratch, folder / "site", programs, served)
                print(f"{fault.name:<21} {outcome.reported_s:6.2f} s of {fault.deadline_s:g} + {SLACK_S:g}"
                      f"  exit {outcome.code}  second {'valid' if outcome.second else '-':<5}"
                      f"  others {outcome.good} of 2  left {outcome.left}\n    {outcome.message}")  # fmt: skip
                _add(bars, fault, outcome)
    bars.finish()


def _add(bars: Bars, fault: Fault, outcome: Outcome) -> None:
    name = fault.name.replace(" ", "_")
    bars.add(f"{name}_named", outcome.finding is fault.finding and fault.expected in outcome.message, "==", 1)
    bars.add(f"{name}_late_s", outcome.reported_s - fault.deadline_s, "<=", SLACK_S)
    bars.add(f"{name}_others_go_on", outcome.good + (outcome.second if fault.restarts else 1), "==", 3)
    bars.add(f"{name}_processes_left", outcome.left, "==", 0)


class other_server:  # noqa: N801  (a context manager)
    """A running server with another model."""

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
