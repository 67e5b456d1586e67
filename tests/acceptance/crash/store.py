"""What was saved stays saved. Needs Linux, and root or user namespaces.

1. A writer is killed (SIGKILL) at random instants. All that it had acknowledged must be readable; at most the last
   record of a log may be torn, and a torn record must be reported.
2. ``bakeoff bench`` on a disk that is read-only, full, or fills up during the run must print one line and exit with 3.
   Every byte of an earlier run on it must be unchanged, and the recorded exchanges must be readable.
3. Two processes save a thousand runs each into one folder: all runs must be complete.
"""

import argparse
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

from bakeoff import results
from bakeoff.results.errors import RunUnreadable
from bakeoff.results.log.store import RunFolder, runs_below
from bakeoff.results.records import RunStatus
from benchmarks.bars import Bars, model_argument
from tests.acceptance import saving
from tests.acceptance.crash.harness_killed import Truth, bench
from tests.acceptance.small_disk import Disk, run_on_disk

KILLS_PER_RUN = 10
LONGEST_S = 0.06
"""A writer is killed at most this long after its first write; by then it has made tens of writes."""
FREE_KIB = (0, 8, 64, 256, 512, 768)


def killed_writer(run: RunFolder, rng: random.Random) -> bytes:
    """Run a writer in a process and kill it after a random time; returns its acknowledgements."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read_end)
        saving.Writer(run, saving.pipe_acknowledger(write_end)).write(rng)
    os.close(write_end)
    received = bytearray()
    started = threading.Event()

    def receive() -> None:
        while data := os.read(read_end, 1 << 16):
            received.extend(data)
            started.set()

    receiver = threading.Thread(target=receive)
    receiver.start()
    started.wait(timeout=60)
    time.sleep(rng.uniform(0, LONGEST_S))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    receiver.join()
    os.close(read_end)
    return bytes(received)


def kills(bars: Bars, count: int) -> None:
    rng = random.Random(6)
    total = dict.fromkeys(("acknowledged", "lost", "out_of_order", "unreadable", "torn", "untold"), 0)
    with tempfile.TemporaryDirectory() as root:
        for number in range(count):
            if number % KILLS_PER_RUN == 0:
                run = saving.new_run(Path(root), f"kill-{number}")
            acknowledged = list(saving.acknowledgements(killed_writer(run, random.Random(rng.random()))))
            total["acknowledged"] += len(acknowledged)
            try:
                readable = saving.readable_numbers(run)
            except RunUnreadable as error:
                print(f"kill {number + 1}: {error}")
                total["unreadable"] += 1
                continue
            records = {(kind, index) for kind, numbers in readable.items() for index in numbers}
            total["lost"] += len(set(acknowledged) - records)
            total["out_of_order"] += sum(numbers != list(range(len(numbers))) for numbers in readable.values())
            torn = run.trial(saving.PLAN.id).torn()
            total["torn"] += len(torn)
            total["untold"] += len(torn) - len(results.load(run.path).torn.get(saving.PLAN.id, []))
            if number % KILLS_PER_RUN == KILLS_PER_RUN - 1:
                shutil.rmtree(run.path)
    print(f"{count} kills: {total}")
    for name in ("lost", "out_of_order", "unreadable", "untold"):
        bars.add(f"killed_{name}", total[name], "==", 0)
    bars.add("killed_acknowledged", total["acknowledged"], ">=", count)
    bars.add("killed_torn", total["torn"], ">=", 1)


def disks(bars: Bars, model: str) -> None:
    truth = Truth()
    counts = dict.fromkeys(("exit_3", "one_line", "earlier_untouched", "readable"), 0)
    earlier = Path(tempfile.mkdtemp())
    try:
        saving.save(earlier, 1)
        (run,) = runs_below(earlier)
        for free in (None, *FREE_KIB):
            argv = bench(truth, model, Path("DISK/runs"))
            outcome = run_on_disk(Disk(str(run.path), argv, None if free is None else free << 10))
            lines = [line for line in outcome.stderr.splitlines() if "bakeoff:" in line]
            place = "read-only" if free is None else f"{free} KiB free"
            print(f"{place}: exit {outcome.code}, {outcome.readable} exchanges readable, {lines}")
            counts["exit_3"] += outcome.code == 3
            counts["one_line"] += len(lines) == 1 and "Traceback" not in outcome.stderr and "cannot" in lines[0]
            counts["earlier_untouched"] += outcome.untouched
            counts["readable"] += outcome.readable is not None
    finally:
        truth.stop()
        shutil.rmtree(earlier)
    for name, count in counts.items():
        bars.add(f"disk_{name}", count, "==", 1 + len(FREE_KIB))


def savers(bars: Bars, count: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        started = time.monotonic()
        pids = [_saver(Path(root), count) for _ in range(2)]
        failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)
        print(f"2 processes saved {count} runs each in {time.monotonic() - started:.1f} s")
        runs = [results.load(run.path) for run in runs_below(Path(root))]
        whole = sum(
            run.status is RunStatus.COMPLETE and len(run.finished) == len(run.all_requests) == 1 for run in runs
        )
    bars.add("savers_failed", failed, "==", 0)
    bars.add("saved_runs", whole, "==", 2 * count)


def _saver(root: Path, count: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        saving.save(root, count)
        status = 0
    finally:
        os._exit(status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="(default: %(default)s)")
    parser.add_argument("--runs", type=int, default=1_000, help="of each of two processes (default: %(default)s)")
    parser.add_argument("--disks", action=argparse.BooleanOptionalAction, default=True, help="or leave part 2 out")
    model_argument(parser)
    options = parser.parse_args()
    bars = Bars()
    kills(bars, options.kills)
    if options.disks:
        disks(bars, options.model)
    savers(bars, options.runs)
    bars.finish()


if __name__ == "__main__":
    main()
