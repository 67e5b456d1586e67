"""The users that ``bakeoff search URL`` finds on servers whose capacity is known, in virtual time.

    python -m benchmarks.truth.users [--searches 200]

Run by ``make bench-truth``. The capacity is the highest number of users, each with a request in progress all the time,
of whose requests at most a tenth wait longer for their first token than the bound: from simulations of 100,000 requests
that share no code with the product. Each search has the settings of a search whose experiment is an address: five
minutes, trials of 10 s, from 8 users on.
"""

import argparse
import heapq
import math
import random
import statistics
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

from bakeoff.harness.cli.measured import workload_data
from bakeoff.harness.conduct.policies.search_config import search_config, with_requests_for
from bakeoff.harness.experiment.bench import SEARCH_MINUTES, searched_server
from bakeoff.harness.virtual import Exponential, Fixed, VirtualEngine, Whole
from bakeoff.harness.virtual.runs import virtual_search
from benchmarks.bars import Bars

REQUESTS, TOKENS, MOST = 100_000, 5, 256
COVERAGE = 0.9


class Server(msgspec.Struct, frozen=True):
    """A server with a queue, and the bound of the p90 of TTFT for which its capacity is sought.

    Attributes:
        name: what the table calls it.
        slots: requests that it answers at a time.
        service_s: mean duration of an answer, of which the first fifth ends with the first token.
        is_random: whether durations vary exponentially.
        bound_s: of the p90.
    """

    name: str
    slots: int
    service_s: float
    is_random: bool
    bound_s: float

    @property
    def engine(self) -> VirtualEngine:
        """Its virtual twin."""
        duration = Exponential(self.service_s) if self.is_random else Fixed(self.service_s)
        return VirtualEngine(service=Whole(duration), slots=self.slots)

    def ttfts_s(self, users: int) -> Iterator[float]:
        """Times to the first token of a long run with this many users."""
        rng = random.Random(users)
        free_s, asked_s = [0.0] * self.slots, [rng.uniform(0.0, self.service_s) for _ in range(users)]
        heapq.heapify(asked_s)
        for _ in range(REQUESTS):
            t_s = heapq.heappop(asked_s)
            start_s = max(t_s, heapq.heappop(free_s))
            service_s = rng.expovariate(1.0 / self.service_s) if self.is_random else self.service_s
            heapq.heappush(free_s, start_s + service_s)
            heapq.heappush(asked_s, start_s + service_s)
            yield start_s + service_s / TOKENS - t_s

    def meets(self, users: int) -> bool:
        """Whether at most a tenth of the requests exceed the bound."""
        return sum(ttft_s > self.bound_s for ttft_s in self.ttfts_s(users)) <= 0.1 * REQUESTS

    def capacity(self) -> int:
        """The highest number of users that it carries, at least 1."""
        low, high = 1, MOST
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.meets(middle) else (low, middle)
        return low


SERVERS = [
    Server("4 slots, equal answers of 1 s", 4, 1.0, False, 0.6),
    Server("8 slots, equal answers of 2 s", 8, 2.0, False, 0.9),
    Server("4 slots, random answers of 3 s", 4, 3.0, True, 2.5),
    Server("8 slots, random answers of 1 s", 8, 1.0, True, 0.8),
    Server("16 slots, random answers of 2 s", 16, 2.0, True, 1.5),
    Server("32 slots, random answers of 3 s", 32, 3.0, True, 2.0),
]


def searched(job: tuple[int, int]) -> tuple[float, float, float, int, float]:
    """The users found, the ends of their interval, the number of trials and the minutes."""
    server, seed = SERVERS[job[0]], job[1]
    workload = workload_data("random", [], None, 8, TOKENS)
    experiment = searched_server(
        "http://127.0.0.1:9", over_rate=False, workload=workload, engine="openai", model="m", tokenizer="approximate",
        api_key_env=None, header=None,
    )  # fmt: skip
    experiment = msgspec.structs.replace(experiment, seed=seed)
    config = search_config(experiment, f"ttft_p90<{server.bound_s}s", minutes=SEARCH_MINUTES)
    with tempfile.TemporaryDirectory(prefix="bakeoff-users-", dir="/dev/shm") as name:
        engines = {"openai": server.engine}
        run = virtual_search(with_requests_for(experiment, config), engines, Path(name), config, seed=seed)
    assert run.search is not None
    (found,) = run.search.engines
    lasted_min = (run.log.events[-1].t_ns - run.log.events[0].t_ns) / 60e9
    return found.level or 0.0, found.low or 0.0, found.high or math.inf, len(found.attempts), lasted_min


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=200, help="of all servers together (default: %(default)s)")
    options = parser.parse_args()
    each = max(1, options.searches // len(SERVERS))
    bars, hits, longest = Bars(), 0, 0.0
    print(f"{'server':<34} {'users':>6} {'found':>6} {'covers':>7} {'width':>6} {'trials':>7} {'minutes':>8}")
    with ProcessPoolExecutor() as pool:
        for number, server in enumerate(SERVERS):
            true = server.capacity()
            rows = list(pool.map(searched, [(number, seed) for seed in range(each)]))
            covered = [low <= true <= high for _, low, high, *_ in rows]
            hits, longest = hits + sum(covered), max(longest, *(row[4] for row in rows))
            width = statistics.median(math.log(high / max(low, 0.5)) / 2 for _, low, high, *_ in rows)
            found, trials = statistics.median(row[0] for row in rows), statistics.fmean(row[3] for row in rows)
            minutes = statistics.fmean(row[4] for row in rows)
            shown = f"{found:>6g} {statistics.fmean(covered):>7.0%} {width:>6.0%} {trials:>7.1f} {minutes:>8.1f}"
            print(f"{server.name:<34} {true:>6} {shown}", flush=True)
    count = each * len(SERVERS)
    bars.add("share of intervals that hold the capacity", hits / count, ">=", COVERAGE - 3 * math.sqrt(0.09 / count))
    bars.add("minutes of the longest search", longest, "<=", 1.05 * SEARCH_MINUTES)
    bars.finish()


if __name__ == "__main__":
    main()
