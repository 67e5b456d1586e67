"""Two running servers 1.1 times apart, measured in turns: whole, and interrupted at a random instant and resumed.

Real processes: two truth servers, `bakeoff bench A --against B` with three repeats of ten seconds, SIGINT at an instant
that is uniform over the run, then `bakeoff run RUN --resume RUN`. Each run must say that the first server is faster.
:mod:`benchmarks.statistics.lost_trials` does the same at many instants in virtual time.
"""

import argparse
import asyncio
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from bakeoff import results
from bakeoff.harness.truth import Schedule, truth_process
from bakeoff.results.report.verdict import verdict
from benchmarks.bars import Bars

ITL_S, APART = 0.02, 1.1
BAKEOFF = [sys.executable, "-m", "bakeoff"]


def bench(urls: list[str], out: Path, interrupted_after_s: float | None) -> float:
    """Measure two servers; returns the seconds that it took."""
    server = ["--engine", "vllm", "--model", "m", "--tokenizer", "approximate", "--workload", "random"]
    load = ["--concurrency", "4", "--repeats", "3", "--duration", "10", "--ramp", "2", "--no-calibrate"]
    began_s = time.monotonic()
    argv = [*BAKEOFF, "bench", urls[0], "--against", urls[1], *server, *load, "--out", str(out)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if interrupted_after_s is not None:
        time.sleep(interrupted_after_s)
        process.send_signal(signal.SIGINT)
    process.wait(600)
    return time.monotonic() - began_s


def resumed(out: Path) -> Path:
    """Resume the only run in a folder, as its headline says."""
    (first,) = out.iterdir()
    argv = [*BAKEOFF, "run", str(first), "--resume", str(first), "--out", str(out)]
    subprocess.run(argv, capture_output=True, check=False, timeout=600)
    return max(out.iterdir())


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--whole", type=int, default=6)
    parser.add_argument("--interrupted", type=int, default=6)
    options = parser.parse_args()
    rng, bars, right = random.Random(5), Bars(), {"whole": 0, "interrupted": 0}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bakeoff-")))
        schedules = [Schedule(ttft_s=2 * itl_s, itl_s=itl_s) for itl_s in (ITL_S, APART * ITL_S)]
        servers = [await stack.enter_async_context(truth_process(schedule)) for schedule in schedules]
        urls, whole_s = [server.url for server in servers], 0.0
        for number in range(max(options.whole, options.interrupted)):
            for kind, count in (("whole", options.whole), ("interrupted", options.interrupted)):
                if number >= count:
                    continue
                out = folder / f"{kind}-{number}"
                after_s = rng.uniform(2.0, whole_s or 80.0) if kind == "interrupted" else None
                took_s = await asyncio.to_thread(bench, urls, out, after_s)
                if after_s is None:
                    whole_s, path = took_s, max(out.iterdir())
                else:
                    path = await asyncio.to_thread(resumed, out)
                said = verdict(results.load(path))
                port = urls[0].rstrip("/").rpartition(":")[2].partition("/")[0]
                right[kind] += said.decided and f"{port} delivered" in said.sentence
                print(f"{kind} {number}: {took_s:.0f} s; {said.sentence}", flush=True)
    for kind, count in (("whole", options.whole), ("interrupted", options.interrupted)):
        if count:
            bars.add(f"{kind}_decided", right[kind] / count, ">=", 1)
    bars.finish()


if __name__ == "__main__":
    asyncio.run(main())
