"""Intervals of latencies hold the long run's value where requests queue, or are absent.

    python -m benchmarks.statistics.precision [--experiments 40]

Whole runs in virtual time, three repeats of default trials of 30 s with 1 % of noise between trials, on M/D/4, M/M/4
and a batching server at 50, 70 and 90 % of their capacity, and of 300 s at 90 %. A cell counts experiments whose TTFT
p90 has an interval, and how many of these hold the long run's p90, which separate simulations of a million requests
give. The intervals within single trials, of the median TTFT and without noise, are counted likewise.
"""

import argparse
import dataclasses
import heapq
import math
import tempfile
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from bakeoff.harness.virtual import Exponential, Fixed, VirtualEngine, Whole
from bakeoff.harness.virtual.runs import virtual_experiment, virtual_run
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.metrics.catalogue import LATENCIES
from bakeoff.results.metrics.relaxation import relaxation_of
from bakeoff.results.run.run import Run
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.statistics.within import own_interval
from benchmarks.bars import Bars
from benchmarks.truth.saturation import BATCH, BATCH_SLOTS, BATCH_TOKENS, PROMPT_TOKENS, batch_capacity

SLOTS, SLOT_TOKENS, NOISE = 4, 5, 0.01
HOLDS, SHOWN, COVERS = 0.85, 0.95, (0.90, 0.98)
WARM = 5_000
"""Requests left out at the beginning of a long run."""
_ROUNDING = 1e-6
Times = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Server:
    """A server, with its capacity in requests per second and the length of answers."""

    engine: VirtualEngine
    capacity_per_s: float
    tokens: int


QUEUE = VirtualEngine(slots=SLOTS)
SERVERS = {
    "M/D/4": Server(msgspec.structs.replace(QUEUE, service=Whole(Fixed(1.0))), SLOTS, SLOT_TOKENS),
    "M/M/4": Server(msgspec.structs.replace(QUEUE, service=Whole(Exponential(1.0))), SLOTS, SLOT_TOKENS),
    "batching": Server(VirtualEngine(service=BATCH, slots=BATCH_SLOTS), batch_capacity(), BATCH_TOKENS),
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """Experiments of one kind."""

    server: str
    load: float
    duration_s: float

    @property
    def rate_per_s(self) -> float:
        """Planned rate."""
        return self.load * SERVERS[self.server].capacity_per_s


@dataclasses.dataclass(frozen=True)
class Seen:
    """What one experiment shows: TTFT p90 over its trials, the median within a trial, and findings on the window."""

    p90: Interval | None
    median: Interval | None
    short: int


def measured(cell: Cell, seed: int) -> Seen:
    noisy, quiet = _run(cell, seed, repeats=3, noise=NOISE), _run(cell, seed, repeats=1, noise=0.0)
    codes = [finding.code for trial in noisy.finished for finding in trial.record.findings]
    trial = quiet.finished[0]
    load = trial.load
    relaxed = relaxation_of(trial.record, load)
    observations = LATENCIES["ttft"].by_request(load, trial.window)
    median = own_interval(observations, 0.5, states=relaxed.states if relaxed else math.inf)
    p90 = noisy.cells[0].intervals.get("ttft_p90_s")
    return Seen(p90, median, codes.count(FindingCode.WINDOW_SHORT_FOR_QUEUE))


def _run(cell: Cell, seed: int, *, repeats: int, noise: float) -> Run:
    server = SERVERS[cell.server]
    engine = msgspec.structs.replace(server.engine, trial_noise=noise)
    experiment = virtual_experiment(
        ["engine"], [{"rate_per_s": cell.rate_per_s, "arrival": "poisson"}], repeats=repeats, seed=seed,
        trial={"duration_s": cell.duration_s},
        workload={"name": "random", "options": {"input_tokens": PROMPT_TOKENS, "output_tokens": server.tokens}},
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        run = virtual_run(experiment, {"engine": engine}, Path(name), seed=seed)
        assert len(run.finished) == repeats
        assert run.cells  # read now: the folder is about to vanish
        return run


def long_run(cell: Cell) -> tuple[float, float]:
    """Median and p90 of TTFT in the long run, in seconds."""
    count = 1_200_000 if cell.load > 0.8 else 300_000
    rng = np.random.default_rng(1)
    arrivals_s = np.cumsum(rng.exponential(1 / cell.rate_per_s, count))
    if cell.server == "batching":
        ttfts_s = _batched(arrivals_s)
    else:
        services_s = rng.exponential(1.0, count) if cell.server == "M/M/4" else np.ones(count)
        ttfts_s = _queued(arrivals_s, services_s)
    median, p90 = np.quantile(ttfts_s[WARM:], (0.5, 0.9)).tolist()
    return median, p90


def _queued(arrivals_s: Times, services_s: Times) -> Times:
    free_s, ttfts_s = [0.0] * SLOTS, np.empty(len(arrivals_s))
    for number, (arrival_s, service_s) in enumerate(zip(arrivals_s.tolist(), services_s.tolist(), strict=True)):
        start_s = max(heapq.heappop(free_s), arrival_s)
        heapq.heappush(free_s, start_s + service_s)
        ttfts_s[number] = start_s - arrival_s + service_s / SLOT_TOKENS
    return ttfts_s


def _batched(arrivals_s: Times) -> Times:
    """Steps of the batching server; an answer takes as many as it has tokens."""
    arrivals, ttfts_s = arrivals_s.tolist(), np.empty(len(arrivals_s))
    queue, endings = deque[int](), deque[tuple[int, int]]()
    now_s, running, step, arrived = 0.0, 0, 0, 0
    while arrived < len(arrivals) or queue or running:
        while arrived < len(arrivals) and arrivals[arrived] <= now_s:
            queue.append(arrived)
            arrived += 1
        joined = [queue.popleft() for _ in range(min(len(queue), BATCH_SLOTS - running))]
        running += len(joined)
        if not running:
            now_s = arrivals[arrived]
            continue
        now_s += BATCH.step_s + running * BATCH.row_s + len(joined) * PROMPT_TOKENS * BATCH.prompt_token_s
        for number in joined:
            ttfts_s[number] = now_s - arrivals[number]
        endings.append((step + BATCH_TOKENS - 1, len(joined)))
        while endings and endings[0][0] <= step:
            running -= endings.popleft()[1]
        step += 1
    return ttfts_s


def _holds(interval: Interval, value: float) -> bool:
    """Whether an interval holds a value, clocks being read in whole nanoseconds."""
    if interval.low is None or interval.high is None:
        return False
    return interval.low * (1 - _ROUNDING) <= value <= interval.high * (1 + _ROUNDING)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=40, help="of each kind (default: %(default)s)")
    count, bars = parser.parse_args().experiments, Bars()
    cells = [Cell(server, load, 30.0) for server in SERVERS for load in (0.5, 0.7, 0.9)]
    cells += [Cell(server, 0.9, 300.0) for server in SERVERS]
    print(f"{'server':<10}{'load':>6}{'window':>8}{'p90 shown':>11}{'holds':>7}{'medians':>9}{'holds':>7}{'short':>7}")
    near: dict[str, list[bool]] = {server: [] for server in SERVERS}
    within: dict[float, list[bool]] = {}
    with ProcessPoolExecutor() as pool:
        truths = list(pool.map(long_run, cells))
        for cell, (median, p90) in zip(cells, truths, strict=True):
            seen = list(pool.map(partial(measured, cell), range(count)))
            known = [one for one in seen if one.p90 is not None]  # else too few requests for a p90
            held = [_holds(one.p90, p90) for one in known if one.p90 and one.p90.low is not None]
            own = [_holds(one.median, median) for one in seen if one.median is not None]
            shown, short = len(held) / max(1, len(known)), sum(one.short for one in seen) / (3 * count)
            if cell.load > 0.8:
                near[cell.server] += held
            elif known:
                bars.add(f"shown_{cell.server}_{cell.load:g}", shown, ">=", SHOWN)
            within.setdefault(cell.load, []).extend(own)
            print(
                f"{cell.server:<10}{cell.load:>6.0%}{cell.duration_s:>6.0f} s{shown:>11.0%}{_share(held):>7}"
                f"{len(own) / count:>9.0%}{_share(own):>7}{short:>7.0%}",
                flush=True,
            )
    for server, held in near.items():
        if held:
            bars.add(f"holds_{server}_0.9", sum(held) / len(held), ">=", HOLDS)
    for load, own in within.items():
        if own:
            bars.add(f"within_{load:g}_lowest", sum(own) / len(own), ">=", COVERS[0])
            bars.add(f"within_{load:g}_highest", sum(own) / len(own), "<=", COVERS[1])
    bars.finish()


def _share(held: list[bool]) -> str:
    return f"{sum(held) / len(held):.0%}" if held else "–"


if __name__ == "__main__":
    main()
