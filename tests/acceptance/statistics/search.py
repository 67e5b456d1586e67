"""How often a search's interval holds the truth, and what that costs. Simulated engines, fixed seeds.

    python -m tests.acceptance.statistics.search [--searches 1000]

An engine has a known curve of latency over load, so the highest rate that keeps the bound is known. The noise of a run
is 2 or 5 % of its latency and, with a queue, of its capacity. Searches go from 1 to 64 requests a second with a
resolution of 5 % and at most 20 trials. Engines start anew after four trials, and the thresholds of starts vary by 0, 2
or 5 %. For comparison, plain bisection searches the same engines: it trusts one trial per level, and halves the
interval until 5 % are left. Percentiles of queues are searched by pooled counts: ``benchmarks/truth/capacity.py``.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np

from bakeoff.harness.conduct.policies.capacity_search import TRIALS_PER_TURN
from bakeoff.results.statistics.bisection import Bisection, Bracket, levels_between
from benchmarks.bars import Bars

LOW, HIGH, RESOLUTION, BUDGET = 1.0, 64.0, 0.05, 20
LEVELS = levels_between(LOW, HIGH, RESOLUTION)
Answer = tuple[bool, float | None]
"""Whether a trial kept the bound, and its margin where it has one."""
Trial = Callable[[np.random.Generator, float], Answer]
"""Simulates a trial at a rate."""


def of_latency(latency: float) -> Answer:
    """The answer of a trial whose latency is given in units of the bound."""
    return latency < 1, -math.log(latency)


def gentle(cv: float, threshold: float) -> Trial:
    """ITL that grows with the load: twice the load raises it by half."""
    return lambda rng, rate: of_latency((1 + rate / threshold) / 2 * math.exp(rng.normal(0, cv)))


def steep(cv: float, threshold: float, at_bound: float = 0.8) -> Trial:
    """TTFT of a queue with utilisation ``at_bound`` at the bound; beyond its capacity a trial is INVALID."""

    def trial(rng: np.random.Generator, rate: float) -> Answer:
        load = at_bound * rate / (threshold * math.exp(rng.normal(0, cv)))
        return (False, None) if load >= 1 else of_latency((1 - at_bound) / (1 - load) * math.exp(rng.normal(0, cv)))

    return trial


def wall(cv: float, threshold: float) -> Trial:
    """An engine that keeps the bound or dies, so that trials have no margin."""
    return lambda rng, rate: (rate < threshold * math.exp(rng.normal(0, cv)), None)


def disturbed(cv: float, threshold: float) -> Trial:
    """Like :func:`gentle`, but another load on the machine doubles the latency of one run in twenty."""
    plain = gentle(cv, threshold)
    return lambda rng, rate: of_latency(2.0) if rng.random() < 0.05 else plain(rng, rate)


Engine = Callable[[float], Trial]
"""The trials of an engine with this threshold."""
WORLDS: dict[str, Engine] = {
    "gentle_2_percent": partial(gentle, 0.02),
    "gentle_5_percent": partial(gentle, 0.05),
    "steep_2_percent": partial(steep, 0.02),
    "steep_5_percent": partial(steep, 0.05),
    "full_queue_2_percent": partial(steep, 0.02, at_bound=0.95),
    "full_queue_5_percent": partial(steep, 0.05, at_bound=0.95),
    "wall_2_percent": partial(wall, 0.02),
    "wall_5_percent": partial(wall, 0.05),
    "disturbed_2_percent": partial(disturbed, 0.02),
    "gentle_starts_2_percent": partial(gentle, 0.02),
    "gentle_starts_5_percent": partial(gentle, 0.02),
    "steep_starts_5_percent": partial(steep, 0.02),
    "wall_starts_5_percent": partial(wall, 0.02),
}
STARTS = {"gentle_starts_2_percent": 0.02} | dict.fromkeys(
    ("gentle_starts_5_percent", "steep_starts_5_percent", "wall_starts_5_percent"), 0.05
)
"""Spread between starts, as a fraction of the threshold."""


class SearchResult(NamedTuple):
    """The result of a search: its bracket, its number of trials, and the true threshold."""

    bracket: Bracket
    trials: int
    threshold: float

    @property
    def holds(self) -> bool:
        """Whether the highest level that keeps the bound lies in the interval."""
        true = max((level for level in LEVELS if level <= self.threshold), default=0.0)
        return (self.bracket.low or 0.0) <= true <= (self.bracket.high or 0.0)

    @property
    def error(self) -> float:
        """Relative error of the answer, as a difference of logarithms."""
        return abs(math.log((self.bracket.level or LOW) / self.threshold))


def searched(
    engine: Engine, threshold: float, rng: np.random.Generator, guess: float | None = None, spread: float = 0.0
) -> SearchResult:
    """Search an engine whose threshold varies from start to start by ``spread``, a fraction of it."""
    search = Bisection(LEVELS, resolution=RESOLUTION, guess=guess)
    trial, trials = engine(threshold), 0
    while trials < BUDGET and not search.is_settled:
        if trials % TRIALS_PER_TURN == 0:
            search.begin_start()
            trial = engine(threshold * math.exp(rng.normal(0, spread)))
        level = search.next_level()
        assert level is not None
        met, margin = trial(rng, level)
        search.observe(level, met=met, margin=margin)
        trials += 1
    return SearchResult(search.bracket, trials, threshold)


def plainly_bisected(trial: Trial, rng: np.random.Generator) -> float:
    """The answer of plain bisection."""
    low, high = LOW, HIGH
    while high / low > 1 + RESOLUTION:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if trial(rng, middle)[0] else (low, middle)
    return math.sqrt(low * high)


def thresholds(rng: np.random.Generator, count: int) -> list[float]:
    """Random thresholds, uniform on a log scale, away from the ends of the range."""
    return np.exp(rng.uniform(math.log(1.2 * LOW), math.log(HIGH / 1.2), count)).tolist()


def holds_bars(bars: Bars, count: int) -> None:
    """For each world: how often the interval holds the truth, and the errors of the answer and of plain bisection."""
    print("                          held   error  trials   width   off by over 5 %: ours   plain bisection's")
    for seed, (name, world) in enumerate(WORLDS.items()):
        rng = np.random.default_rng(seed)
        spread = STARTS.get(name, 0.0)
        results = [searched(world, true, rng, spread=spread) for true in thresholds(rng, count)]
        plain = [
            abs(math.log(plainly_bisected(world(true * math.exp(rng.normal(0, spread))), rng) / true))
            for true in thresholds(rng, count)
        ]
        held, error = share(result.holds for result in results), statistics.median(result.error for result in results)
        off, plain_off = (
            share(error > RESOLUTION for error in errors) for errors in ([result.error for result in results], plain)
        )
        width = statistics.median(
            math.sqrt((result.bracket.high or LOW) / (result.bracket.low or LOW)) - 1 for result in results
        )
        trials = statistics.fmean(result.trials for result in results)
        print(f"{name:24} {held:6.1%} {error:7.1%} {trials:7.1f}  ±{width:6.1%} {off:22.1%} {plain_off:18.1%}")
        bars.add(f"held_{name}", held, ">=", 0.95)
        bars.add(f"median_error_{name}", error, "<=", RESOLUTION)
        bars.add(f"off_by_over_5_percent_of_plain_{name}", off / plain_off if plain_off else 0.0, "<=", 1.0)


def warm_bars(bars: Bars, count: int) -> None:
    """A good guess saves trials; a bad one costs trials, but the interval still holds the truth."""
    cold = None
    for name, off in (("cold", None), ("guess_3_percent_off", 1.03), ("guess_3_times_off", 3.0)):
        rng = np.random.default_rng(40)
        results = [
            searched(partial(steep, 0.02), true, rng, None if off is None else true * off)
            for true in thresholds(rng, count)
        ]
        trials = statistics.fmean(result.trials for result in results)
        cold = cold or trials
        print(f"{name}: {trials:.1f} trials")
        bars.add(f"held_{name}", share(result.holds for result in results), ">=", 0.95)
        if off == 1.03:
            bars.add("trials_with_a_good_guess_of_cold", trials / cold, "<=", 0.75)


def edge_bars(bars: Bars, count: int) -> None:
    """A threshold outside of the range is reported as such after few trials."""
    for name, true in (("above", 3 * HIGH), ("below", LOW / 3)):
        rng = np.random.default_rng(60)
        results = [searched(partial(steep, 0.05), true, rng) for _ in range(count)]
        right = [result.bracket.low == HIGH if name == "above" else result.bracket.high is None for result in results]
        print(f"{name} the range: {statistics.fmean(result.trials for result in results):.1f} trials")
        bars.add(f"said_to_lie_{name}", share(right), ">=", 0.95)


def share(holds: Iterable[bool]) -> float:
    return statistics.fmean(map(float, holds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=1_000, help="of each kind (default: %(default)s)")
    count = parser.parse_args().searches
    bars = Bars()
    holds_bars(bars, count)
    warm_bars(bars, count)
    edge_bars(bars, count)
    bars.finish()


if __name__ == "__main__":
    main()
