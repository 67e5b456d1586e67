"""A search with a known answer: a truth server with eight slots, Poisson arrivals, a bound on p90 TTFT.

    python -m tests.acceptance.truth.search [--trials 14] [--duration 12]

Eight slots and answers of 0.2 s are a capacity of 40 requests per second. The true threshold comes from a simulation of
that queue: the rate at which a tenth of 100,000 requests exceed the bound.
"""

import argparse
import asyncio
import math
import statistics
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console

from bakeoff.engines import pick_port
from bakeoff.harness.conduct.policies.search_config import search_config
from bakeoff.harness.conduct.progress import SearchObserver
from bakeoff.harness.conduct.run import capacity_search, create_run, run_experiment
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.harness.traffic.expected import ExpectedLength
from bakeoff.harness.truth import Schedule, truth_process
from bakeoff.results import load
from bakeoff.results.log.search import EngineSearch
from bakeoff.results.report.search_lines import search_lines
from benchmarks.bars import Bars
from tests.harness.queueing import simulated_ttfts_s
from tests.workloads.small_tokenizers import checkpoint

SLOTS, TTFT_S, ITL_S, TOKENS, BOUND_S = 8, 0.1, 0.025, 5, 0.25
TOTAL_S = TTFT_S + (TOKENS - 1) * ITL_S
LOW, HIGH = 5.0, 80.0
REQUESTS = 100_000


def late_share(rate: float, rng: np.random.Generator) -> float:
    """Share of the requests of a long run at a rate that exceed the bound."""
    arrivals = np.cumsum(rng.exponential(1 / rate, REQUESTS)).tolist()
    no_stall = (math.inf, math.inf)
    ttfts = simulated_ttfts_s(arrivals, cap=SLOTS, ttft_s=TTFT_S, total_s=TOTAL_S, stall=no_stall)
    return float(np.mean(np.asarray(ttfts) > BOUND_S))


def true_threshold() -> float:
    """The rate at which a tenth of the requests exceed the bound, by bisection."""
    low, high = LOW, HIGH
    while high / low > 1.005:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if late_share(middle, np.random.default_rng(1)) <= 0.1 else (low, middle)
    return math.sqrt(low * high)


async def searched(folder: Path, duration_s: float, trials: int) -> tuple[EngineSearch, str]:
    """Run the search; returns its result and its printed line."""
    port = pick_port()
    data = {
        "name": "truth",
        "model": {"name": "truth", "tokenizer": str(checkpoint(folder / "tokenizer"))},
        "engines": [{"adapter": "reference", "url": f"http://127.0.0.1:{port}", "label": "truth"}],
        "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": TOKENS}},
        "loads": [{"rate_per_s": rate, "arrival": "poisson"} for rate in (LOW, HIGH)],
        "trial": {"duration_s": duration_s, "max_requests": 4_000},
        "client": {"calibrate": False},
        "quality": {"samples": 0},
    }
    experiment = experiment_from(data, "truth")
    config = search_config(experiment, f"ttft_p90<{BOUND_S}s", trials=trials)
    run = create_run(experiment, folder / "runs", search=config)
    async with truth_process(Schedule(ttft_s=TTFT_S, itl_s=ITL_S, slots=SLOTS), port):
        observer = SearchObserver(Console(), config, ExpectedLength(experiment))
        await run_experiment(experiment, run, observer, make_policy=capacity_search(config))
    record = load(run.path).search
    assert record is not None
    return record.engines[0], search_lines(record)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=14, help="at most (default: %(default)s)")
    parser.add_argument("--duration", type=float, default=12.0, help="of each, in seconds (default: %(default)s)")
    options = parser.parse_args()
    true = true_threshold()
    print(f"capacity {SLOTS / TOTAL_S:g}/s, true threshold {true:.3g}/s")
    with tempfile.TemporaryDirectory() as name:
        result, line = asyncio.run(searched(Path(name), options.duration, options.trials))
    print(line)
    without_evidence = statistics.fmean(attempt.met is None for attempt in result.attempts)
    bars = Bars()
    bars.add(
        "interval_holds_the_truth", int((result.low or 0) <= 1.01 * true and true / 1.01 <= (result.high or 0)), "==", 1
    )
    bars.add("error_percent", abs(math.log((result.level or LOW) / true)) * 100, "<=", 10)
    bars.add("trials_without_evidence_share", without_evidence, "<=", 0.2)
    bars.finish()


if __name__ == "__main__":
    main()
