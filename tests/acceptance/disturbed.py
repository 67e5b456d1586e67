"""A command of Bakeoff that is disturbed in its first load."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from bakeoff import results
from bakeoff.results.files.frames import FrameLog
from bakeoff.results.records import StreamRecord

_START_S, _END_S = 60.0, 180.0


class DisturbedRun:
    """One command, from its start to its end.

    Args:
        words: of the command, without ``--out``.
        disturb: called with the process of the command after its first requests.
        requests: number of these.

    Attributes:
        seconds: from the disturbance to the end.
        code: exit code.
        stderr: what it printed there.
        orphans: number of processes left.
        run: the stored run.
        finished: its finished trials.
        salvaged: its other trials that have requests.
    """

    def __init__(self, words: Sequence[str], disturb: Callable[[psutil.Process], None], requests: int = 1) -> None:
        with tempfile.TemporaryDirectory() as folder:
            argv = [str(Path(sys.executable).with_name("bakeoff")), *words, "--out", folder]
            harness = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            _await_requests(Path(folder), requests, harness)
            descendants = psutil.Process(harness.pid).children(recursive=True)
            disturb(psutil.Process(harness.pid))
            began = time.monotonic()
            _, self.stderr = harness.communicate(timeout=_END_S)
            self.seconds = time.monotonic() - began
            self.code = harness.returncode
            self.orphans = len(psutil.wait_procs(descendants, timeout=10)[1])
            self.run = results.load(next(Path(folder).glob("*/run.jsonl")).parent)
            self.finished, self.salvaged = self.run.finished, self.run.salvaged


def _await_requests(folder: Path, count: int, harness: subprocess.Popen[str]) -> None:
    """Wait until the raw log holds ``count`` exchanges."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and harness.poll() is None:
        logs = list(folder.glob("*/trials/*/streams-0.frames"))
        if logs and len(list(FrameLog(logs[0], StreamRecord))) >= count:
            return
        time.sleep(0.02)
    harness.kill()
    sys.exit(f"the run did not get going within {_START_S:g} s: {harness.communicate()[1]}")
