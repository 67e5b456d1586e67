"""How long the dashboard takes to answer with a list of 10,000 runs, on this machine.

    python -m tests.acceptance.dashboard.pages [--runs 10000]

The runs are copies of one small run under names and times of their own. The dashboard is started through the command
line. One client requests the list again and again, without a filter, with every kind of filter, and at late pages:
first while the runs' logs are still being folded in the background, then when all are folded.
"""

import argparse
import contextlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np

from bakeoff.results.index import INDEX_FILE, Index
from bakeoff.results.log.run_log import Source
from bakeoff.results.log.store import RunFolder
from benchmarks.bars import Bars
from tests.results.builders import FAST, LOADS, SLOW, Sheet, build_run

REQUESTS, GOAL_S = 200, 0.2
FIRST = datetime(2025, 1, 1, tzinfo=UTC)
VIEWS = (
    "", "?page=2", "?page=150", "?q=xeon", "?q=no-such-word", "?engine=reference", "?branch=side",
    "?status=complete&page=40", "?q=c%3D1&branch=main", "?name=demo",
)  # fmt: skip


def runs_in(root: Path, count: int) -> None:
    """Make ``count`` run folders."""
    sheet = Sheet(
        engines={"reference": FAST, "transformers": SLOW}, loads=LOADS[:1], repeats=1, requests=3, tokens=4, invalid=()
    )
    with tempfile.TemporaryDirectory() as scratch:
        template = build_run(Path(scratch), sheet)
        started, *events = RunFolder.open(template).read_log().events
        for number in range(count):
            created = FIRST + timedelta(minutes=37 * number)
            run = root / f"{created:%Y%m%d-%H%M%S}-demo-{number:04x}"
            shutil.copytree(template, run)
            source = Source(f"{number:09x}", "side" if number % 7 == 0 else "main")
            renamed = msgspec.structs.replace(started, run_id=run.name, created_utc=created.isoformat(), source=source)
            RunFolder(run).write_log([renamed, *events])


@contextlib.contextmanager
def dashboard(root: Path) -> Iterator[str]:
    """Start a dashboard through the command line; yields its address."""
    command = [str(Path(sys.executable).with_name("bakeoff")), "dashboard", str(root), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().removeprefix("dashboard: ").strip()
        finally:
            process.terminate()
            process.wait(30)


def response_times_s(address: str) -> list[float]:
    """The response time of each request for the list."""
    times_s: list[float] = []
    for number in range(REQUESTS):
        start = time.perf_counter()
        with urllib.request.urlopen(address + VIEWS[number % len(VIEWS)]) as answer:
            page = answer.read()
        times_s.append(time.perf_counter() - start)
        assert b"<h1>Runs</h1>" in page
    return times_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000, help="in the folder (default: %(default)s)")
    count = parser.parse_args().runs
    bars = Bars()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        runs_in(root, count)
        with dashboard(root) as address:
            start = time.perf_counter()
            urllib.request.urlopen(address).read()
            print(f"first answer, the folder never seen before: {time.perf_counter() - start:.1f} s")
            while_folding = response_times_s(address)
        start = time.perf_counter()
        with Index(root) as index:
            left = index.unfolded()
            index.refresh()
            print(f"{left:,} runs folded in {time.perf_counter() - start:.1f} s, index {_megabytes(root):.0f} MB")
        with dashboard(root) as address:
            urllib.request.urlopen(address).read()
            when_folded = response_times_s(address)
    for name, times_s in (("while_folding", while_folding), ("known", when_folded)):
        p95 = float(np.percentile(times_s, 95))
        print(f"{name}: p50 {1e3 * statistics.median(times_s):.0f} ms, p95 {1e3 * p95:.0f} ms, of {len(times_s)}")
        bars.add(f"list_p95_s_{name}", p95, "<=", GOAL_S)
    bars.finish()


def _megabytes(root: Path) -> float:
    return (root / INDEX_FILE).stat().st_size / 1e6


if __name__ == "__main__":
    main()
