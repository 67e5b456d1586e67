"""Bar 5a: 100 starts and stops of a small engine with random kills leave no process and no listening port behind.

Somebody, or nobody, is killed with SIGKILL at a random moment: the engine, its guard, or the harness; while the engine
starts, serves or stops. Two engines take turns: a fake one that starts at once and leaves a daemon behind that is deaf
to signals, as one in four of the fake ones is itself, and the reference engine with a tiny model. Every process below
this one carries a mark in its environment, by which it is found wherever it went.
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

from benchmarks.bars import Bars, model_argument
from engines import EngineError, EngineSpec, Launch, Model, engine, launched, pick_port
from tests.engines.processes import fake_engine

MARK = "BAKEOFF_LIFE_CYCLE"
VICTIMS = ("engine", "guard", "harness", "nobody")
MOMENTS = ("start", "serve", "stop")
SLACK_S = 2.0
GRACES_S = (1.0, 0.5)
DEAF_SHARE = 0.25

MAKE_MODEL = """
import pathlib, sys
from tests.harness.tiny_model import tiny_model
tiny_model(*map(pathlib.Path, sys.argv[1:]))
"""
"""Run apart, so that this process, which forks, has no threads of torch."""
EVERY_REFERENCE = 10
"""One cycle in so many is the reference engine's."""


class Cycle(msgspec.Struct, frozen=True):
    """What happens in one start and stop.

    Attributes:
        victim: who is killed.
        moment: and when.
        delay_s: how long after the moment began.
        launch: of what.
    """

    victim: str
    moment: str
    delay_s: float
    launch: Launch


class Told(msgspec.Struct, frozen=True):
    """How it went.

    Attributes:
        error: the name of the error that was raised; empty for none.
        late_s: from the kill to the error, or to the end of the last process where the harness was killed.
        processes: that were left.
        listening: whether the port was.
        seen: processes that were found before the kill, where the engine served.
    """

    error: str
    late_s: float
    processes: int
    listening: bool
    seen: int = 0


def marked() -> list[psutil.Process]:
    """Every process that carries our mark and runs, but this one."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(MARK) == os.environ[MARK] and process.pid != os.getpid()
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue  # it has just ended, or is no business of ours
    return found


async def play(cycle: Cycle, log: Path) -> Told:
    """One cycle: a task that keeps the engine, and somebody who kills."""
    ready, leave = asyncio.Event(), asyncio.Event()
    struck_s, seen = float("inf"), 0

    async def keep() -> None:
        async with launched(cycle.launch, log) as server:
            ready.set()
            await _either(server.ended, leave)
            if died := server.died():
                raise died

    task = asyncio.ensure_future(keep())
    if cycle.moment != "start":
        await asyncio.wait([task, asyncio.ensure_future(ready.wait())], return_when=asyncio.FIRST_COMPLETED)
    if cycle.moment == "stop":
        leave.set()
    await asyncio.sleep(cycle.delay_s)
    if cycle.moment == "serve":
        seen = len(marked())
    if await _strike(cycle.victim, task):
        struck_s = time.monotonic()
    elif cycle.moment != "stop":
        leave.set()
    if cycle.victim == "nobody":
        leave.set()
    error = ""
    try:
        await task
    except EngineError as raised:
        error = type(raised).__name__
    return Told(error, time.monotonic() - struck_s, *left(cycle.launch.port), seen)


async def _either(*events: asyncio.Event) -> None:
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def _strike(victim: str, task: "asyncio.Future[None]") -> bool:
    """Kill the guard or what it runs; False where there is nobody to kill, or no more."""
    while victim in {"engine", "guard"} and not task.done():
        guard = next((child for child in psutil.Process().children() if "guard.py" in " ".join(_argv(child))), None)
        found = guard.children() if guard and victim == "engine" else [guard] if guard else []
        for process in found:
            if "guard.py" not in " ".join(_argv(process)) or victim == "guard":  # it is executed already
                process.kill()
                return True
        await asyncio.sleep(0.002)
    return False


def _argv(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def kill_harness(cycle: Cycle, log: Path) -> Told:
    """The same in a process of its own, which is killed."""
    pid = os.fork()
    if pid == 0:
        asyncio.run(play(msgspec.structs.replace(cycle, victim="nobody", delay_s=3600.0), log))
        os._exit(0)
    if cycle.moment != "start":
        deadline = time.monotonic() + cycle.launch.ready_timeout_s
        while time.monotonic() < deadline and not _listening(cycle.launch.port):
            time.sleep(0.01)
    time.sleep(cycle.delay_s)
    os.kill(pid, signal.SIGKILL)
    struck_s = time.monotonic()
    os.waitpid(pid, 0)
    limit_s = struck_s + sum(cycle.launch.stop_grace_s) + 10 * SLACK_S
    while marked() and time.monotonic() < limit_s:
        time.sleep(0.02)
    return Told("", time.monotonic() - struck_s, *left(cycle.launch.port))


def left(port: int) -> tuple[int, bool]:
    """Processes that are still there, and whether the port still listens, once the kernel has had a second for both."""
    deadline = time.monotonic() + 1.0
    while (found := (len(marked()), _listening(port))) != (0, False) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def _listening(port: int) -> bool:
    """Whether a socket listens; one that somebody else's connection was given is none of that."""
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
        deaf = ("ignore-SIGINT", "ignore-SIGTERM") if rng.random() < DEAF_SHARE else ()
        yield Cycle(victim, moment, rng.uniform(0, longest_s), reference() if slow else fake(*deaf))


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
        before = len(marked())

        def fake(*words: str) -> Launch:
            return fake_engine(folder, "orphan", *words, stop_grace_s=GRACES_S)

        def reference() -> Launch:
            spec = EngineSpec(dtype="float32", max_model_len=512)
            made = engine("reference", Model("tiny", str(tiny)), {"threads": 1, "num_blocks": 64}, spec)
            launch = made.launch(pick_port())
            assert launch is not None
            return msgspec.structs.replace(launch, stop_grace_s=GRACES_S)

        told = [(cycle, _told(cycle, folder)) for cycle in plan(options.cycles, options.seed, fake, reference)]
        _table(told)
        _bars(told, before)


def _told(cycle: Cycle, folder: Path) -> Told:
    log = folder / "engine.log"
    log.unlink(missing_ok=True)
    return kill_harness(cycle, log) if cycle.victim == "harness" else asyncio.run(play(cycle, log))


def _table(told: list[tuple[Cycle, Told]]) -> None:
    print(f"{'killed':<8} {'while it':<8} {'cycles':>6}  {'errors':<28} {'latest s':>8} {'processes':>9} {'ports':>5}")
    for victim in VICTIMS:
        for moment in MOMENTS:
            rows = [one for cycle, one in told if (cycle.victim, cycle.moment) == (victim, moment)]
            names = Counter(one.error or "none" for one in rows)
            errors = ", ".join(f"{count} {name}" for name, count in sorted(names.items()))
            late = [one.late_s for one in rows if one.late_s > 0]
            latest = f"{max(late):.2f}" if late and victim != "nobody" else "-"
            print(f"{victim:<8} {moment + 's':<8} {len(rows):>6}  {errors:<28} {latest:>8} "
                  f"{sum(one.processes for one in rows):>9} {sum(one.listening for one in rows):>5}")  # fmt: skip


def _bars(told: list[tuple[Cycle, Told]], before: int) -> None:
    struck = [(cycle, one) for cycle, one in told if cycle.victim in {"engine", "guard"} and one.late_s > 0]
    named = [one for cycle, one in struck if cycle.moment != "stop"]
    harness = [one.late_s - sum(cycle.launch.stop_grace_s) for cycle, one in told if cycle.victim == "harness"]
    bars = Bars()
    bars.add("cycles", len(told), ">=", 100)
    bars.add("processes_before", before, "==", 0)
    bars.add("processes_seen", max(one.seen for _, one in told), ">=", 3)
    bars.add("processes_left", sum(one.processes for _, one in told), "==", 0)
    bars.add("ports_left", sum(one.listening for _, one in told), "==", 0)
    bars.add("kills_without_a_name", sum(one.error == "" for one in named), "==", 0)
    bars.add("latest_name_s", max(one.late_s for _, one in struck), "<=", SLACK_S)
    bars.add("latest_end_after_the_harness_s", max(harness), "<=", SLACK_S)
    bars.add("errors_without_a_kill", sum(bool(one.error) for cycle, one in told if cycle.victim == "nobody"), "==", 0)
    bars.finish()


if __name__ == "__main__":
    sys.exit(main())
