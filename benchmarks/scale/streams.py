"""Send lag of one worker that holds thousands of slow streams at a time.

    python -m benchmarks.scale.streams [--streams 15000]

A truth server answers each request by 16 chunks, 2 s apart: half a chunk a second for each stream. Requests arrive at
the rate that keeps so many in progress. The lag of a request is from its planned time until it is sent. It needs two
open files for each stream, one here and one in the server.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bakeoff import run as run_experiment
from bakeoff.harness.truth import Schedule, truth_process
from bakeoff.results.metrics.latency import send_lag_s
from bakeoff.results.metrics.throughput import requests_in_flight
from benchmarks.bars import Bars

CHUNKS, GAP_S, MAX_LAG_MS = 16, 2.0, 5.0


def experiment(url: str, streams: int, window_s: float) -> dict[str, Any]:
    return {
        "name": "streams", "repeats": 1, "model": {"tokenizer": "approximate"},
        "engines": [{"adapter": "openai", "url": url}],
        "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": CHUNKS, "spread": 0.0}},
        "loads": [{"rate_per_s": streams / (CHUNKS * GAP_S), "arrival": "poisson"}],
        "trial": {"warm_up_s": 0.0, "duration_s": window_s, "max_foreign_share": 1.0},
        "client": {"calibrate": False}, "quality": {"samples": 0},
    }  # fmt: skip


async def served(streams: int, window_s: float, out: Path) -> Any:  # noqa: ANN401
    async with truth_process(Schedule(ttft_s=GAP_S, itl_s=GAP_S), keep=False) as truth:
        return await asyncio.to_thread(run_experiment, experiment(truth.url, streams, window_s), out=out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=15_000)
    parser.add_argument("--window-s", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = asyncio.run(served(options.streams, options.window_s, Path(folder)))
        (trial,) = run.finished
    window, load = trial.record.window, trial.requests.under_load
    planned = load.planned_inside(window)
    in_flight = requests_in_flight(load, window).value or 0.0
    lags_ms = 1e3 * send_lag_s(planned)
    print(f"{trial.record.verdict.value}; {len(planned):,} requests, {int(planned.has_failed.sum()):,} failed")
    print(
        "send lag, ms: " + ", ".join(f"p{share} {np.nanpercentile(lags_ms, share):.2f}" for share in (50, 90, 99, 99.9))
    )
    bars = Bars()
    bars.add("streams_in_flight", in_flight, ">=", 0.95 * options.streams)
    bars.add("send_lag_p99_ms", float(np.nanpercentile(lags_ms, 99)), "<=", MAX_LAG_MS)
    bars.finish()


if __name__ == "__main__":
    main()
