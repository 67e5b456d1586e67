"""The long-run capacity that ``bakeoff search`` finds on servers whose capacity is known, in virtual time.

    python -m benchmarks.truth.capacity [--searches 100] [--only TEXT]

Run by ``make bench-truth``. The capacity is the rate at which a tenth of all requests wait longer than the bound, from
simulations of 200,000 requests that share no code with the product. Each search has the default 20 trials of 30 s.

The pauses of sessions vary by 5 s. If all were exactly 45 s long, and all answers 1 s, every later turn would arrive as
the turns before it departed, which is smoother than at random: after many such rounds the capacity is 1.58 sessions/s
instead of 1.45. No window of 30 s can see that.
"""

import argparse
import heapq
import itertools
import math
import random
import statistics
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.harness.conduct.policies.search_config import search_config
from bakeoff.harness.virtual import Batched, Exponential, Fixed, VirtualEngine, Whole
from bakeoff.harness.virtual.runs import virtual_experiment, virtual_search
from benchmarks.bars import Bars

REQUESTS = 200_000
MANY = 8
"""Trials of a search from which on its figures are held to the goals of a default one."""
TOKENS, PROMPT_TOKENS = 5, 8
BATCH, BATCH_SLOTS, BATCH_TOKENS = Batched(step_s=0.02, row_s=0.002, prompt_token_s=0.0005), 16, 40
TURNS, PAUSES_S = 4, (40.0, 50.0)
Ttfts = Callable[[float, random.Random], list[float]]
"""Simulates the TTFTs of a long run at a rate, in seconds."""


class Server(msgspec.Struct, frozen=True):
    """A server and the objective that its capacity is for.

    Attributes:
        name: of the server.
        engine: its virtual twin.
        bound_s: of the p90 of TTFT.
        ttfts_s: of its long run.
        low, high: the search's range.
        turns: of each session.
        tokens: of each answer.
    """

    name: str
    engine: VirtualEngine
    bound_s: float
    ttfts_s: Ttfts
    low: float
    high: float
    turns: int = 1
    tokens: int = TOKENS


def queue(rate: float, rng: random.Random, *, slots: int, is_random: bool) -> list[float]:
    """First come, first served, with a mean service of 1 s, of which the first fifth ends with the first token."""
    free_s, t_s, ttfts = [0.0] * slots, 0.0, []
    for _ in range(REQUESTS):
        t_s += rng.expovariate(rate)
        start_s = max(t_s, heapq.heappop(free_s))
        service_s = rng.expovariate(1.0) if is_random else 1.0
        heapq.heappush(free_s, start_s + service_s)
        ttfts.append(start_s + service_s / TOKENS - t_s)
    return ttfts


def sessions(rate: float, rng: random.Random) -> list[float]:
    """Sessions of four turns with pauses of 45 s on average, on eight slots of 1 s each."""
    due = []
    t_s = 0.0
    for _ in range(REQUESTS // TURNS):
        t_s += rng.expovariate(rate)
        due.append((t_s, 0))
    heapq.heapify(due)
    free_s, ttfts = [0.0] * 8, []
    while due:
        t_s, turn = heapq.heappop(due)
        start_s = max(t_s, heapq.heappop(free_s))
        heapq.heappush(free_s, start_s + 1.0)
        ttfts.append(start_s + 1.0 / TOKENS - t_s)
        if turn + 1 < TURNS:
            heapq.heappush(due, (start_s + 1.0 + rng.uniform(*PAUSES_S), turn + 1))
    return ttfts[REQUESTS // 10 :]  # the first sessions have no later turns beside them


def batching(rate: float, rng: random.Random) -> list[float]:
    """Steps of all running answers; an answer joins at the start of a step, if there is room."""
    arrivals, t_s = [], 0.0
    for _ in range(REQUESTS // 4):
        t_s += rng.expovariate(rate)
        arrivals.append(t_s)
    now_s, joined, ttfts, rows = 0.0, 0, [], []
    while joined < len(arrivals):
        if not rows and arrivals[joined] > now_s:
            now_s = arrivals[joined]
        new = []
        while joined < len(arrivals) and arrivals[joined] <= now_s and len(rows) + len(new) < BATCH_SLOTS:
            new.append(arrivals[joined])
            joined += 1
        running = len(rows) + len(new)
        now_s += BATCH.step_s + running * BATCH.row_s + len(new) * PROMPT_TOKENS * BATCH.prompt_token_s
        ttfts += [now_s - arrived_s for arrived_s in new]
        rows = [left - 1 for left in rows if left > 1] + [BATCH_TOKENS - 1] * len(new)
    return ttfts


SERVERS = [
    Server("M/D/8", VirtualEngine(service=Whole(Fixed(1.0)), slots=8), 0.5, partial(queue, slots=8, is_random=False),
           3.0, 16.0),
    Server("M/M/8", VirtualEngine(service=Whole(Exponential(1.0)), slots=8), 0.8,
           partial(queue, slots=8, is_random=True), 3.0, 16.0),
    Server("M/M/4", VirtualEngine(service=Whole(Exponential(1.0)), slots=4), 2.0,
           partial(queue, slots=4, is_random=True), 1.0, 8.0),
    Server("batching", VirtualEngine(service=BATCH, slots=BATCH_SLOTS), 0.5, batching, 2.0, 16.0, tokens=BATCH_TOKENS),
    Server("sessions of 4 turns", VirtualEngine(service=Whole(Fixed(1.0)), slots=8), 0.5, sessions, 0.5, 4.0,
           turns=TURNS),
]  # fmt: skip


def capacity(server: Server) -> float:
    """The rate at which a tenth of the requests exceed the bound."""
    low, high = server.low, server.high
    while high / low > 1.002:
        middle = math.sqrt(low * high)
        ttfts = server.ttfts_s(middle, random.Random(5))
        is_met = sum(ttft_s > server.bound_s for ttft_s in ttfts) <= 0.1 * len(ttfts)
        low, high = (middle, high) if is_met else (low, middle)
    return math.sqrt(low * high)


def searched(job: tuple[int, int, int]) -> tuple[float, float, float, int]:
    """The capacity found, the ends of its interval, and the number of trials."""
    server, seed = SERVERS[job[0]], job[1]
    with tempfile.TemporaryDirectory(prefix="bakeoff-capacity-", dir="/dev/shm") as name:
        experiment = virtual_experiment(
            ["engine"], [{"rate_per_s": rate, "arrival": "poisson"} for rate in (server.low, server.high)], seed=seed,
            trial={"duration_s": 30.0}, workload=workload(server, Path(name) / "sessions.jsonl"),
        )  # fmt: skip
        config = search_config(experiment, f"ttft_p90<{server.bound_s}s", trials=job[2])
        run = virtual_search(experiment, {"engine": server.engine}, Path(name) / "runs", config, seed=seed)
    assert run.search is not None
    (found,) = run.search.engines
    return found.level or server.low, found.low or 0.0, found.high or math.inf, len(found.attempts)


def workload(server: Server, path: Path) -> dict[str, Any]:
    if server.turns == 1:
        return {"name": "random", "options": {"input_tokens": PROMPT_TOKENS, "output_tokens": server.tokens}}
    rng = random.Random(server.name)

    def turn(number: int) -> dict[str, Any]:
        tokens = 4 + number
        think_s = rng.uniform(*PAUSES_S) if number else 0.0
        return {
            "input_tokens": tokens, "output_tokens": server.tokens, "prompt": " ".join(["word"] * tokens),
            "think_s": think_s,
        }  # fmt: skip

    lines = (
        msgspec.json.encode({"id": f"s{session}", "turns": [turn(number) for number in range(server.turns)]})
        for session in range(4000)
    )
    path.write_bytes(b"\n".join(lines) + b"\n")
    return {"name": "sessions", "options": {"path": str(path)}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=100, help="of each server (default: %(default)s)")
    parser.add_argument("--trials", type=int, nargs="+", default=[20], help="of each search (default: 20)")
    parser.add_argument("--only", default="", help="servers whose names hold this text")
    options = parser.parse_args()
    bars = Bars()
    headings = f"{'spread':>7} {'covers':>7} {'known':>6} {'width':>6} {'trials':>6}"
    print(f"{'server':<20} {'capacity':>8} {'found':>16} {headings}")
    with ProcessPoolExecutor() as pool:
        for (number, server), trials in itertools.product(enumerate(SERVERS), options.trials):
            if options.only not in server.name:
                continue
            true = capacity(server)
            rows = list(pool.map(searched, [(number, seed, trials) for seed in range(options.searches)]))
            errors = [math.log(level / true) for level, *_ in rows]
            bias, spread = statistics.fmean(errors), statistics.stdev(errors)
            covers = statistics.fmean(low <= true <= high for _, low, high, _ in rows)
            known = statistics.fmean(low > 0 and high < math.inf for _, low, high, _ in rows)
            width = statistics.median(math.log(high / max(low, 1e-9)) / 2 for _, low, high, _ in rows)
            made = statistics.fmean(row[3] for row in rows)
            found = f"{bias:+.1%} ± {spread / math.sqrt(len(rows)):.1%}"
            figures = f"{spread:>7.1%} {covers:>7.0%} {known:>6.0%} {width:>6.0%} {made:>6.1f}"
            print(f"{server.name:<20} {true:>8.3g} {found:>16} {figures}", flush=True)
            key = f"{server.name.lower().replace('/', '').replace(' ', '_')}_{trials}"
            bars.add(f"{key}_bias", abs(bias), "<=", 0.03 if trials >= MANY else 0.06)
            bars.add(f"{key}_coverage", covers, ">=", 0.88)
            bars.add(f"{key}_has_interval", known, ">=", 0.95)
            bars.add(f"{key}_half_width", width, "<=", 0.12 if trials >= MANY else 0.25)
    bars.finish()


if __name__ == "__main__":
    main()
