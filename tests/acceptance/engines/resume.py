"""A run resumed after ``kill -9`` repeats no finished trial; a changed flag repeats one engine's trials only.

Two reference engines under two loads, twice, give eight trials. The harness is killed when
three of them are finished; the same command with ``--resume latest`` must measure exactly the other five. Then one
engine's flag is changed: exactly its four trials must be measured again. Last, without a change, no trial must be.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bakeoff.results.log.store import RunFolder
from bakeoff.results.records import TrialRecord
from benchmarks.bars import Bars, model_argument

KILL_AFTER, TRIALS, OF_ONE_ENGINE = 3, 8, 4
EXPERIMENT = """
name = "resumed"
repeats = 2
[model]
name = "small"
path = "{model}"
[spec]
dtype = "bfloat16"
[[engines]]
adapter = "reference"
label = "a"
[[engines]]
adapter = "reference"
label = "b"
options = {{ block_size = {block_size} }}
[workload]
name = "random"
options = {{ input_tokens = 16, output_tokens = 8 }}
[[loads]]
concurrency = 1
[[loads]]
concurrency = 2
[trial]
duration_s = 1.5
min_requests = 2
[client]
calibrate = false
"""


def command(folder: Path, *more: str) -> list[str]:
    bakeoff = Path(sys.executable).with_name("bakeoff")
    return [str(bakeoff), "run", str(folder / "e.toml"), "--out", str(folder / "runs"), *more]


def run_until_killed(folder: Path) -> int:
    """Start a run and kill the harness when three trials are finished; returns the number of finished trials."""
    with (folder / "killed.log").open("wb") as log:
        process = subprocess.Popen(command(folder), stdout=log, stderr=log)
        while len(finished(folder)) < KILL_AFTER and process.poll() is None:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    return len(finished(folder))


def finished(folder: Path) -> list[TrialRecord]:
    logs = [RunFolder(path.parent).read_log() for path in folder.glob("runs/*/run.jsonl")]
    return [record for log in logs for record in log.finished.values()]


def resume(folder: Path) -> tuple[list[TrialRecord], int]:
    """Resume; returns the trials of the new run and the exit status."""
    before = set((folder / "runs").iterdir())
    done = subprocess.run(command(folder, "--resume", "latest"), capture_output=True, text=True, check=False)
    new = [path for path in (folder / "runs").iterdir() if path not in before]
    if done.returncode or len(new) != 1:
        print(done.stderr)
        return [], done.returncode
    return list(RunFolder(new[0]).read_log().finished.values()), done.returncode


def measured(trials: list[TrialRecord]) -> list[str]:
    """Ids of the trials that were not reused."""
    return sorted(trial.id for trial in trials if trial.reused_from is None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    model_argument(parser)
    model = parser.parse_args().model
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "e.toml").write_text(EXPERIMENT.format(model=model, block_size=16))
        before = run_until_killed(folder)
        after_kill, _ = resume(folder)
        (folder / "e.toml").write_text(EXPERIMENT.format(model=model, block_size=32))
        after_change, _ = resume(folder)
        unchanged, status = resume(folder)
        for title, trials in (("kill -9", after_kill), ("a changed flag", after_change), ("no change", unchanged)):
            print(f"after {title}: {len(trials)} trials, measured anew: {', '.join(measured(trials)) or 'none'}")
    others = [trial for trial in measured(after_change) if "-b-" not in trial]
    bars = Bars()
    bars.add("trials_finished_before_the_kill", before, ">=", KILL_AFTER)
    bars.add("trials_after_the_kill", len(after_kill), "==", TRIALS)
    bars.add("measured_anew_after_the_kill", len(measured(after_kill)), "==", TRIALS - before)
    bars.add("measured_anew_after_a_changed_flag", len(measured(after_change)), "==", OF_ONE_ENGINE)
    bars.add("of_the_unchanged_engine", len(others), "==", 0)
    bars.add("measured_anew_without_a_change", len(measured(unchanged)), "==", 0)
    bars.add("exit_status_of_the_last", status, "==", 0)
    bars.finish()


if __name__ == "__main__":
    main()
