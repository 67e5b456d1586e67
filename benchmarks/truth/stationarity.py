"""Bias of the rates of default 30 s trials against the long run of the same load, in virtual time.

    python -m benchmarks.truth.stationarity [--only TEXT] [--replications 400]

Run by ``make bench-truth``. Each world is a workload with known laws of lengths, turns and pauses, a load, and a
server. Its long run needs no queueing theory: an open loop carries its own rate at a utilisation below 1, and on a
server with room for all, a slot of a closed loop sends a request per mean pause and mean answer time. On a server that
batches, the steps of a closed loop without pauses always have all its slots. Each replication draws lengths, arrivals
and pauses anew. A bar is met if the 99 % interval of the bias lies within ± 2 %, or ± 3 % for the
widest lengths; replication ends once the interval is half as wide.
"""

import argparse
import functools
import math
import random
import statistics
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.harness.virtual import Batched, Exponential, Fixed, Lognormal, PerToken, VirtualEngine, draws
from bakeoff.harness.virtual.runs import virtual_experiment, virtual_run
from bakeoff.results.records import Verdict
from bakeoff.results.statistics.distributions import t_quantile
from benchmarks.bars import Bars

TTFT_S, ITL_S, PER_CHUNK, PROMPT_TOKENS = 0.1, 0.02, 8, 4
BATCH = Batched(step_s=0.005, row_s=0.0002, prompt_token_s=0.0005)
SESSIONS = 2000
BIAS = 0.02
Draw = Callable[[random.Random], float]


class Law(msgspec.Struct, frozen=True):
    """A law of answer lengths or pauses, with its exact mean."""

    draw: Draw
    mean: float


def lognormal(mean: float, sigma: float) -> Law:
    return Law(lambda rng: rng.lognormvariate(math.log(mean) - sigma**2 / 2, sigma), mean)


def two_point(share: float, short: float, long: float) -> Law:
    return Law(lambda rng: long if rng.random() < share else short, share * long + (1 - share) * short)


LENGTHS = {
    "exponential": Law(lambda rng: rng.expovariate(1 / 50), 50.0),
    "lognormal": lognormal(50.0, 1.2),
    "two-point": two_point(0.1, 10.0, 400.0),
}


def _lognormal_tokens(sigma: float) -> Lognormal:
    return Lognormal(50.0, math.sqrt(math.exp(sigma**2) - 1))


OWN_LENGTHS: dict[str, draws.Draw] = {
    "own exponential": Exponential(50.0),
    "own lognormal 0.8": _lognormal_tokens(0.8),
    "own lognormal 1.2": _lognormal_tokens(1.2),
    "own lognormal 1.5": _lognormal_tokens(1.5),
    "own two-point": draws.TwoPoint(10.0, 400.0, 0.1),
}
"""Lengths that the model alone knows: it ends its answers, of which the plan knows the limit only."""
LIMIT_TOKENS, WIDE = 4000, "own lognormal 1.5"
WIDE_BIAS = 0.03
PAUSES = {
    "none": Law(lambda _: 0.0, 0.0),
    "0.1 to 60 s": Law(lambda rng: 0.1 * 600 ** rng.random(), 59.9 / math.log(600)),
}


class World(msgspec.Struct, frozen=True):
    """A load whose long run is known.

    Attributes:
        lengths: of answers, in tokens.
        pauses: before each turn but the first.
        turns: fewest and most, all equally likely.
        is_closed: a closed loop of ``level`` slots; else an open loop of ``level`` requests per second.
        level: of the load.
        slots: of the server; None for one with room for all.
        is_batching: whether steps take longer the more they compute; else every answer has its own slot.
    """

    lengths: str
    pauses: str
    turns: tuple[int, int]
    is_closed: bool
    level: int
    slots: int | None
    is_batching: bool = False

    @property
    def name(self) -> str:
        """What it is, in one line."""
        fewest, most = self.turns
        turns = "one turn" if most == 1 else f"{fewest} to {most} turns, pauses {self.pauses}"
        server = "batching" if self.is_batching else "unlimited" if self.slots is None else f"{self.slots} slots"
        load = f"{self.level} slots" if self.is_closed else f"{self.level} requests/s"
        return f"{'closed' if self.is_closed else 'open'}, {load}, {self.lengths}, {turns}, server {server}"


def worlds() -> list[World]:
    """All worlds.

    Utilisation of the server with 88 slots: 60 requests/s × 1.08 s / 88 = 0.74; of the one that batches: 60 requests/s
    × 50 tokens × 0.2 ms = 0.6, and 0.12 for the prompts.
    """
    one, many = ((1, 1), "none"), ((2, 12), "0.1 to 60 s")
    slots = [
        World(lengths, pauses, turns, is_closed, level, slots)
        for lengths in LENGTHS
        for (turns, pauses), levels in ((one, (8, 32)), (many, (200,)))
        for is_closed, level, slots in ((False, 60, None), (False, 60, 88), *((True, level, None) for level in levels))
    ]
    batching = [
        World(lengths, pauses, turns, is_closed, level, None, is_batching=True)
        for lengths in LENGTHS
        for (turns, pauses), is_closed, level in ((one, False, 60), (many, False, 60), (one, True, 32))
    ]
    own = [
        World(lengths, pauses, turns, True, level, None)
        for lengths in OWN_LENGTHS
        for (turns, pauses), levels in ((one, (8, 64, 256)), (many, (64,)))
        for level in levels
    ]
    return slots + batching + own


def long_run(world: World) -> tuple[float, float]:
    """Requests and tokens per second of the world in the long run."""
    tokens = mean_length(world.lengths)
    if not world.is_closed:
        return world.level, world.level * tokens
    if world.is_batching:
        step_s = BATCH.step_s + world.level * (BATCH.row_s + PROMPT_TOKENS * BATCH.prompt_token_s / tokens)
        return world.level / tokens / step_s, world.level / step_s
    mean_turns = sum(world.turns) / 2
    pause_s = PAUSES[world.pauses].mean * (mean_turns - 1) / mean_turns
    rate = world.level / (pause_s + TTFT_S + ITL_S * (tokens - 1))
    return rate, rate * tokens


def length(law: str, rng: random.Random) -> int:
    """A length of a law, in whole tokens."""
    return max(1, min(LIMIT_TOKENS, round((OWN_LENGTHS.get(law) or LENGTHS[law]).draw(rng))))


@functools.cache
def mean_length(law: str) -> float:
    """Mean of a law's whole tokens, from a large sample."""
    rng = random.Random(law)
    return statistics.fmean(length(law, rng) for _ in range(400_000))


def write(world: World, seed: int, path: Path) -> None:
    """Write the sessions of a replication."""
    rng = random.Random(f"{world.name}/{seed}")

    def turn(number: int) -> dict[str, Any]:
        think = {"think_s": PAUSES[world.pauses].draw(rng)} if number else {}
        return {
            "input_tokens": PROMPT_TOKENS,
            "output_tokens": LIMIT_TOKENS if world.lengths in OWN_LENGTHS else length(world.lengths, rng),
            "prompt": "word word word word",
            **think,
        }

    lines = [
        msgspec.json.encode({"id": f"s{number}", "turns": [turn(i) for i in range(rng.randint(*world.turns))]})
        for number in range(SESSIONS * (1 if world.turns[1] > 1 else 4))
    ]
    path.write_bytes(b"\n".join(lines) + b"\n")


def replicated(job: tuple[World, int]) -> tuple[float, float, bool, float]:
    """Requests/s and tokens/s over the long run's, whether the trial is VALID, and the mean turn over the plan's."""
    world, seed = job
    with tempfile.TemporaryDirectory(prefix="bakeoff-stationarity-", dir="/dev/shm") as name:
        path = Path(name) / "sessions.jsonl"
        write(world, seed, path)
        requests_per_s, tokens_per_s = long_run(world)
        mean_turns = sum(world.turns) / 2
        load = (
            {"concurrency": world.level}
            if world.is_closed
            else {"rate_per_s": world.level / mean_turns, "arrival": "poisson"}
        )
        experiment = virtual_experiment(
            ["engine"], [load], repeats=1, seed=seed, trial={},
            workload={"name": "sessions", "options": {"path": str(path)}},
        )  # fmt: skip
        service = BATCH if world.is_batching else PerToken(Fixed(TTFT_S), Fixed(ITL_S))
        engine = VirtualEngine(
            service=service,
            slots=world.slots,
            tokens_per_chunk=1 if world.is_batching else PER_CHUNK,
            own_lengths=OWN_LENGTHS.get(world.lengths),
        )
        (trial,) = virtual_run(experiment, {"engine": engine}, Path(name) / "runs", seed=seed).finished
    start_ns, end_ns = trial.window.start_ns, trial.window.end_ns
    turns = [request.turn for request in trial.requests if start_ns <= request.planned_ns < end_ns]
    squares = statistics.fmean([n * (n - 1) / 2 for n in range(world.turns[0], world.turns[1] + 1)])
    return (
        (trial.metrics["requests_per_s"].value or 0.0) / requests_per_s,
        (trial.metrics["output_tokens_per_s"].value or 0.0) / tokens_per_s,
        trial.record.verdict is Verdict.VALID,
        statistics.fmean(turns) - squares / mean_turns,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="worlds whose names hold this text")
    parser.add_argument("--replications", type=int, default=400, help="of each world, at most (default: %(default)s)")
    options = parser.parse_args()
    bars = Bars()
    chosen = [world for world in worlds() if options.only in world.name]
    print(f"{'bias of requests/s':>20} {'tokens/s':>18} {'VALID':>6} {'turn':>14}  trials  world")
    with ProcessPoolExecutor() as pool:
        for number, world in enumerate(chosen):
            rows: list[tuple[float, float, bool, float]] = []
            halves, limit = [math.inf, math.inf], WIDE_BIAS if world.lengths == WIDE else BIAS
            while len(rows) < options.replications and max(halves) > limit / 2:
                seeds = range(len(rows), min(options.replications, len(rows) + 40))
                rows += pool.map(replicated, [(world, seed) for seed in seeds], chunksize=4)
                halves = [half_width([row[column] for row in rows]) for column in (0, 1)]
            means = [statistics.fmean(row[column] for row in rows) - 1 for column in (0, 1)]
            turn, turn_half = statistics.fmean(row[3] for row in rows), half_width([row[3] for row in rows])
            valid = statistics.fmean(row[2] for row in rows)
            texts = [f"{mean:+.2%} ± {half:.2%}" for mean, half in zip(means, halves, strict=True)]
            off = f"{turn:+.2f} ± {turn_half:.2f}"
            print(f"{texts[0]:>20} {texts[1]:>18} {valid:>6.0%} {off:>14} {len(rows):>7}  {world.name}", flush=True)
            for mean, half, rate in zip(means, halves, ("requests", "tokens"), strict=True):
                bars.add(f"{number}_{rate}_bias_and_noise", abs(mean) + half, "<=", limit)
            bars.add(f"{number}_turn_off_beyond_noise", max(0.0, abs(turn) - turn_half), "<=", 0.1)
    bars.finish()


def half_width(values: list[float]) -> float:
    """Half of the 99 % interval of the mean."""
    return t_quantile(0.995, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


if __name__ == "__main__":
    main()
