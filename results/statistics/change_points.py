"""Where a series of runs changed: steps of a level, each tested, the same answer every time.

1. The noise comes from differences of neighbours (median absolute deviation), which no step and no drift inflates.
2. A run that went wrong is no step: a value further than three times the noise from the median of its neighbours is
   taken for that median (Hampel's filter, which leaves steps as they are).
3. The best division into segments minimises the squared distances to the segments' means plus a price for each segment
   (optimal partitioning: Jackson et al. 2005). All segments are found at once, so that a step up and the step back do
   not hide each other.
4. Each step must hold before Student's t of its two segments; the weakest is taken out and its segments joined until
   all hold.

Hunter (Fleming et al., ICPE 2023), now Apache Otava, is the peer: docs/decisions/history-steps.md.
"""

import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from results.statistics.distributions import t_tails

LEAST_POINTS = 3
"""Of a segment: fewer are no level."""
_PRICE = 14.0  # squares of the noise that a segment must save: steps of 3.7 standard errors
_MOST_P = 3e-5
_FURTHEST = 3.0  # times the noise, from the neighbours' median
_NEIGHBOURS = 3  # to either side
_MAD_TO_SIGMA = 1.4826
_LEAST_NOISE = 1e-6  # of a value: what is printed with six digits has no less


class ChangePoint(msgspec.Struct, frozen=True):
    """A step between two runs.

    Attributes:
        index: of the first point of the new level.
        before: geometric mean of the level that ended.
        after: of the one that began, up to the next change.
        p_value: of no step there, for this division; divisions were searched for it.
    """

    index: int
    before: float
    after: float
    p_value: float

    @property
    def ratio(self) -> float:
        """New level over old."""
        return self.after / self.before


def change_points(values: Sequence[float]) -> list[ChangePoint]:
    """All steps of a series.

    Args:
        values: one number a run, above 0, oldest first.
    """
    if len(values) < 2 * LEAST_POINTS:
        return []
    raw = np.log(np.asarray(values, dtype=np.float64))
    noise = _noise(raw)
    logs = _without_outliers(raw, noise)
    edges = _merged(logs, _divided((logs - logs[0]) / noise), noise)
    levels = [float(np.mean(logs[first:last])) for first, last in itertools.pairwise(edges)]
    return [
        ChangePoint(edge, math.exp(levels[i]), math.exp(levels[i + 1]), _p_value(logs, edges[i : i + 3], noise))
        for i, edge in enumerate(edges[1:-1])
    ]


def _noise(logs: np.ndarray) -> float:
    differences = np.diff(logs)
    spread = float(np.median(np.abs(differences - np.median(differences))))
    return max(_MAD_TO_SIGMA * spread / math.sqrt(2), _LEAST_NOISE)


def _without_outliers(logs: np.ndarray, noise: float) -> np.ndarray:
    around = [logs[max(0, i - _NEIGHBOURS) : i + _NEIGHBOURS + 1] for i in range(len(logs))]
    middle = np.array([np.median(some) for some in around])
    return np.where(np.abs(logs - middle) > _FURTHEST * noise, middle, logs)


def _divided(scaled: np.ndarray) -> list[int]:
    """Edges of the cheapest segments, 0 and the length included; of values whose noise is 1.

    The squared distances to a mean are Σx² − (Σx)²/n, and Σx² is the same however the values are divided.
    """
    count = len(scaled)
    sums = np.r_[0.0, np.cumsum(scaled)]
    cheapest, came_from = np.full(count + 1, np.inf), np.zeros(count + 1, dtype=np.int64)
    cheapest[0] = 0.0
    for end in range(LEAST_POINTS, count + 1):
        starts = np.arange(end - LEAST_POINTS + 1)
        totals = cheapest[starts] + _PRICE - (sums[end] - sums[starts]) ** 2 / (end - starts)
        came_from[end] = int(np.argmin(totals))
        cheapest[end] = totals[came_from[end]]
    edges = [count]
    while edges[-1]:
        edges.append(int(came_from[edges[-1]]))
    return edges[::-1]


def _merged(logs: np.ndarray, edges: list[int], noise: float) -> list[int]:
    """The edges without those that are no step."""
    while len(edges) > 2:
        p_values = [_p_value(logs, edges[i : i + 3], noise) for i in range(len(edges) - 2)]
        weakest = int(np.argmax(p_values))
        if p_values[weakest] <= _MOST_P:
            return edges
        edges = edges[: weakest + 1] + edges[weakest + 2 :]
    return edges


def _p_value(logs: np.ndarray, edges: Sequence[int], noise: float) -> float:
    """Student's t of the two segments between three edges, with their common variance, at least the series' own."""
    left, right = (logs[first:last] for first, last in itertools.pairwise(edges))
    degrees = len(left) + len(right) - 2
    variance = float(left.var() * len(left) + right.var() * len(right)) / degrees
    error = math.sqrt(max(variance, noise**2) * (1 / len(left) + 1 / len(right)))
    return t_tails(float(right.mean() - left.mean()) / error, degrees)
