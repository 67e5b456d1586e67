"""How often verdicts are false alarms, and how often they miss a change. Simulated runs, fixed seeds.

    python -m benchmarks.statistics.verdicts [--comparisons 2000]

A run is one value, log-normal around its engine's value with 2 % noise from run to run. The sides are interleaved A B B
A A B…; a drift over the session, or noise that both runs of a repeat share, can be added. False alarms are counted with
an equivalence band of 0.1 %, which hides none; true changes must be detected with the default band of 3 %.
"""

import argparse
import dataclasses
import math

import numpy as np

from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.statistics import ALPHA, BAND, Comparison, Judgement, compare_runs, guardrails, log_t_interval
from bakeoff.results.statistics.comparison import Criteria
from bakeoff.results.statistics.sequential import analysis_schedule, nominal_levels
from benchmarks.bars import Bars

METRIC = CATALOGUE["itl_p50_s"]
NARROW = 0.001
ALARMS = {Judgement.BETTER, Judgement.WORSE}
Sides = tuple[dict[int, float], dict[int, float]]


@dataclasses.dataclass(frozen=True)
class World:
    """True difference of the engines, and the noise of their runs."""

    runs: int
    effect: float = 0.0
    cv: float = 0.02
    shared: float = 0.0
    drift: float = 0.0

    def sides(self, rng: np.random.Generator) -> Sides:
        """Simulate one experiment; returns repeat → value of both sides."""
        shared = rng.normal(0, self.shared, self.runs)
        sides: Sides = ({}, {})
        for repeat in range(self.runs):
            first = repeat % 2  # A B, B A, A B…
            for position, side in enumerate((first, 1 - first)):
                progress = (2 * repeat + position) / (2 * self.runs - 1)
                log = math.log1p(self.effect) * side + self.drift * progress + shared[repeat] + rng.normal(0, self.cv)
                sides[side][repeat] = math.exp(log)
        return sides


def judgements(world: World, count: int, seed: int, band: float, alpha: float = ALPHA) -> list[Judgement]:
    """The judgements of `compare_runs` on ``count`` experiments."""
    rng = np.random.default_rng(seed)
    return [
        compare_runs(
            METRIC, "c=8", *world.sides(rng), interleaved=True, criteria=Criteria(alpha=alpha, band=band)
        ).judgement
        for _ in range(count)
    ]


def share(results: list[Judgement], wanted: set[Judgement]) -> float:
    return sum(judgement in wanted for judgement in results) / len(results)


def false_alarms(bars: Bars, count: int) -> None:
    """Alarms although the engines do not differ."""
    worlds = {
        "false_alarms": (World(8), 0.015),
        "false_alarms_5_runs": (World(5), 0.015),
        "false_alarms_3_runs": (World(3), 0.015),
        "false_alarms_drift_3_percent": (World(8, drift=0.03), 0.02),
        "false_alarms_shared_noise_1_percent": (World(8, shared=0.01), 0.015),
        "false_alarms_shared_noise_15_percent": (World(8, shared=0.15), 0.015),
    }
    for seed, (name, (world, most)) in enumerate(worlds.items()):
        bars.add(name, share(judgements(world, count, seed, NARROW), ALARMS), "<=", most)


def two_noisier_trials(bars: Bars, count: int) -> None:
    """Alarms of equal engines with eight trials of A and two of B, whose noise is a multiple of A's."""
    for seed, (ratio, most) in enumerate(((1, 0.015), (2, 0.015), (10, 0.045)), start=10):
        rng, alarms = np.random.default_rng(seed), 0
        for _ in range(count):
            a, b = (
                dict(enumerate(np.exp(rng.normal(0, cv, trials)).tolist()))
                for cv, trials in ((0.01, 8), (0.01 * ratio, 2))
            )
            alarms += (
                compare_runs(METRIC, "c=8", a, b, interleaved=False, criteria=Criteria(band=NARROW)).judgement in ALARMS
            )
        bars.add(f"false_alarms_two_trials_{ratio}_times_noisier", alarms / count, "<=", most)


def true_changes(bars: Bars, count: int) -> None:
    """Detections if the engines differ."""
    worlds = {
        "found_5_percent_8_runs": (World(8, effect=0.05), 0.90),
        "found_10_percent_5_runs": (World(5, effect=0.10), 0.95),
        "found_10_percent_8_runs_shared_noise_15_percent": (World(8, effect=0.10, shared=0.15), 0.95),
    }
    for seed, (name, (world, least)) in enumerate(worlds.items(), start=20):
        bars.add(name, share(judgements(world, count, seed, BAND), {Judgement.WORSE}), ">=", least)


def coverage(bars: Bars, count: int) -> None:
    """95 % intervals, of one engine and of a ratio."""
    for runs in (3, 5, 8):
        rng, world = np.random.default_rng(40 + runs), World(runs, effect=0.05)
        interval_hits = ratio_hits = 0
        for _ in range(count):
            a, b = world.sides(rng)
            interval = log_t_interval(list(a.values()))
            ratio = compare_runs(METRIC, "c=8", a, b, interleaved=True, criteria=Criteria(alpha=0.05)).ratio
            interval_hits += interval is not None and (interval.low or 0) <= 1 <= (interval.high or 0)
            ratio_hits += ratio is not None and (ratio.low or 0) <= 1.05 <= (ratio.high or 0)
        for name, covered in (("interval", interval_hits), ("ratio", ratio_hits)):
            bars.add(f"{name}_coverage_{runs}_runs", covered / count, ">=", 0.93)
            bars.add(f"{name}_coverage_{runs}_runs_at_most", covered / count, "<=", 0.97)


def many_metrics(bars: Bars, reports: int, metrics: int = 60) -> None:
    """One report of many guardrails, none of which changed."""
    rng, world = np.random.default_rng(60), World(8)
    alarmed = 0
    for _ in range(reports):
        comparisons = [
            compare_runs(
                METRIC, f"metric {number}", *world.sides(rng), interleaved=True, criteria=Criteria(band=NARROW)
            )
            for number in range(metrics)
        ]
        alarmed += any(comparison.judgement in ALARMS for comparison in guardrails(comparisons))
    bars.add(f"any_alarm_among_{metrics}_metrics", alarmed / reports, "<=", 0.05)


def many_tails(bars: Bars, reports: int, metrics: int = 12) -> None:
    """One report of guardrails whose values lie among failures in 30 % of the trials of both sides."""
    for runs in (5, 8):
        rng, world, alarmed = np.random.default_rng(70 + runs), World(runs), 0
        for _ in range(reports):
            comparisons: list[Comparison] = []
            for number in range(metrics):
                a, b = (
                    {repeat: math.inf if rng.random() < 0.3 else value for repeat, value in side.items()}
                    for side in world.sides(rng)
                )
                comparisons.append(compare_runs(METRIC, f"metric {number}", a, b, interleaved=True))
            alarmed += any(comparison.judgement in ALARMS for comparison in guardrails(comparisons))
        bars.add(f"any_alarm_among_{metrics}_tails_{runs}_runs", alarmed / reports, "<=", 0.03)


def sequential(bars: Bars, count: int) -> None:
    """False alarms and detections of sequential comparisons, which end at the first look with a clear verdict."""
    looks = analysis_schedule(8)
    levels = nominal_levels(ALPHA, looks)
    print(f"looks after {looks} repeats, at " + ", ".join(f"{level:.4f}" for level in levels))
    for seed, (effect, band, wanted) in enumerate(((0.0, NARROW, ALARMS), (0.05, BAND, {Judgement.WORSE})), start=80):
        rng, world, hits, used = np.random.default_rng(seed), World(8, effect=effect), 0, 0
        for _ in range(count):
            a, b = world.sides(rng)
            for look, level in zip(looks, levels, strict=True):
                sides = ({repeat: side[repeat] for repeat in range(look)} for side in (a, b))
                judgement = compare_runs(
                    METRIC, "c=8", *sides, interleaved=True, criteria=Criteria(alpha=level, band=band)
                ).judgement
                if judgement is not Judgement.UNCLEAR:
                    break
            hits += judgement in wanted
            used += look
        name = "sequential_found_5_percent" if effect else "sequential_false_alarms"
        print(f"{name}: {used / count:.2f} of 8 repeats on average")
        bars.add(name, hits / count, ">=" if effect else "<=", 0.90 if effect else 0.015)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=2_000, help="of each kind (default: %(default)s)")
    count = parser.parse_args().comparisons
    bars = Bars()
    false_alarms(bars, count)
    two_noisier_trials(bars, count)
    true_changes(bars, count)
    coverage(bars, count)
    many_metrics(bars, count)
    many_tails(bars, count)
    sequential(bars, count)
    bars.finish()


if __name__ == "__main__":
    main()
