"""How often a gate cannot tell whether two engines did the same work, and how often it sees that they did not.

    python -m benchmarks.statistics.work [--gates 1000]

Answers have log-normal lengths around 150 tokens. *Sampled* answers end by themselves, before the 512 tokens that every
request asks for; *fixed* ones have the lengths asked for. The candidate cuts a share of its answers. A cell is the
share of loads with different work (exit 1) / of loads that may have it (exit 2).
"""

import argparse
import dataclasses
import math

import numpy as np

from bakeoff.results.compare.config import WORK_BAND
from bakeoff.results.run.work import Work, compare_work
from bakeoff.results.statistics import Judgement
from benchmarks.bars import Bars
from benchmarks.statistics.gate import ALPHA

MAX_TOKENS = 512
CUTS = ((0.0, 0.0), (0.2, 0.1), (0.2, 0.3), (0.5, 0.1), (0.2, 1.0), (0.5, 1.0))
"""By how much the candidate cuts its answers, and how many of them."""


@dataclasses.dataclass(frozen=True)
class World:
    """Answers of one load; ``sigma`` is the standard deviation of the logs of their lengths."""

    sampled: bool
    sigma: float
    requests: int
    trials: int

    def work(self, rng: np.random.Generator, by: float, share: float) -> Work:
        """Work of one trial whose answers are cut."""
        lengths = np.clip(rng.lognormal(math.log(150), self.sigma, self.requests), 16, MAX_TOKENS).astype(int)
        asked = np.full(self.requests, MAX_TOKENS) if self.sampled else lengths
        is_cut = rng.random(self.requests) < share
        tokens = np.where(is_cut, (lengths * (1 - by)).astype(int), lengths)
        stopped = int((tokens < asked).sum())
        return Work(
            self.requests, self.requests, int(tokens.sum()), int(asked.sum()),
            [float(q) for q in np.quantile(tokens / asked, (0.1, 0.5, 0.9))],
            {"stop": stopped, "length": self.requests - stopped},
        )  # fmt: skip

    def shares(self, by: float, share: float, gates: int) -> tuple[float, float]:
        """Shares of loads with different work, and of those that may have it."""
        rng, words = np.random.default_rng(0), list[Judgement]()
        for _ in range(gates):
            a, b = ([self.work(rng, *cut) for _ in range(self.trials)] for cut in ((0.0, 0.0), (by, share)))
            words.append(compare_work("c=8", a, b, band=WORK_BAND, alpha=ALPHA).judgement)
        return words.count(Judgement.WORSE) / gates, words.count(Judgement.UNCLEAR) / gates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", type=int, default=1_000, help="of each kind (default: %(default)s)")
    gates, bars = parser.parse_args().gates, Bars()
    print("trials, answers, sigma, requests" + "".join(f"{f'{by:.0%} of {share:.0%}':>14}" for by, share in CUTS))
    for trials in (8, 3):
        for sampled, sigma, requests in (
            (True, 0.5, 30), (True, 0.5, 100), (True, 0.8, 30), (True, 0.8, 100), (False, 0.5, 30), (False, 0.5, 100),
        ):  # fmt: skip
            world = World(sampled, sigma, requests, trials)
            shares = [world.shares(by, share, gates) for by, share in CUTS]
            kind = f"{trials}, {'sampled' if sampled else 'fixed'}, {sigma}, {requests}"
            print(f"{kind:<32}" + "".join(f"{f'{100 * one:.1f} / {100 * two:.0f}':>14}" for one, two in shares))
            name = kind.replace(", ", "_")
            bars.add(f"false_alarms_{name}", shares[0][0], "<=", ALPHA + 3 * math.sqrt(ALPHA / gates))
            bars.add(f"seen_half_of_all_{name}", sum(shares[-1]), ">=", 0.99)
    bars.finish()


if __name__ == "__main__":
    main()
