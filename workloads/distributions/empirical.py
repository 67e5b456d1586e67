"""Tables of a sample's quantiles, and the Kolmogorov-Smirnov distance.

The distance is the largest difference between two cumulative distribution functions.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bakeoff.workloads.distributions.families import Family, Quantiles

KNOTS = (0.0, 0.001, 0.005, 0.01, *(i / 20 for i in range(1, 20)), 0.975, 0.99, 0.995, 0.999, 0.9995, 1.0)
"""Levels in every table."""
_MOST_KNOTS = 64
_NEAR = 0.01
_GAP = 1e-6
"""Difference in level between the two knots of a jump in value."""
_LEVELS = 20_000

Floats = NDArray[np.float64]


def quantiles_of(values: Sequence[float] | Floats, knots: Sequence[float] = KNOTS) -> Quantiles:
    """Tabulate a sample: quantiles at ``knots``, refined where the table is farthest from the sample.

    Knots are added until the Kolmogorov-Smirnov distance is below 0.01 or there are 64. Each knot is a corner of the
    empirical distribution function, so modes become mass points and empty ranges become gaps.

    Args:
        values: the sample, at least one value, all finite, in any order.
        knots: initial levels, increasing from 0 to 1.

    Raises:
        ValueError: the sample is empty, or a value is not finite.
    """
    places, counts = np.unique(_checked(values), return_counts=True)
    upto = np.cumsum(counts) / counts.sum()
    below = np.concatenate(([0.0], upto[:-1]))
    steps = np.searchsorted(upto, np.asarray(knots, float) * (1 - 1e-12))
    corners = {(float(level), float(places[i])) for level, i in zip(knots, steps, strict=True)}
    while True:
        table = _table(corners)
        over = upto - _shares(table, places, "right")
        under = below - _shares(table, places, "left")
        i, j = int(np.abs(over).argmax()), int(np.abs(under).argmax())
        if max(abs(over[i]), abs(under[j])) < _NEAR or len(table.levels) >= _MOST_KNOTS:
            return table
        corner = (upto[i], places[i]) if abs(over[i]) >= abs(under[j]) else (below[j], places[j])
        if corner in corners:
            return table
        corners.add((float(corner[0]), float(corner[1])))


def ks_distance(sample: Sequence[float] | Floats, other: Family | Sequence[float] | Floats) -> float:
    """Kolmogorov-Smirnov distance of a sample from a distribution (within 0.0001) or from another sample (exact).

    Raises:
        ValueError: a sample is empty, or a value is not finite.
    """
    data = np.sort(_checked(sample))
    if isinstance(other, Family):
        # With the quantile x at level p, the distribution has at least p up to x and at most p below x.
        levels = np.arange(_LEVELS + 1) / _LEVELS
        at = np.array([other.at(p) for p in levels.tolist()])
        over = levels - np.searchsorted(data, at, "right") / len(data)
        under = np.searchsorted(data, at, "left") / len(data) - levels
        return float(max(over.max(), under.max()))
    rest = np.sort(_checked(other))
    places = np.concatenate((data, rest))
    shares = [np.searchsorted(side, places, "right") / len(side) for side in (data, rest)]
    return float(np.abs(shares[0] - shares[1]).max())


def _checked(values: Sequence[float] | Floats) -> Floats:
    data = np.asarray(values, float)
    if data.size == 0 or not np.isfinite(data).all():
        raise ValueError("a sample needs at least one value, and every value must be finite")
    return data


def _table(corners: set[tuple[float, float]]) -> Quantiles:
    """Sort the corners, drop those within a mass point, and separate the levels of each jump."""
    levels: list[float] = []
    values: list[float] = []
    for level, value in sorted(corners):
        risen = max(round(level, 6), levels[-1] + _GAP) if levels else 0.0
        if level < 1 and risen >= 1:
            continue
        if len(values) > 1 and values[-2] == values[-1] == value:
            levels.pop()
            values.pop()
        levels.append(min(risen, 1.0))
        values.append(value)
    return Quantiles(tuple(levels), tuple(values))


def _shares(table: Quantiles, places: Floats, side: Literal["left", "right"]) -> Floats:
    """P(X ≤ place) for ``right``, P(X < place) for ``left``."""
    levels, values = np.asarray(table.levels), np.asarray(table.values)
    after = np.searchsorted(values, places, side)
    shares = (after == len(values)).astype(float)
    inside = (after > 0) & (after < len(values))
    i = after[inside]
    rise = (places[inside] - values[i - 1]) / (values[i] - values[i - 1])
    shares[inside] = levels[i - 1] + rise * (levels[i] - levels[i - 1])
    return shares
