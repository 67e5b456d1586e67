"""Bar: a worker or a sampler that is stopped or killed costs its trial, not the run, and never hangs it.

Run by ``make bench-crash``. ``bakeoff bench`` measures two levels of 5 s on a truth server; one child is stopped or
killed two seconds after the first request. The run must end at most 15 s later than an undisturbed one, with exit code
3, one INVALID trial, no traceback and no process left behind.
"""

import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import psutil

import results
from benchmarks.bars import Bars
from results.records import Verdict

MAX_EXCESS_S, DISTURBED_AFTER_S = 15.0, 2.0
CHILDREN = {"worker": "harness.client", "sampler": "harness.telemetry"}


@contextlib.contextmanager
def serving() -> Generator[str]:
    """A truth server; yields its address."""
    argv = [sys.executable, "-m", "bakeoff", "truth"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = re.search(r"http://[\d.:]+", server.stdout.readline())
        assert address is not None
        yield address.group()
        server.send_signal(signal.SIGINT)
        server.communicate()


class DisturbedRun:
    """One command; ``child`` gets a signal in the first load.

    Attributes:
        seconds: from the first request to the end of the command.
    """

    def __init__(self, url: str, child: str | None, sent: signal.Signals) -> None:
        with tempfile.TemporaryDirectory() as folder:
            argv = [
                sys.executable, "-m", "bakeoff", "bench", "--url", url, "--engine", "openai", "--model", "m",
                "--tokenizer", "approximate", "--no-calibrate", "--max-foreign-share", "1", "--concurrency", "1",
                "--concurrency", "2", "--duration", "5", "--ramp", "1", "--out", folder,
            ]  # fmt: skip
            harness = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            while not list(Path(folder).glob("*/trials/*/streams-0.frames")):
                time.sleep(0.05)
            began = time.monotonic()
            time.sleep(DISTURBED_AFTER_S)
            descendants = psutil.Process(harness.pid).children(recursive=True)
            for process in descendants:
                if child is not None and CHILDREN[child] in process.cmdline():
                    process.send_signal(sent)
            _, self.stderr = harness.communicate(timeout=180)
            self.seconds = time.monotonic() - began
            self.code = harness.returncode
            self.orphans = len(psutil.wait_procs(descendants, timeout=5)[1])
            run = results.load(next(Path(folder).glob("*/run.jsonl")).parent)
            self.verdicts = [trial.record.verdict for trial in run.finished]
            self.codes = [finding.code for trial in run.finished for finding in trial.record.invalidating]


def main() -> None:
    """Disturb each child in both ways, then print the bars."""
    bars = Bars()
    with serving() as url:
        undisturbed = DisturbedRun(url, None, signal.SIGKILL)
        print(f"undisturbed: exit {undisturbed.code} after {undisturbed.seconds:.1f} s", flush=True)
        bars.add("undisturbed exit code", undisturbed.code, "==", 0)
        for child in CHILDREN:
            for sent in (signal.SIGSTOP, signal.SIGKILL):
                run, name = DisturbedRun(url, child, sent), f"{child} {sent.name}"
                excess_s = run.seconds - undisturbed.seconds
                print(f"{name}: exit {run.code}, {excess_s:+.1f} s, {json.dumps(run.codes)}\n{run.stderr}", flush=True)
                bars.add(f"{name}: seconds longer", excess_s, "<=", MAX_EXCESS_S)
                bars.add(f"{name}: exit code", run.code, "==", 3)
                bars.add(f"{name}: INVALID trials", run.verdicts.count(Verdict.INVALID), "==", 1)
                bars.add(f"{name}: finished trials", len(run.verdicts), "==", 2)
                bars.add(f"{name}: tracebacks", run.stderr.count("Traceback"), "==", 0)
                bars.add(f"{name}: processes left", run.orphans, "==", 0)
    bars.finish()


if __name__ == "__main__":
    main()
