"""``kill -9`` of the engine, and Ctrl-C, in the middle of a run on the real reference engine.

After the engine's death the run must be INVALID with the engine's last log lines and a
non-zero exit; after Ctrl-C it must be interrupted with its requests readable. Neither may leave a process behind.
"""

import argparse
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil

from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.records import RunStatus, Verdict
from benchmarks.bars import Bars, model_argument
from tests.acceptance.disturbed import DisturbedRun

EXPERIMENT = """
name = "killed"
repeats = 1
[model]
path = "{model}"
[[engines]]
adapter = "reference"
options = {{ threads = 1 }}
[workload]
name = "chat"
options = {{ scale = 0.03 }}
[[loads]]
concurrency = 4
[trial]
duration_s = 60
warm_up_s = 0
max_requests = 400
[client]
calibrate = false
[quality]
samples = 0
"""


def disturbed(model: str, disturb: Callable[[psutil.Process], None]) -> DisturbedRun:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "killed.toml")
        file.write_text(EXPERIMENT.format(model=model), encoding="utf-8")
        return DisturbedRun(["run", str(file)], disturb, requests=8)


def kill_engine(harness: psutil.Process) -> None:
    engine = next(p for p in harness.children(recursive=True) if "serve" in p.cmdline() and "--" not in p.cmdline())
    engine.send_signal(signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    model_argument(parser)
    options = parser.parse_args()
    killed = disturbed(options.model, kill_engine)
    print(f"engine killed: exit {killed.code} after {killed.seconds:.1f} s\n{killed.stderr}")
    interrupted = disturbed(options.model, lambda harness: harness.send_signal(signal.SIGINT))
    print(f"Ctrl-C: exit {interrupted.code} after {interrupted.seconds:.1f} s\n{interrupted.stderr}")
    trial = killed.finished[0].record
    bars = Bars()
    bars.add("killed_exit_code", killed.code, "==", 3)
    first = trial.findings[0].code if trial.verdict is Verdict.INVALID else None
    bars.add("killed_trial_is_invalid", first is FindingCode.ENGINE_DIED, "==", 1)
    bars.add("killed_log_lines_shown", len(trial.engine_log_tail) * ("signal 9" in killed.stderr), ">=", 1)
    bars.add("killed_status_is_failed", killed.run.status is RunStatus.FAILED, "==", 1)
    bars.add("killed_orphans", killed.orphans, "==", 0)
    bars.add("interrupted_exit_code", interrupted.code, "==", 130)
    bars.add("interrupted_status", interrupted.run.status is RunStatus.INTERRUPTED, "==", 1)
    bars.add("interrupted_requests_readable", len(interrupted.salvaged[0][1]), ">=", 8)
    bars.add("interrupted_orphans", interrupted.orphans, "==", 0)
    bars.finish()


if __name__ == "__main__":
    main()
