"""``kill -9`` of the harness at random instants.

The harness sends load to a truth server at concurrency 8. It is killed alternately after a random number of answers,
which is during the load on a machine of any speed, and after a random time, which may be while it starts or ends. After
each kill, every process that it started must be gone, every request that had ended must be readable, at most one line
may be torn, and the run must be incomplete.
"""

import argparse
import dataclasses
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from bakeoff import results
from bakeoff.engines import pick_port
from bakeoff.harness.conduct.recovery import recover
from bakeoff.results.log.store import RunFolder
from bakeoff.results.records import RunStatus
from benchmarks.bars import Bars, model_argument

CONCURRENCY, TOKENS, DURATION_S = 8, 20, 2.0
WHOLE_RUN_S, WHOLE_RUN_ANSWERS = 6.0, 200
"""Approximate duration and answers of an undisturbed run: the upper bounds of random instants."""


class Truth:
    """The truth server as a plain child process."""

    def __init__(self) -> None:
        self.port = pick_port()
        schedule = {"ttft_s": 0.02, "itl_s": 0.002, "tokens_per_chunk": 1}
        order = json.dumps({"schedule": schedule, "port": self.port, "core": None})
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bakeoff.harness.truth", order], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def whole_answers(self) -> int:
        """Answers whose last token has been written."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"answered\n")
        self.process.stdin.flush()
        answers = json.loads(self.process.stdout.readline())
        return sum(len(answer["written_ns"]) == answer["tokens"] for answer in answers)

    def stop(self) -> None:
        """End it."""
        self.process.communicate()


def bench(truth: Truth, model: str, out: Path) -> list[str]:
    """The command line of a short run against the truth server."""
    return [
        str(Path(sys.executable).with_name("bakeoff")), "bench", "--engine", "reference", "--workload", "random",
        "--url", f"http://127.0.0.1:{truth.port}", "--model", "truth", "--tokenizer", model,
        "--concurrency", str(CONCURRENCY), "--duration", str(DURATION_S), "--out", str(out),
    ]  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Instant:
    """When to kill a harness: after these seconds and this number of answers, or when it has ended."""

    seconds: float = 0.0
    answers: int = 0

    def wait(self, harness: subprocess.Popen[bytes], truth: Truth, before: int) -> None:
        """Wait for the instant; ``before`` is the number of answers to earlier runs."""
        time.sleep(self.seconds)
        while harness.poll() is None and truth.whole_answers() - before < self.answers:
            time.sleep(0.01)


def kill_once(truth: Truth, model: str, instant: Instant) -> dict[str, int]:
    """One run killed at ``instant``; returns counts of what went wrong and what was saved."""
    with tempfile.TemporaryDirectory() as folder:
        before = truth.whole_answers()
        argv = bench(truth, model, Path(folder))
        harness = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        instant.wait(harness, truth, before)
        children = psutil.Process(harness.pid).children(recursive=True) if harness.poll() is None else []
        complete = harness.poll() is not None
        harness.kill()
        harness.wait()
        _, alive = psutil.wait_procs(children, timeout=10)
        whole = truth.whole_answers() - before
        return {"orphans": len(alive), **_read_back(Path(folder), whole, complete=complete)}


def _read_back(folder: Path, whole: int, *, complete: bool) -> dict[str, int]:
    logs = list(folder.glob("*/run.jsonl"))
    if not logs:
        return {"lost": 0, "torn": 0, "wrong_status": 0, "saved": 0, "unreadable": 0}
    run_folder = RunFolder.open(logs[0].parent)
    recover(run_folder)
    run = results.load(run_folder.path)
    expected = RunStatus.COMPLETE if complete else RunStatus.INCOMPLETE
    streams = [log for plan in run.manifest.trials for log in run_folder.trial(plan.id).stream_logs()]
    saved = sum(len(list(log)) for log in streams)
    # An answer that had just been written may not have reached the harness when it was killed: one per slot.
    lost = max(0, whole - CONCURRENCY - saved)
    unreadable = saved - len(run.all_requests)
    torn = sum(log.torn_bytes > 0 for log in streams)
    return {
        "lost": lost, "torn": max(0, torn - 1), "wrong_status": int(run.status is not expected),
        "saved": saved, "unreadable": unreadable,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--instants", type=int, default=20)
    model_argument(parser)
    options = parser.parse_args()
    rng = random.Random(6)
    truth = Truth()
    total: dict[str, int] = {}
    try:
        for number in range(options.instants):
            after_seconds, after_answers = rng.uniform(0.5, WHOLE_RUN_S), rng.randint(1, WHOLE_RUN_ANSWERS)
            instant = Instant(seconds=after_seconds) if number % 2 else Instant(answers=after_answers)
            counts = kill_once(truth, options.model, instant)
            print(f"kill {number + 1:2}, {instant}: {counts}")
            total = {name: total.get(name, 0) + count for name, count in counts.items()}
    finally:
        truth.stop()
    bars = Bars()
    for name in ("lost", "unreadable", "torn", "wrong_status", "orphans"):
        bars.add(name, total[name], "==", 0)
    bars.add("saved_requests", total["saved"], ">=", 1)
    bars.finish()


if __name__ == "__main__":
    main()
