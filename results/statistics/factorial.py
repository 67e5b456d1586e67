"""Main effects and interactions of a full factorial experiment in blocks.

Each combination of the factors' values has been measured in repeats, and repeat ``r`` of all combinations lies in one
block, whose state of the machine they share. With y = μ_c + b_r + e, an effect is a contrast of the means of
combinations (Montgomery, Design and Analysis of Experiments, 8th ed. 2012, ch. 5): of a value, the mean over the
combinations that have it, less that over all; of a pair of values, what its mean has beyond the sum of both effects.
Blocks cancel in it. Its standard error is s √(Σ w² / R), with the residual variance s² of the model on (C − 1)(R − 1)
degrees of freedom. If repeats are missing, each combination's own mean is used, with the variance within them.

The interval of a pair's largest interaction holds for all interactions of the pair at once (Bonferroni), since the
largest was chosen for its size.

The shares of variation divide Σ (μ_c − μ)² among factors and pairs, exactly, since a full factorial is orthogonal; the
rest belongs to interactions of three and more. Part of every share is noise.
"""

import itertools
import math
from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from bakeoff.results.statistics.best import Floats, means_of
from bakeoff.results.statistics.distributions import t_quantile
from bakeoff.results.statistics.interval import Interval

Combination = tuple[int, ...]
"""Position of the value of each factor."""
_ONE_EACH = "one trial of each combination has no interval; two or more give one"


class Effect(msgspec.Struct, frozen=True):
    """The effect of a value of one factor, or the largest interaction of two.

    Attributes:
        factors: positions of the one or two factors.
        values: positions of their values.
        size: on the scale of the observations; without bounds if there is one repeat.
        share: of the variation between combinations that belongs to these factors; None if nothing varies.
    """

    factors: tuple[int, ...]
    values: tuple[int, ...]
    size: Interval
    share: float | None


def effects(cells: Mapping[Combination, Mapping[int, float]], confidence: float = 0.95) -> list[Effect]:
    """The effects of every value of every factor, then of each pair of factors the largest.

    Args:
        cells: combination → repeat → observation; every combination has at least one.
        confidence: two-sided level of the intervals, 0 < c < 1.
    """
    table = _table(cells, confidence)
    levels = (table.places.max(0) + 1).tolist()
    found = [_effect((factor,), (value,), table) for factor, count in enumerate(levels) for value in range(count)]
    for pair in itertools.combinations(range(len(levels)), 2):
        values = list(itertools.product(*(range(levels[factor]) for factor in pair)))
        # The largest of many: Bonferroni over those that differ in more than their sign.
        distinct = len(values) // math.prod(2 for factor in pair if levels[factor] == 2)
        strict = msgspec.structs.replace(table, confidence=1 - (1 - confidence) / max(1, distinct))
        found.append(max((_effect(pair, each, strict) for each in values), key=lambda effect: abs(effect.size.centre)))
    return found


class _Table(msgspec.Struct, frozen=True):
    """Means of the combinations.

    Attributes:
        places: int64 [combinations, factors].
        means: [combinations].
        errors: [combinations], standard error of each.
        degrees: of freedom of these; 0 if they are unknown.
        trials: observations in all.
        confidence: of the intervals.
    """

    places: npt.NDArray[np.int64]
    means: Floats
    errors: Floats
    degrees: int
    trials: int
    confidence: float


def _table(cells: Mapping[Combination, Mapping[int, float]], confidence: float) -> _Table:
    combinations = sorted(cells)
    means = means_of([cells[each] for each in combinations])
    trials = sum(map(len, cells.values()))
    return _Table(np.array(combinations), means.centres, means.errors, means.degrees, trials, confidence)


def _effect(factors: tuple[int, ...], values: tuple[int, ...], table: _Table) -> Effect:
    weights = _weights(factors, values, table.places)
    centre, low, high = float(weights @ table.means), None, None
    if table.degrees:
        error = math.sqrt(float(((weights * table.errors) ** 2).sum()))
        half = t_quantile((1 + table.confidence) / 2, table.degrees) * error
        low, high = centre - half, centre + half
    size = Interval(centre, low, high, table.trials, None if table.degrees else _ONE_EACH)
    return Effect(factors, values, size, _share(factors, table))


def _weights(factors: tuple[int, ...], values: tuple[int, ...], places: npt.NDArray[np.int64]) -> Floats:
    """Weights of the combinations' means in an effect; by inclusion and exclusion over the factors."""
    weights = np.zeros(len(places))
    for size in range(len(factors) + 1):
        for chosen in itertools.combinations(range(len(factors)), size):
            has = np.ones(len(places), dtype=bool)
            for position in chosen:
                has &= places[:, factors[position]] == values[position]
            weights += (-1) ** (len(factors) - size) * has / has.sum()
    return weights


def _share(factors: tuple[int, ...], table: _Table) -> float | None:
    """Part of the variation: the squared effects of all values of the factors, each as often as it occurs."""
    total = float(((table.means - table.means.mean()) ** 2).sum())
    if total <= 0:
        return None
    found, counts = np.unique(table.places[:, list(factors)], axis=0, return_counts=True)
    squared = [float(_weights(factors, tuple(values), table.places) @ table.means) ** 2 for values in found.tolist()]
    return float(np.dot(squared, counts)) / total
