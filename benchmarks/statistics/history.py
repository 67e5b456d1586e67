"""How soon a step in a series is detected, and how often a false one is. Simulated series, fixed seeds.

    python -m benchmarks.statistics.history [--series 200] [--points 100000]

Runs have 1 % of noise, in which neighbours correlate by rho (AR(1)). A step follows 100 points. As in a history, the
series is analysed again after each further point; the step is detected if a change point lies within three points of
it. False points are counted in series of 40, 100 and 400 points that never change, which are analysed as a whole; and
in series that are analysed after each new point, where a point counts even if a later analysis drops it. A drift of 5 %
over 200 points should be reported as a drift that blames no commit. Goals of <= inf or >= 0 only report the figure.
"""

import argparse
import math
import statistics
from collections.abc import Iterator

import numpy as np

from bakeoff.results.statistics.change_points import change_points, course
from benchmarks.bars import Bars

NOISE, BEFORE, WITHIN, NEAR = 0.01, 100, 10, 3
LENGTHS = (40, 100, 400)


def noise(rng: np.random.Generator, count: int, rho: float = 0.0) -> np.ndarray:
    """Stationary AR(1) on the log scale."""
    fresh = rng.normal(0, NOISE, count)
    fresh[1:] *= math.sqrt(1 - rho**2)
    for i in range(1, count):
        fresh[i] += rho * fresh[i - 1]
    return fresh


def spikes(rng: np.random.Generator, count: int, share: float) -> np.ndarray:
    """Outliers of 10 % in a share of the runs."""
    return np.where(rng.random(count) < share, 0.1, 0.0)


def points_until_seen(logs: np.ndarray) -> int | None:
    """Number of points from the step to its detection; None if ten are too few."""
    for after in range(1, WITHIN + 1):
        points = change_points(np.exp(logs[: BEFORE + after]).tolist())
        if any(abs(point.index - BEFORE) <= NEAR for point in points):
            return after
    return None


def share_seen(name: str, count: int, step: float, *, rho: float = 0.0, outliers: float = 0.0) -> float:
    """Share of series in which a step is detected; prints the delay in points."""
    rng = np.random.default_rng(round(1e4 * step) % 997)
    delays: list[int] = []
    for _ in range(count):
        logs = noise(rng, BEFORE + WITHIN, rho) + spikes(rng, BEFORE + WITHIN, outliers)
        logs[BEFORE:] += np.log1p(step)
        delays += [delay] if (delay := points_until_seen(logs)) else []
    print(f"{name}: after {statistics.median(delays)} points, median of {len(delays)} of {count}", flush=True)
    return len(delays) / count


def constant_series(points: int, rho: float, seed: int = 7) -> Iterator[np.ndarray]:
    """Series that never change, with a third of all points in series of each length."""
    rng = np.random.default_rng(seed)
    for length in LENGTHS:
        yield from (noise(rng, length, rho) for _ in range(math.ceil(points / len(LENGTHS) / length)))


def false_per_1000(points: int, rho: float) -> float:
    """Steps and drifts in 1,000 points of series that never change."""
    total = false = 0
    for logs in constant_series(points, rho):
        detected = course(np.exp(logs).tolist())
        false += len(detected.steps) + sum(stretch.is_drift for stretch in detected.stretches)
        total += len(logs)
    return 1000 * false / total


def false_ever_per_1000(series: int, rho: float) -> float:
    """Steps that any analysis reported while a series grew to 100 points, in 1,000 points."""
    rng = np.random.default_rng(11)
    reported: set[tuple[int, int]] = set()
    for number in range(series):
        logs = noise(rng, BEFORE, rho)
        for length in range(10, BEFORE + 1):
            reported |= {(number, point.index) for point in change_points(np.exp(logs[:length]).tolist())}
    return 1000 * len(reported) / (series * BEFORE)


def drifts(series: int, rho: float) -> tuple[float, float]:
    """Steps per series that drifts by 5 % over 200 points, and share of these series reported as a drift."""
    rng = np.random.default_rng(13)
    drift = np.linspace(0, math.log(1.05), 200)
    courses = [course(np.exp(noise(rng, 200, rho) + drift).tolist()) for _ in range(series)]
    are_drifts = [any(stretch.is_drift for stretch in detected.stretches) for detected in courses]
    return sum(len(detected.steps) for detected in courses) / series, sum(are_drifts) / series


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=200, help="with a step, of each kind (default: %(default)s)")
    parser.add_argument("--points", type=int, default=100_000, help="without one, for each rho (default: %(default)s)")
    options = parser.parse_args()
    count, bars = options.series, Bars()
    for rho, most in ((0.0, 0.1), (0.3, math.inf), (0.5, math.inf), (0.7, 1.0), (0.9, math.inf)):
        bars.add(f"false_points_per_1000_rho_{rho}", false_per_1000(options.points, rho), "<=", most)
    rng = np.random.default_rng(17)
    spiked = [noise(rng, BEFORE) + spikes(rng, BEFORE, 0.02) for _ in range(count)]
    false = sum(len(change_points(np.exp(logs).tolist())) for logs in spiked)
    bars.add("false_points_per_1000_with_outliers", 1000 * false / (count * BEFORE), "<=", 1.0)
    for rho, most in ((0.0, 1.0), (0.7, math.inf)):
        bars.add(f"false_points_ever_said_per_1000_rho_{rho}", false_ever_per_1000(count // 2, rho), "<=", most)
    for name, step, rho, outliers, least in (
        ("seen_5_percent", 0.05, 0.0, 0.0, 0.90),
        ("seen_3_percent", 0.03, 0.0, 0.0, 0.95),
        ("seen_minus_3_percent", -0.03, 0.0, 0.0, 0.95),
        ("seen_2_percent", 0.02, 0.0, 0.0, 0.80),
        ("seen_3_percent_with_outliers", 0.03, 0.0, 0.02, 0.90),
        ("seen_5_percent_rho_0.7", 0.05, 0.7, 0.0, 0.0),
    ):
        bars.add(name, share_seen(name, count, step, rho=rho, outliers=outliers), ">=", least)
    for rho, most, least in ((0.0, 0.2, 0.9), (0.5, math.inf, 0.0), (0.7, math.inf, 0.0)):
        steps, share = drifts(count // 2, rho)
        bars.add(f"steps_blamed_for_a_drift_rho_{rho}", steps, "<=", most)
        bars.add(f"drifts_known_as_such_rho_{rho}", share, ">=", least)
    bars.finish()


if __name__ == "__main__":
    main()
