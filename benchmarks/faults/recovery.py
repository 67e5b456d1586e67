"""Recovery times that a run reports beside the logs of two replicas, one of which is killed and started again.

    python -m benchmarks.faults.recovery [--restarts 20] [--seed 1]

Two truth servers share an open load of 40 requests/s, round robin. At random times one of them is killed and started
again a random time later. Its log shows when it was asked again: from then on every request succeeds. The run's
recovery time, counted from the same kill, must be within a second of that.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bakeoff import run as run_experiment
from bakeoff.engines import pick_port
from bakeoff.harness.telemetry.own_processes import at_address
from bakeoff.harness.truth.answered import Answered
from bakeoff.results.files.jsonl import read_log
from bakeoff.results.metrics.recovery import recoveries
from bakeoff.results.units import NS_PER_S
from benchmarks.bars import Bars

RATE, SLOT_S, MAX_ERROR_S = 40.0, 14.0, 1.0


def command(port: int, log: Path) -> list[str]:
    """Starts a truth server that appends its answers to a log."""
    return [
        sys.executable, "-m", "bakeoff", "lab", "truth", "--port", str(port), "--ttft-ms", "30", "--itl-ms", "10",
        "--log", str(log),
    ]  # fmt: skip


def faults_of(ports: list[int], logs: list[Path], count: int, rng: random.Random) -> list[dict[str, Any]]:
    """Restarts at random times, one in each slot of time, each of a random replica and length."""
    found: list[dict[str, Any]] = []
    for number in range(count):
        replica = rng.randrange(len(ports))
        found.append({
            "action": "restart", "replica": f"127.0.0.1:{ports[replica]}",
            "at_s": round(SLOT_S * number + rng.uniform(1, 3), 3), "for_s": round(rng.uniform(0.5, 5), 3),
            "end": command(ports[replica], logs[replica]),
        })  # fmt: skip
    return found


def experiment(ports: list[int], faults: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": "recovery", "repeats": 1, "model": {"tokenizer": "approximate"}, "faults": faults,
        "engines": [{"adapter": "openai", "label": "two", "urls": [{"url": f"http://127.0.0.1:{p}"} for p in ports]}],
        "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 10, "spread": 0.0}},
        "loads": [{"rate_per_s": RATE, "arrival": "poisson"}], "slo": {"ttft_s": 0.2},
        "trial": {
            "warm_up_s": 0.0, "ramp_s": 2.0, "duration_s": SLOT_S * len(faults), "max_foreign_share": 1.0,
            "max_window_s": SLOT_S * len(faults),
        },
        "client": {"calibrate": False}, "quality": {"samples": 0},
    }  # fmt: skip


def asked_again_ns(log: Path, after_ns: int) -> int:
    """When a replica got its first request after an instant."""
    return min(each.start_ns for each in read_log(log, Answered).records if each.start_ns >= after_ns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, ports = Path(temporary), [pick_port(), pick_port()]
        logs = [folder / f"{port}.jsonl" for port in ports]
        faults = faults_of(ports, logs, options.restarts, random.Random(options.seed))
        for port, log in zip(ports, logs, strict=True):
            subprocess.Popen(command(port, log), start_new_session=True, stdout=subprocess.DEVNULL)
        time.sleep(3)
        run = run_experiment(experiment(ports, faults), out=folder / "runs")
        (trial,) = run.finished
        found = recoveries(trial.requests, trial.record.faults, trial.record.window, run.manifest.slo, {})
        print("replica       down    start    run   log   difference, s")
        within = 0
        for each in found:
            assert each.fault.ready_ns is not None, each.fault.error
            log = logs[[f"127.0.0.1:{port}" for port in ports].index(each.fault.replica or "")]
            truth_s = (asked_again_ns(log, each.fault.ended_ns or 0) - each.fault.begun_ns) / NS_PER_S
            error_s = (each.recovered_s if each.recovered_s is not None else float("inf")) - truth_s
            within += abs(error_s) <= MAX_ERROR_S
            figures = (each.down_s, each.start_s, each.recovered_s, truth_s, error_s)
            print(each.fault.replica, *("–" if value is None else f"{value:7.3f}" for value in figures), sep="  ")
        for port in ports:
            for pid in at_address(f"http://127.0.0.1:{port}").pids:
                os.kill(pid, signal.SIGTERM)
    bars = Bars()
    bars.add("recoveries_within_a_second", within, "==", options.restarts)
    bars.finish()


if __name__ == "__main__":
    main()
