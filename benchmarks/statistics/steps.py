"""Levels and power of the test for steps within a window, in virtual time and over simulated series.

    python -m benchmarks.statistics.steps [--trials 200] [--only TEXT]

Run by ``make bench-statistics``. Stationary worlds (closed and open loops, unlimited, slotted and batching servers,
lognormal answers, bursty arrivals, sessions) must be called unsteady in at most 0.5 % of their trials. Worlds whose
server becomes 1.2, 1.5, 2 or 6 times slower (each token, or the first one) at each tenth of the window must be found
from 1.5 on in 90 % where each side of the step has 100 requests; the table has the power everywhere.
"""

import argparse
import asyncio
import functools
import math
import tempfile
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from bakeoff.harness.virtual import Batched, Fixed, Lognormal, PerToken, VirtualEngine, Whole
from bakeoff.harness.virtual.runs import virtual_experiment, virtual_run
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.run.cells import Trial
from bakeoff.results.statistics.steps import MOST_DEVIATIONS, largest_step
from bakeoff.results.units import NS_PER_S
from benchmarks.bars import Bars

LOADS: dict[bool, dict[str, Any]] = {True: {"concurrency": 8}, False: {"rate_per_s": 20.0, "arrival": "poisson"}}
CODES = {FindingCode.BECAME_SLOWER, FindingCode.BECAME_FASTER}
TENTHS, FACTORS, WINDOWS_S = tuple(range(1, 10)), (1.2, 1.5, 2.0, 6.0), (10.0, 30.0, 120.0)
MIN_SIDE = 100


class Stepping(PerToken, frozen=True):
    """A pace that changes at an instant of virtual time, in its first or in all other tokens; each answer varies."""

    at_s: float = math.inf
    of_first: float = 1.0
    of_later: float = 1.0

    def token_times_s(self, tokens: int, rng: Random) -> list[float]:
        """When each token is ready."""
        noise = math.exp(rng.gauss(0, 0.1))
        times = [time_s * noise for time_s in super().token_times_s(tokens, rng)]
        if asyncio.get_running_loop().time() < self.at_s:
            return times
        return [times[0] * self.of_first + (time_s - times[0]) * self.of_later for time_s in times]


PACE = (Lognormal(0.1, 0.2), Fixed(0.01))
RANDOM = {"name": "random", "options": {"input_tokens": 8, "output_tokens": 20, "spread": 0.5}}
STILL: dict[str, tuple[VirtualEngine, dict[str, Any], dict[str, Any]]] = {
    "closed 8": (VirtualEngine(service=Stepping(*PACE)), {"concurrency": 8}, RANDOM),
    "closed 64": (VirtualEngine(service=Stepping(*PACE)), {"concurrency": 64}, RANDOM),
    "closed 64, 16 slots": (VirtualEngine(service=Stepping(*PACE), slots=16), {"concurrency": 64}, RANDOM),
    "closed 32, lognormal 1.2": (
        VirtualEngine(service=Whole(Lognormal(0.5, math.sqrt(math.exp(1.44) - 1)))), {"concurrency": 32}, RANDOM,
    ),
    "closed 32, lognormal 1.5": (
        VirtualEngine(service=Whole(Lognormal(0.5, math.sqrt(math.exp(2.25) - 1)))), {"concurrency": 32}, RANDOM,
    ),
    "closed 32, batching": (VirtualEngine(service=Batched(0.005, 0.0005, 0.0005)), {"concurrency": 32}, RANDOM),
    "open 20/s": (VirtualEngine(service=Stepping(*PACE)), {"rate_per_s": 20.0, "arrival": "poisson"}, RANDOM),
    "open 20/s, 8 slots (75 %)": (
        VirtualEngine(service=Stepping(*PACE), slots=8), {"rate_per_s": 20.0, "arrival": "poisson"}, RANDOM,
    ),
    "open 20/s, bursts": (
        VirtualEngine(service=Stepping(*PACE)),
        {"rate_per_s": 20.0, "arrival": "gamma", "arrival_options": {"burstiness": 0.25}}, RANDOM,
    ),
    "open 20/s, bursts, 16 slots": (
        VirtualEngine(service=Stepping(*PACE), slots=16),
        {"rate_per_s": 20.0, "arrival": "gamma", "arrival_options": {"burstiness": 0.25}}, RANDOM,
    ),
    "open 30/s, batching (60 %)": (
        VirtualEngine(service=Batched(0.005, 0.001, 0.0005)), {"rate_per_s": 30.0, "arrival": "poisson"}, RANDOM,
    ),
    "chats, closed 16": (
        VirtualEngine(service=Stepping(*PACE)), {"concurrency": 16}, {"name": "multi-turn", "options": {"scale": 0.05}},
    ),
    "chats, batching": (
        VirtualEngine(service=Batched(0.005, 0.0005, 0.0005)), {"concurrency": 16},
        {"name": "multi-turn", "options": {"scale": 0.05}},
    ),
    "agents, batching": (
        VirtualEngine(service=Batched(0.005, 0.0005, 0.0001)), {"concurrency": 8},
        {"name": "agent-coding", "options": {"scale": 0.01}},
    ),
    "reasoning, closed 64": (
        VirtualEngine(service=Stepping(*PACE)), {"concurrency": 64}, {"name": "reasoning", "options": {"scale": 0.05}},
    ),
}  # fmt: skip


def trial_of(
    engine: VirtualEngine, load: dict[str, Any], workload: dict[str, Any], seed: int, window_s: float
) -> Trial:
    with tempfile.TemporaryDirectory(prefix="bakeoff-steps-", dir="/dev/shm") as name:
        experiment = virtual_experiment(
            ["e"], [load], seed=seed, repeats=1, workload=workload, trial={"warm_up_s": 0.0, "duration_s": window_s}
        )
        return virtual_run(experiment, {"e": engine}, Path(name), seed=seed).finished[0]


def still(job: tuple[str, int]) -> bool:
    name, seed = job
    trial = trial_of(*STILL[name], seed=seed, window_s=(10.0, 30.0)[seed % 2])
    return any(finding.code in CODES for finding in trial.record.findings)


@functools.cache
def opening_s(is_closed: bool) -> float:
    """When the windows of a load open, which no step changes that lies behind it."""
    trial = trial_of(VirtualEngine(service=Stepping(*PACE)), LOADS[is_closed], RANDOM, seed=0, window_s=10.0)
    return trial.window.start_ns / NS_PER_S


def stepped(job: tuple[bool, bool, float, float, int, int]) -> bool:
    """Whether a trial of a closed loop of 8, or of an open one of 20/s, is INVALID for its step."""
    is_closed, in_first, factor, window_s, tenth, seed = job
    start_s = opening_s(is_closed)
    of_first, of_later = (factor, 1.0) if in_first else (1.0, factor)
    service = Stepping(*PACE, at_s=start_s + window_s * tenth / 10, of_first=of_first, of_later=of_later)
    trial = trial_of(VirtualEngine(service=service), LOADS[is_closed], RANDOM, seed, window_s)
    codes = {finding.code for finding in trial.record.invalidating}
    assert codes <= CODES | {FindingCode.SATURATED}, codes
    return bool(codes)


def series(noise: float, rho: float, count: int, rng: np.random.Generator) -> np.ndarray:
    values = rng.normal(size=count)
    for i in range(1, count):
        values[i] = rho * values[i - 1] + math.sqrt(1 - rho * rho) * values[i]
    return np.exp(noise * values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200, help="of each stationary world (default: %(default)s)")
    parser.add_argument("--only", default="", help="worlds whose names hold this text")
    options = parser.parse_args()
    bars, rng = Bars(), np.random.default_rng(1)
    if not options.only:
        print("series without a step, 2,000 each: share above the limit")
        for count in (40, 200, 1000):
            for rho in (0.0, 0.5, 0.9):
                steps = [largest_step(series(0.3, rho, count, rng)) for _ in range(2000)]
                share = sum(step is not None and step.deviations > MOST_DEVIATIONS for step in steps) / 2000
                print(f"{count:>6} correlation {rho:<4} {share:.2%}")
                bars.add(f"series_{count}_{rho:g}", share, "<=", 0.003)
    with ProcessPoolExecutor() as pool:
        total = 0
        names = [name for name in STILL if options.only in name]
        for name in names:
            hits = sum(pool.map(still, [(name, seed) for seed in range(options.trials)], chunksize=4))
            total += hits
            print(f"{hits:>4} of {options.trials} unsteady  {name}", flush=True)
        bars.add("false_share", total / (options.trials * max(1, len(names))), "<=", 0.005)
        if not options.only:
            powers(pool, bars, max(5, options.trials // 20))
    bars.finish()


def powers(pool: ProcessPoolExecutor, bars: Bars, trials: int) -> None:
    print(f"share of {trials} found, by tenth of the window")
    kept: dict[bool, list[float]] = defaultdict(list)
    for is_closed in (True, False):
        for in_first in (True, False):
            for window_s in WINDOWS_S:
                for factor in FACTORS:
                    row = []
                    for tenth in TENTHS:
                        jobs = [(is_closed, in_first, factor, window_s, tenth, seed) for seed in range(trials)]
                        row.append(sum(pool.map(stepped, jobs)) / trials)
                        side = min(tenth, 10 - tenth) / 10 * window_s * (27 if is_closed else 20)
                        if factor >= 1.5:
                            kept[side / factor >= MIN_SIDE].append(row[-1])
                    where = f"{'closed' if is_closed else 'open'}, {'TTFT' if in_first else 'TPOT'} × {factor:g}"
                    print(f"{where:<24} {window_s:>4g} s  " + " ".join(f"{share:4.0%}" for share in row), flush=True)
    bars.add("power_with_100_a_side", float(np.mean(kept[True])), ">=", 0.9)
    bars.add("power_with_fewer", float(np.mean(kept[False])), ">=", 0.0)


if __name__ == "__main__":
    main()
