"""Whether one group of a trial's requests differs from the others, by ratios over blocks of time.

A ratio is the sum of one quantity over the sum of another: tokens of an address over all tokens, ranks over requests.
Its error follows from the residuals of the blocks (linearised ratio; Cochran, Sampling Techniques, ch. 6), whose
variance is that of independent blocks times their autocorrelation time τ, since neighbours wait in one queue.
The test is Student's with n / τ - 1 degrees of freedom; with few independent blocks it finds nothing.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bakeoff.results.statistics.distributions import t_tails
from bakeoff.results.statistics.within import MIN_BLOCKS, TIME_ERROR, autocorrelation_time

Floats = NDArray[np.float64]


class Ratio(NamedTuple):
    """Numerator and denominator in each block, both of shape (blocks,)."""

    above: Floats
    below: Floats

    @property
    def value(self) -> float:
        """The ratio over all blocks."""
        return float(self.above.sum() / self.below.sum())


class Difference(NamedTuple):
    """The difference of two ratios, and the two-sided p value of none."""

    value: float
    p_value: float


def difference(of: Ratio, other: Ratio | float) -> Difference | None:
    """The difference of a ratio from another, or from a constant.

    Args:
        of: of the group.
        other: of the other groups over the same blocks, or a constant.

    Returns:
        None if there are fewer than :data:`~bakeoff.results.statistics.within.MIN_BLOCKS` independent blocks, or a
        denominator is 0.
    """
    parts = [of, *([other] if isinstance(other, Ratio) else [])]
    if len(of.above) < MIN_BLOCKS or not all(part.below.sum() > 0 for part in parts):
        return None
    value = of.value - (other.value if isinstance(other, Ratio) else other)
    residuals = _residuals(of) - (_residuals(other) if isinstance(other, Ratio) else 0.0)
    time, blocks = autocorrelation_time(residuals), len(residuals)
    if blocks / time < MIN_BLOCKS:
        return None
    time *= 1 + TIME_ERROR * time / blocks  # groups that seem to differ are those whose τ came out small
    error = math.sqrt(time * blocks * float(residuals.var(ddof=1)))
    if not error:
        return Difference(value, 1.0 if abs(value) < 1e-12 else 0.0)
    return Difference(value, t_tails(value / error, blocks / time - 1))


def block_sums(values: Floats, members: NDArray[np.bool_], blocks: NDArray[np.int64], count: int) -> Floats:
    """Sums of a group's values in each block.

    Args:
        values: of all requests, shape (requests,).
        members: which of them are the group's.
        blocks: block of each request, from 0.
        count: number of blocks.
    """
    return np.bincount(blocks[members], values[members], count).astype(np.float64)


def ranks_within(strata: NDArray[np.int64], values: Floats) -> Floats:
    """Rank of each value within its stratum, from 0 to 1; equal values share the mean of their ranks."""
    ranks = np.empty(len(values))
    for stratum in np.unique(strata):
        inside = strata == stratum
        _, index, count = np.unique(values[inside], return_inverse=True, return_counts=True)
        ranks[inside] = (np.cumsum(count) - count / 2)[index] / inside.sum()
    return ranks


def strata_of(values: Floats, size: int) -> NDArray[np.int64]:
    """Strata of requests with like values: at least ``size`` in each, equal values never divided."""
    order = np.argsort(values, kind="stable")
    strata = np.zeros(len(values), dtype=np.int64)
    number, begun = 0, 0
    for at in range(1, len(values)):
        if at - begun >= size and len(values) - at >= size and values[order[at]] != values[order[at - 1]]:
            number, begun = number + 1, at
        strata[order[at]] = number
    return strata


def _residuals(ratio: Ratio) -> Floats:
    return (ratio.above - ratio.value * ratio.below) / ratio.below.sum()
