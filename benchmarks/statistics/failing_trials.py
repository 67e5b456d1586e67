"""How often failed trials alone make a gate say regression or cannot tell. Simulated trials, fixed seeds.

    python -m benchmarks.statistics.failing_trials [--gates 2000]

Each trial is saturated with a fixed probability, whatever its neighbours do. A gate measured now analyses its trials at
the repeats and levels of ``bakeoff gate``; it ends at the first analysis that calls the candidate worse, and nothing
else ends it. Exit 1 is a regression, exit 2 a larger share of failures that may be chance.
"""

import argparse
import dataclasses
import itertools
import math

import numpy as np

from bakeoff.results.compare.reliability import tallies
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import invalid
from bakeoff.results.records import Load, TrialRecord, Verdict, Window
from bakeoff.results.statistics import Judgement
from bakeoff.results.statistics.sequential import analysis_schedule, nominal_levels
from benchmarks.bars import Bars
from benchmarks.statistics.gate import ALPHA, PLANS

LOADS = [Load(concurrency=2**power) for power in range(3)]
RATES = (0.02, 0.05, 0.10, 0.20, 0.30, 0.40)
"""Of equal engines."""
RATES_OF_B = (0.3, 0.5, 1.0)
"""Of a candidate whose baseline never fails."""


def record(load: Load, verdict: Verdict) -> TrialRecord:
    findings = [invalid(FindingCode.SATURATED)] if verdict is Verdict.INVALID else []
    return TrialRecord(
        PLANS[0].id, "", "w", load, 1, order=0, started_ns=0, ended_ns=0, issue_start_ns=0, issue_end_ns=0,
        window=Window(0, 1), planned_requests=1, workload_sha256="w", verdict=verdict, findings=findings,
    )  # fmt: skip


RECORDS = [[record(load, verdict) for verdict in (Verdict.VALID, Verdict.INVALID)] for load in LOADS]


@dataclasses.dataclass(frozen=True)
class World:
    """Failure rates of both engines; ``repeats`` of each load, all stored or measured now."""

    a: float
    b: float
    repeats: int = 8
    loads: int = 1
    now: bool = True

    def outcome(self, rng: np.random.Generator) -> Judgement:
        """The worst judgement of one gate."""
        failed = [rng.random((self.loads, self.repeats)) < rate for rate in (self.a, self.b)]
        looks = analysis_schedule(self.repeats) if self.now else [self.repeats]
        words: set[Judgement] = set()
        for look, alpha in zip(looks, nominal_levels(ALPHA, looks), strict=True):
            sides = [
                [
                    RECORDS[load][int(side[load, repeat])]
                    for load, repeat in itertools.product(range(self.loads), range(look))
                ]
                for side in failed
            ]
            labels = [load.label for load in LOADS[: self.loads]]
            words = {tally.judgement for tally in tallies(*sides, labels, alpha=alpha)}
            if Judgement.WORSE in words:
                return Judgement.WORSE
        return Judgement.UNCLEAR if Judgement.UNCLEAR in words else Judgement.SAME

    def shares(self, gates: int) -> tuple[float, float]:
        """Shares of exit 1 and of exit 2."""
        rng = np.random.default_rng(0)
        outcomes = [self.outcome(rng) for _ in range(gates)]
        return outcomes.count(Judgement.WORSE) / gates, outcomes.count(Judgement.UNCLEAR) / gates


KINDS = {
    "now_8": {},
    "now_8_three_loads": {"loads": 3},
    "now_4": {"repeats": 4},
    "now_3": {"repeats": 3},
    "stored_8": {"now": False},
    "stored_2": {"repeats": 2, "now": False},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", type=int, default=2_000, help="of each kind (default: %(default)s)")
    gates = parser.parse_args().gates
    bars, limit = Bars(), ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / gates)
    headings = [f"{rate:.0%}" for rate in RATES] + [f"0/{rate:.0%}" for rate in RATES_OF_B]
    print(f"exit 1 / exit 2, {gates} gates a cell; failure rate of both engines, or of baseline/candidate")
    print(" " * 18 + "".join(f"{heading:>12}" for heading in headings))
    for kind, changes in KINDS.items():
        alike = [World(rate, rate, **changes).shares(gates) for rate in RATES]
        worse = [World(0.0, rate, **changes).shares(gates) for rate in RATES_OF_B]
        cells = [f"{100 * exit_1:.1f} / {100 * exit_2:.0f}" for exit_1, exit_2 in (*alike, *worse)]
        print(f"{kind:<18}" + "".join(f"{cell:>12}" for cell in cells))
        bars.add(f"false_alarms_{kind}", max(exit_1 for exit_1, _ in alike), "<=", limit)
        if kind != "stored_2":  # two trials a side are too few
            bars.add(f"found_100_percent_{kind}", worse[-1][0], "==", 1.0)
        bars.add(f"no_pass_50_percent_{kind}", sum(worse[1]), ">=", 0.75 if kind == "stored_2" else 0.87)
    bars.add("found_75_percent_now_8", World(0.0, 0.75).shares(gates)[0], ">=", 0.80)
    bars.finish()


if __name__ == "__main__":
    main()
