"""100 starts and stops of a small engine with random kills leave no process and no listening port behind.

In each cycle the engine, its guard, the harness, or no process is killed with SIGKILL at a random moment while the
engine starts, serves or stops. Two engines take turns: a fake engine, which starts at once and leaves behind a daemon
that ignores signals, and the reference engine with a tiny model. One in four fake engines ignores signals itself. A
mark in the environment of every descendant of this process identifies it, whatever its parent is by then.
"""

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil

from bakeoff.engines import EngineError, EngineSpec, Launch, Model, engine, launched, pick_port
from benchmarks.bars import Bars, model_argument
from tests.engines.processes import fake_engine

MARK = "BAKEOFF_LIFE_CYCLE"
VICTIMS = ("engine", "guard", "harness", "nobody")
MOMENTS = ("start", "serve", "stop")
SLACK_S = 2.0
GRACES_S = (1.0, 0.5)
IGNORING_SHARE = 0.25
"""Fraction of the fake engines that ignore SIGINT and SIGTERM."""

MAKE_MODEL = """
import pathlib, sys
from tests.harness.tiny_model import tiny_model
tiny_model(*map(pathlib.Path, sys.argv[1:]))
"""
"""Run in its own process, so that this process, which forks, has no threads of torch."""
EVERY_REFERENCE = 10
"""The reference engine runs in one of this many cycles."""


class Cycle(msgspec.Struct, frozen=True):
    """One start and stop of an engine.

    Attributes:
        victim: what is killed.
        moment: phase in which it is killed.
        delay_s: time from the start of that phase to the kill.
        launch: of the engine.
    """

    victim: str
    moment: str
    delay_s: float
    launch: Launch


class CycleResult(msgspec.Struct, frozen=True):
    """The result of a cycle.

    Attributes:
        error: name of the error that was raised; empty for none.
        late_s: time from the kill to the error; if the harness was killed, to the end of the last process.
        processes: number of processes left behind.
        listening: whether the port still listened.
        seen: number of marked processes before the kill, if the engine served.
    """

    error: str
    late_s: float
    processes: int
    listening: bool
    seen: int = 0


def marked_processes() -> list[psutil.Process]:
    """Every running process with our mark, except this one."""
    processes: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            is_marked = process.environ().get(MARK) == os.environ[MARK] and process.pid != os.getpid()
            if is_marked and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except psutil.Error:
            continue  # it has just ended, or we may not read its environment
    return processes


async def run_cycle(cycle: Cycle, log: Path) -> CycleResult:
    """Run one cycle: one task keeps the engine running while this one kills the victim."""
    ready, stop_requested = asyncio.Event(), asyncio.Event()
    killed_s, seen = float("inf"), 0

    async def keep() -> None:
        async with launched(cycle.launch, log) as server:
            ready.set()
            await _wait_for_any(server.ended, stop_requested)
            if died := server.died():
                raise died

    task = asyncio.ensure_future(keep())
    if cycle.moment != "start":
        await asyncio.wait([task, asyncio.ensure_future(ready.wait())], return_when=asyncio.FIRST_COMPLETED)
    if cycle.moment == "stop":
        stop_requested.set()
    await asyncio.sleep(cycle.delay_s)
    if cycle.moment == "serve":
        seen = len(marked_processes())
    if await _kill(cycle.victim, task):
        killed_s = time.monotonic()
    elif cycle.moment != "stop":
        stop_requested.set()
    if cycle.victim == "nobody":
        stop_requested.set()
    error = ""
    try:
        await task
    except EngineError as engine_error:
        error = type(engine_error).__name__
    return CycleResult(error, time.monotonic() - killed_s, *remains(cycle.launch.port), seen)


async def _wait_for_any(*events: asyncio.Event) -> None:
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def _kill(victim: str, task: "asyncio.Future[None]") -> bool:
    """Kill the guard or the engine; returns False if neither is the victim, or the task ended first."""
    while victim in {"engine", "guard"} and not task.done():
        guard = next((child for child in psutil.Process().children() if "guard.py" in " ".join(_argv(child))), None)
        targets = guard.children() if guard and victim == "engine" else [guard] if guard else []
        for process in targets:
            # A child of the guard is the engine only after its exec.
            if "guard.py" not in " ".join(_argv(process)) or victim == "guard":
                process.kill()
                return True
        await asyncio.sleep(0.002)
    return False


def _argv(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def kill_harness(cycle: Cycle, log: Path) -> CycleResult:
    """Run a cycle in a forked harness process, and kill that process."""
    pid = os.fork()
    if pid == 0:
        asyncio.run(run_cycle(msgspec.structs.replace(cycle, victim="nobody", delay_s=3600.0), log))
        os._exit(0)
    if cycle.moment != "start":
        deadline = time.monotonic() + cycle.launch.ready_timeout_s
        while time.monotonic() < deadline and not _listening(cycle.launch.port):
            time.sleep(0.01)
    time.sleep(cycle.delay_s)
    os.kill(pid, signal.SIGKILL)
    killed_s = time.monotonic()
    os.waitpid(pid, 0)
    limit_s = killed_s + sum(cycle.launch.stop_grace_s) + 10 * SLACK_S
    while marked_processes() and time.monotonic() < limit_s:
        time.sleep(0.02)
    return CycleResult("", time.monotonic() - killed_s, *remains(cycle.launch.port))


def remains(port: int) -> tuple[int, bool]:
    """Number of remaining processes, and whether the port still listens, after at most a second for the kernel."""
    deadline = time.monotonic() + 1.0
    while (remaining := (len(marked_processes()), _listening(port))) != (0, False) and time.monotonic() < deadline:
        time.sleep(0.02)
    return remaining


def _listening(port: int) -> bool:
    """Whether a socket listens on the port; a connection that uses the same port number does not count."""
    return any(
        connection.laddr.port == port and connection.status == psutil.CONN_LISTEN
        for connection in psutil.net_connections("tcp")
    )


def plan(cycles: int, seed: int, fake: Callable[..., Launch], reference: Callable[[], Launch]) -> Iterator[Cycle]:
    """Every victim at every moment, in random order with random delays."""
    rng = random.Random(seed)
    kinds = [(victim, moment) for victim in VICTIMS for moment in MOMENTS]
    drawn = [kinds[i % len(kinds)] for i in range(cycles)]
    rng.shuffle(drawn)
    for number, (victim, moment) in enumerate(drawn):
        slow = number % EVERY_REFERENCE == EVERY_REFERENCE - 1
        longest_s = {"start": 5.0 if slow else 0.2, "serve": 0.1, "stop": 0.3 if slow else 0.05}[moment]
        options = ("ignore-SIGINT", "ignore-SIGTERM") if rng.random() < IGNORING_SHARE else ()
        yield Cycle(victim, moment, rng.uniform(0, longest_s), reference() if slow else fake(*options))


def main() -> None:
    parser = argparse.ArgumentParser()
    model_argument(parser)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ[MARK] = str(os.getpid())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny = folder / "tiny"
        subprocess.run([sys.executable, "-c", MAKE_MODEL, tiny, options.model], check=True, stderr=subprocess.DEVNULL)
        before = len(marked_processes())

        def fake(*words: str) -> Launch:
            return fake_engine(folder, "orphan", *words, stop_grace_s=GRACES_S)

        def reference() -> Launch:
            spec = EngineSpec(dtype="float32", max_model_len=512)
            reference_engine = engine("reference", Model("tiny", str(tiny)), {"threads": 1, "num_blocks": 64}, spec)
            launch = reference_engine.launch(pick_port())
            assert launch is not None
            return msgspec.structs.replace(launch, stop_grace_s=GRACES_S)

        results = [(cycle, _run(cycle, folder)) for cycle in plan(options.cycles, options.seed, fake, reference)]
        _table(results)
        _bars(results, before)


def _run(cycle: Cycle, folder: Path) -> CycleResult:
    log = folder / "engine.log"
    log.unlink(missing_ok=True)
    return kill_harness(cycle, log) if cycle.victim == "harness" else asyncio.run(run_cycle(cycle, log))


def _table(results: list[tuple[Cycle, CycleResult]]) -> None:
    print(f"{'killed':<8} {'while it':<8} {'cycles':>6}  {'errors':<28} {'latest s':>8} {'processes':>9} {'ports':>5}")
    for victim in VICTIMS:
        for moment in MOMENTS:
            rows = [result for cycle, result in results if (cycle.victim, cycle.moment) == (victim, moment)]
            names = Counter(result.error or "none" for result in rows)
            errors = ", ".join(f"{count} {name}" for name, count in sorted(names.items()))
            late = [result.late_s for result in rows if result.late_s > 0]
            latest = f"{max(late):.2f}" if late and victim != "nobody" else "-"
            print(f"{victim:<8} {moment + 's':<8} {len(rows):>6}  {errors:<28} {latest:>8} "
                  f"{sum(result.processes for result in rows):>9} "
                  f"{sum(result.listening for result in rows):>5}")  # fmt: skip


def _bars(results: list[tuple[Cycle, CycleResult]], before: int) -> None:
    kills = [(cycle, result) for cycle, result in results if cycle.victim in {"engine", "guard"} and result.late_s > 0]
    reported_kills = [result for cycle, result in kills if cycle.moment != "stop"]
    harness_ends_s = [
        result.late_s - sum(cycle.launch.stop_grace_s) for cycle, result in results if cycle.victim == "harness"
    ]
    bars = Bars()
    bars.add("cycles", len(results), ">=", 100)
    bars.add("processes_before", before, "==", 0)
    bars.add("processes_seen", max(result.seen for _, result in results), ">=", 3)
    bars.add("processes_left", sum(result.processes for _, result in results), "==", 0)
    bars.add("ports_left", sum(result.listening for _, result in results), "==", 0)
    bars.add("kills_without_a_name", sum(result.error == "" for result in reported_kills), "==", 0)
    bars.add("latest_name_s", max(result.late_s for _, result in kills), "<=", SLACK_S)
    bars.add("latest_end_after_the_harness_s", max(harness_ends_s), "<=", SLACK_S)
    errors = [result.error for cycle, result in results if cycle.victim == "nobody"]
    bars.add("errors_without_a_kill", sum(map(bool, errors)), "==", 0)
    bars.finish()


if __name__ == "__main__":
    sys.exit(main())
