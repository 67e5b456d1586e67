"""Bar 3: how soon a step in a series is found, and how often one that is not there. Simulated series, fixed seeds.

    python -m benchmarks.statistics.history [--series 400]

Runs have 1 % of noise. A step of 3 % comes after 100 points; the series is looked at anew with each point after it, as
a history is, and found is a change point within three points of the step. False points are counted in series that never
change, looked at whole, and at each new point on the way: what was ever said counts there.
"""

import argparse
import statistics

import numpy as np

from benchmarks.bars import Bars
from results.statistics.change_points import change_points

NOISE, BEFORE, WITHIN, NEAR = 0.01, 100, 10, 3


def points_until_found(rng: np.random.Generator, step: float, outliers: float = 0.0) -> int | None:
    """Points after the step until it is found; None where ten are too few."""
    logs = rng.normal(0, NOISE, BEFORE + WITHIN)
    logs += np.where(rng.random(len(logs)) < outliers, 0.1, 0.0)
    logs[BEFORE:] += np.log1p(step)
    for after in range(1, WITHIN + 1):
        found = change_points(np.exp(logs[: BEFORE + after]).tolist())
        if any(abs(point.index - BEFORE) <= NEAR for point in found):
            return after
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=400, help="of each kind (default: %(default)s)")
    count = parser.parse_args().series
    bars = Bars()
    for name, step, outliers, least in (
        ("found_3_percent", 0.03, 0.0, 0.95),
        ("found_minus_3_percent", -0.03, 0.0, 0.95),
        ("found_2_percent", 0.02, 0.0, 0.85),
        ("found_3_percent_with_outliers", 0.03, 0.02, 0.90),
    ):
        rng = np.random.default_rng(round(1e4 * step) % 997)
        delays = [points_until_found(rng, step, outliers) for _ in range(count)]
        known = [delay for delay in delays if delay is not None]
        print(f"{name}: after {statistics.median(known)} points, median of {len(known)} of {count}")
        bars.add(name, len(known) / count, ">=", least)
    rng = np.random.default_rng(7)
    whole = [rng.normal(0, NOISE, BEFORE) for _ in range(10 * count)]
    false = sum(len(change_points(np.exp(logs).tolist())) for logs in whole)
    bars.add("false_points_per_1000", 1000 * false / (len(whole) * BEFORE), "<=", 1.0)
    spiked = [logs + np.where(rng.random(BEFORE) < 0.02, 0.1, 0.0) for logs in whole[:count]]
    false = sum(len(change_points(np.exp(logs).tolist())) for logs in spiked)
    bars.add("false_points_per_1000_with_outliers", 1000 * false / (count * BEFORE), "<=", 1.0)
    ever: set[tuple[int, int]] = set()
    for number, logs in enumerate(whole[: count // 2]):
        for length in range(10, BEFORE + 1):
            ever |= {(number, point.index) for point in change_points(np.exp(logs[:length]).tolist())}
    bars.add("false_points_ever_said_per_1000", 1000 * len(ever) / (count // 2 * BEFORE), "<=", 1.0)
    bars.finish()


if __name__ == "__main__":
    main()
