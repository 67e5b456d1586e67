"""Open-loop traffic, answered by the reference engine and by Transformers.

32 requests of 64 prompt tokens and exactly 128 output tokens, greedy, same weights in bf16. They arrive by a Poisson
process of 16 per second, so all within about two seconds: faster than any side can answer, so that the engine limits
the rate and not the schedule. The bar compares with `generate` for one request after the other, as in a server that has
only `generate`. The output also has `generate` for all waiting requests at once, and Transformers' own continuous
batching. Figures are output tokens per second from the first arrival to the last token, medians of the rounds; the
processes take turns.
"""

import argparse
import random
import statistics

from benchmarks.bars import Bars, model_argument
from benchmarks.engine.sides.side import Side, random_prompts

GOAL, LEAST_ROUNDS = 4.0, 3
INPUT = 64
MANNERS: dict[str, tuple[str, dict[str, int]]] = {
    "ours": ("ours", {}),
    "one-by-one": ("transformers", {"at_once": 1}),
    "waiting": ("transformers", {"at_once": 1 << 30}),
    "continuous": ("continuous", {}),
}
"""By name: the side, and its options."""


def arrivals_s(count: int, rate_per_s: float, seed: int) -> list[float]:
    """Arrival times in seconds; the first is 0."""
    rng, now, times = random.Random(seed), 0.0, [0.0]
    for _ in range(count - 1):
        now += rng.expovariate(rate_per_s)
        times.append(now)
    return times


def one_round(sides: dict[str, Side], options: argparse.Namespace, number: int) -> dict[str, float]:
    """Output tokens per second of each manner, for the same prompts at the same times."""
    prompts = random_prompts(options.requests, INPUT, f"open loop {number}")
    times = arrivals_s(options.requests, options.rate, number)
    rates: dict[str, float] = {}
    for manner in options.manners if number % 2 else options.manners[::-1]:
        name, side_options = MANNERS[manner]
        seconds = sides[name].seconds(prompts, options.tokens, arrivals_s=times, **side_options)
        rates[manner] = options.requests * options.tokens / seconds
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    model_argument(parser)
    parser.add_argument("--rounds", type=int, default=LEAST_ROUNDS)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128, help="of output for each")
    parser.add_argument("--rate", type=float, default=16.0, help="arrivals per second")
    parser.add_argument("--manners", nargs="+", choices=MANNERS, default=[*MANNERS])
    options = parser.parse_args()
    if "ours" not in options.manners:
        parser.error("--manners without ours: there is nothing to compare")
    names = dict.fromkeys(MANNERS[manner][0] for manner in options.manners)
    sides = {name: Side(name, options.model, "bfloat16", options.requests) for name in names}
    one_round(sides, argparse.Namespace(**{**vars(options), "requests": 4, "tokens": 8}), 0)  # warms up
    rounds: list[dict[str, float]] = []
    for number in range(1, options.rounds + 1):
        rounds.append(one_round(sides, options, number))
        print(f"round {number}: " + ", ".join(f"{name} {rate:.0f}" for name, rate in rounds[-1].items()), flush=True)
    for side in sides.values():
        side.close()
    last = max(arrivals_s(options.requests, options.rate, number)[-1] for number in range(1, options.rounds + 1))
    print(f"{options.requests} requests within {last:.1f} s; output tokens/s, median (lowest, highest)")
    bars = Bars()
    for manner in options.manners:
        rates = [round_rates[manner] for round_rates in rounds]
        ratio = statistics.median(round_rates["ours"] / round_rates[manner] for round_rates in rounds)
        print(f"{manner:<12}{statistics.median(rates):>8.0f} ({min(rates):.0f}, {max(rates):.0f}); ours {ratio:.2f}x")
        if manner == "one-by-one":
            bars.add("over_transformers_open_loop", ratio, ">=", GOAL)
    bars.add("rounds", len(rounds), ">=", LEAST_ROUNDS)
    bars.finish()


if __name__ == "__main__":
    main()
