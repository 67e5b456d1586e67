"""Foreign load is reported for the trial in which it occurs, and for no other.

Each run has eight short repeats against a truth server. In half of the runs a burner keeps one core busy during one
repeat. It is a sibling process of the harness; its share of the machine comes from its own CPU time. Run nothing else
on the machine, because it would count as foreign load too.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import msgspec
import psutil
from rich.console import Console

from bakeoff import results
from bakeoff.harness.conduct.progress import PlainObserver
from bakeoff.harness.conduct.run import create_run, run_experiment
from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.harness.host.machine_state import machine_findings
from bakeoff.harness.truth import Schedule, Truth, truth_process
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.log.run_log import EngineStarted, RunLog, TrialFinished
from benchmarks.bars import Bars, model_argument

REPEATS = 8
_BURN = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True)\nwhile True: pass"
_TOLERANCE = 0.02
"""Fraction of all cores: a share this close to the limit may be reported either way."""
_CODES = frozenset({FindingCode.FOREIGN_LOAD, FindingCode.SOME_FOREIGN_LOAD})


class Repeat(msgspec.Struct):
    """One trial of one run.

    Attributes:
        number: of the repeat.
        share: measured foreign load as a fraction of all cores; None if unknown.
        flagged: whether it caused a warning or made the trial void.
        void: whether it made the trial void.
        burnt: fraction of all cores that the burner used meanwhile.
    """

    number: int
    share: float | None
    flagged: bool
    void: bool
    burnt: float = 0.0


class TrialAnnouncer(PlainObserver):
    """Prints when trials begin and end, for the parent process, which controls the burner."""

    def event(self, log: RunLog) -> None:
        """The burner may start once the engine is ready, and must stop when the trial has ended."""
        match event := log.events[-1]:
            case EngineStarted():
                print(f"begin {event.turn}", flush=True)
            case TrialFinished():
                print(f"end {event.record.repeat}", flush=True)
            case _:
                pass


class Burner:
    """A process that keeps one core busy on demand."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._since: tuple[float, float] | None = None

    def burn(self) -> None:
        """Start burning."""
        self._since = time.monotonic(), self._used_s()
        self._process.send_signal(signal.SIGCONT)

    def pause(self) -> float:
        """Pause; returns the fraction of all cores used since the start."""
        assert self._since is not None
        self._process.send_signal(signal.SIGSTOP)
        began, before_s = self._since
        used_s = self._used_s() - before_s
        return used_s / (time.monotonic() - began) / (os.cpu_count() or 1)

    def _used_s(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system


@contextlib.contextmanager
def burner() -> Generator[Burner]:
    """A paused burner on the last core."""
    core = max(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", _BURN, str(core)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        try:
            yield Burner(process)
        finally:
            process.kill()


def experiment(options: argparse.Namespace, url: str) -> Experiment:
    """Short repeats of four streams against a truth server."""
    data = {
        "name": "foreign-load",
        "repeats": REPEATS,
        "model": {"name": "truth", "tokenizer": options.model},
        "engines": [{"adapter": "reference", "url": url}],
        "workload": {"name": "random", "options": {"input_tokens": 16, "output_tokens": 8}},
        "loads": [{"concurrency": 4}],
        "trial": {"ramp_s": 0.2, "duration_s": options.seconds, "warm_up_s": 0.0},
        "client": {"calibrate": False},
        "quality": {"samples": 0},
    }
    return experiment_from(data, "foreign_load")


def run_repeats(options: argparse.Namespace, url: str, out: Path) -> None:
    """Run the experiment in this process and print its repeats."""
    config = experiment(options, url)
    folder = create_run(config, out)
    asyncio.run(run_experiment(config, folder, TrialAnnouncer(Console(stderr=True, quiet=True), config)))
    limit = config.trial.max_foreign_share
    for trial in results.load(folder.path).finished:
        findings = machine_findings(trial.telemetry, trial.window, limit)
        codes = {finding.code for finding in findings}
        share = trial.metrics["foreign_cpu_share"].value
        repeat = Repeat(trial.record.repeat, share, bool(codes & _CODES), FindingCode.FOREIGN_LOAD in codes)
        print(f"repeat {msgspec.json.encode(repeat).decode()}", flush=True)


def one_run(options: argparse.Namespace, url: str, burning: int | None) -> list[Repeat]:
    """Run once; the burner runs during the repeat ``burning``, or never if that is None."""
    argv = [sys.executable, "-m", "tests.acceptance.client.foreign_load", "--model", options.model]
    argv += ["--seconds", str(options.seconds), "--url", url]
    burnt_shares: dict[int, float] = {}
    repeats: list[Repeat] = []
    with burner() as cpu_burner, subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            event, _, value = line.strip().partition(" ")
            if event == "repeat":
                repeats.append(msgspec.json.decode(value, type=Repeat))
            elif event == "begin" and int(value) == burning:
                cpu_burner.burn()
            elif event == "end" and int(value) == burning:
                burnt_shares[int(value)] = cpu_burner.pause()
    return [msgspec.structs.replace(repeat, burnt=burnt_shares.get(repeat.number, 0.0)) for repeat in repeats]


def voids_above(repeat: Repeat, limit: float) -> bool:
    """Whether a repeat is void if the burner exceeded the limit during it."""
    return repeat.void or repeat.burnt <= limit + _TOLERANCE


async def measure_with_server(options: argparse.Namespace) -> None:
    async with truth_process(Schedule(ttft_s=0.01, itl_s=0.005), model="truth") as server:
        await asyncio.to_thread(measure, options, server)


def measure(options: argparse.Namespace, server: Truth) -> None:
    """Alternate runs with and without the burner, and check the bars."""
    limit = experiment(options, server.url).trial.max_foreign_share
    rng = random.Random(4)
    flagged = voided = flagged_elsewhere = flagged_runs = 0
    for number in range(1, options.runs + 1):
        burning = rng.randint(1, REPEATS)
        with_burner, without_burner = one_run(options, server.url, burning), one_run(options, server.url, None)
        (target,) = (repeat for repeat in with_burner if repeat.number == burning)
        flagged += target.flagged
        voided += voids_above(target, limit)
        flagged_elsewhere += sum(repeat.flagged for repeat in with_burner if repeat is not target)
        flagged_runs += any(repeat.flagged for repeat in without_burner)
        shares = ", ".join("–" if repeat.share is None else f"{repeat.share:.1%}" for repeat in without_burner)
        measured = "–" if target.share is None else f"{target.share:.1%}"
        print(f"run {number}: burner had {target.burnt:.1%} in repeat {burning}, seen {measured}; without it: {shares}")
    bars = Bars()
    bars.add("burner_flagged", flagged, "==", options.runs)
    bars.add("burner_above_the_limit_voids", voided, "==", options.runs)
    bars.add("quiet_runs_flagged", flagged_runs, "==", 0)
    bars.add("repeats_flagged_beside_the_burners", flagged_elsewhere, "==", 0)
    bars.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    model_argument(parser)
    parser.add_argument("--runs", type=int, default=20, help="runs with the burner, and as many without")
    parser.add_argument("--seconds", type=float, default=0.5, help="of load in each repeat")
    parser.add_argument("--url", help="play one run against this server (used by the script itself)")
    options = parser.parse_args()
    if options.url:
        with tempfile.TemporaryDirectory() as scratch:
            run_repeats(options, options.url, Path(scratch))
    else:
        asyncio.run(measure_with_server(options))


if __name__ == "__main__":
    main()
