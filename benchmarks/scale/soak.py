"""Memory of the harness during one long trial of a server with known timing.

    python -m benchmarks.scale.soak [--minutes 60] [--rate 40]

Each request streams 50 chunks, 20 ms apart, so 40 requests/s are 2,000 chunks/s. At 360 instants the proportional set
sizes of the harness's processes are added up, without the server's. Growth is that of the median from the second to the
last tenth of the window. Most of what a trial holds, its plan, is there before the window begins.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bakeoff import results
from bakeoff.harness.telemetry.host import shared_memory
from bakeoff.harness.truth import Schedule, truth_process
from benchmarks.bars import Bars

CHUNKS, READINGS, MAX_GROWTH = 50, 360, 0.02
EXPERIMENT = """
name = "soak"
repeats = 1
seed = 1

[model]
tokenizer = "approximate"

[[engines]]
adapter = "openai"
url = "{url}"

[workload]
name = "random"
options = {{ input_tokens = 32, output_tokens = {chunks}, spread = 0.0 }}

[[loads]]
rate_per_s = {rate}
arrival = "poisson"

[trial]
duration_s = {seconds}
max_window_s = {seconds}
warm_up_s = 0.0
max_foreign_share = 1.0

[client]
calibrate = false

[quality]
samples = 0
"""


async def measure(folder: Path, seconds: float, rate: float) -> list[tuple[int, Any]]:
    """Times and sizes during a run."""
    file, sizes = folder / "soak.toml", list[tuple[int, Any]]()
    schedule = Schedule(ttft_s=0.05, itl_s=0.02)
    async with truth_process(schedule, keep=False) as truth:
        text = EXPERIMENT.format(url=truth.url, rate=rate, seconds=seconds, chunks=CHUNKS)
        file.write_text(text, encoding="utf-8")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bakeoff", "run", str(file), "--out", str(folder)
        )
        ended = asyncio.create_task(process.wait())
        while not ended.done():
            await asyncio.wait([ended], timeout=seconds / READINGS)
            if not ended.done():
                record = shared_memory(time.monotonic_ns(), [process.pid])
                sizes.append((record.t_ns, record.values["pss_bytes"]))
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=40.0, help="requests/s")
    parser.add_argument("--out", type=Path, help="folder for the run (default: a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.out or Path(temporary)
        sizes = asyncio.run(measure(folder, 60 * options.minutes, options.rate))
        (trial,) = results.load(next(folder.glob("*-soak-*"))).finished
    window = trial.record.window
    inside = [size for t_ns, size in sizes if window.holds(t_ns)]
    tenths = [statistics.median(part) for part in parts(inside, 10)]
    requests = len(trial.requests.under_load)
    print(f"{trial.record.verdict.value}; {requests:,} requests, {requests * CHUNKS / window.length_s:,.0f} chunks/s")
    print("MiB by tenth of the window: " + ", ".join(f"{size / 2**20:,.1f}" for size in tenths))
    bars = Bars()
    bars.add("memory_growth", tenths[-1] / tenths[1] - 1, "<=", MAX_GROWTH)
    bars.finish()


def parts(values: list[int], count: int) -> list[list[int]]:
    """Consecutive parts of about equal length."""
    return [values[k * len(values) // count : (k + 1) * len(values) // count] for k in range(count)]


if __name__ == "__main__":
    main()
