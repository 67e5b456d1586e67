"""Verdicts on two servers that stayed up, in worlds whose starts differ: how often they err, and what they say then.

    python -m benchmarks.statistics.starts [--worlds 2000]

Each side has one start, whose effect is normal, and trials with a noise of half a per cent, 0 or 70 % of which a pair
shares. A gate judges under a noise of starts of 2 %, at a level of 1 %: it may err where starts differ by no more, and
elsewhere its sentence names the noise that would undo it. A comparison judges by trials alone, and always has the
sentence. The primary metric decides.
"""

import argparse

import numpy as np

from bakeoff.results.compare.config import START_NOISE
from bakeoff.results.compare.noise import caveat_text
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.statistics import Comparison, Judgement, compare_runs
from bakeoff.results.statistics.comparison import Criteria
from bakeoff.results.statistics.unseen import NoiseSource, Unseen
from benchmarks.bars import Bars

METRIC, ALPHA, TRIAL_NOISE = CATALOGUE["output_tokens_per_s"], 0.01, 0.005
DECIDED = {Judgement.BETTER, Judgement.WORSE}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=2_000)
    options = parser.parse_args()
    bars, rng, worlds = Bars(), np.random.default_rng(1), options.worlds
    most = ALPHA + 3 * (ALPHA * (1 - ALPHA) / worlds) ** 0.5
    named = list[bool]()
    print(f"{'starts':>7} {'repeats':>7} {'shared':>7} {'gate: exit 1':>13} {'exit 0':>7} {'compare decides':>16}")
    for start_sd in (0.0, 0.01, 0.02, 0.03):
        for repeats in (3, 5, 8):
            for shared in (0.0, 0.7):
                gates = [compared(rng, start_sd, repeats, shared, START_NOISE) for _ in range(worlds)]
                alarms = sum(each.judgement is Judgement.WORSE for each in gates) / worlds
                passed = sum(each.judgement is not Judgement.WORSE and each.no_worse(METRIC) for each in gates) / worlds
                alone = [compared(rng, start_sd, repeats, shared, None) for _ in range(worlds)]
                decided = [each for each in alone if each.judgement in DECIDED]
                cell = f"{100 * start_sd:>6.0f}% {repeats:>7} {100 * shared:>6.0f}%"
                rates = f"{100 * alarms:>12.1f}% {100 * passed:>6.0f}% {100 * len(decided) / worlds:>15.0f}%"
                print(f"{cell} {rates}", flush=True)
                if start_sd <= START_NOISE:
                    bars.add(f"alarms_{start_sd:g}_{repeats}_{shared:g}", alarms, "<=", most)
                named += [caveat_text(each).startswith("it stands unless") for each in decided]
    bars.add("decided_and_named", float(np.mean(named)), ">=", 1)
    found = [compared(rng, 0.01, 3, 0.0, START_NOISE, effect=-0.105) for _ in range(worlds)]
    power = sum(each.judgement is Judgement.WORSE for each in found) / worlds
    print(f"a server 10 % slower, starts 1 %, three repeats: exit 1 in {100 * power:.0f} %")
    bars.add("power_10_percent", power, ">=", 0.9)
    bars.finish()


def compared(
    rng: np.random.Generator,
    start_sd: float,
    repeats: int,
    shared: float,
    assumed: float | None,
    *,
    effect: float = 0.0,
) -> Comparison:
    """B against A over their trials.

    Args:
        rng: random numbers.
        start_sd: standard deviation of starts, as a fraction.
        repeats: trials of each side.
        shared: part of the variance of trials that the two of a repeat share.
        assumed: noise of starts under which to judge; None to judge by trials.
        effect: log of B over A.
    """
    both = rng.normal(0, TRIAL_NOISE * shared**0.5, repeats)
    starts, own = rng.normal([0.0, effect], start_sd), TRIAL_NOISE * (1 - shared) ** 0.5
    a, b = (dict(enumerate(np.exp(start + both + rng.normal(0, own, repeats)))) for start in starts)
    unseen = Unseen(NoiseSource.STARTS, 2.0, assumed)
    return compare_runs(
        METRIC, "c=8", a, b, interleaved=True, criteria=Criteria(alpha=ALPHA, detect=0.1), unseen=unseen
    )


if __name__ == "__main__":
    main()
