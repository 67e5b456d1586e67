"""Interval of a percentile within one trial, by block bootstrap.

The interval covers what the same trial would have shown with more requests. It does not include the noise between
engine starts, so engines are never compared by it (see :mod:`results.statistics.interval`). Requests are not
independent: they wait in one queue, and the tokens of a response share its batches. The bootstrap therefore resamples
blocks of time with all their requests and tokens (Künsch 1989; Davison & Hinkley 1997 §3.8, strategy 1). Assuming
independent requests would make the interval of a queue several times too narrow.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from results.statistics.distributions import t_quantile
from results.statistics.interval import Interval

BLOCKS = 20
_DRAWS = 999
_GRID = 1000
"""Maximum number of order statistics among which a percentile is sought."""


def own_interval(requests: Sequence[Sequence[float]], q: float) -> Interval | None:
    """Percentile ``q`` of all observations with its 95 % bootstrap interval.

    Args:
        requests: observations of each request, in planned order; possibly none, infinity for a failed request.
        q: 0 < q < 1.

    Returns:
        ``n`` counts observations. None if fewer requests than :data:`BLOCKS` have observations.
    """
    observed = [values for values in requests if len(values)]
    if len(observed) < BLOCKS:
        return None
    edges = [len(observed) * i // BLOCKS for i in range(BLOCKS + 1)]
    blocks = [np.sort(np.concatenate(observed[a:b])) for a, b in itertools.pairwise(edges)]
    pooled = np.sort(np.concatenate(blocks))
    grid = pooled[np.linspace(0, len(pooled) - 1, min(len(pooled), _GRID)).round().astype(np.int64)]
    below = np.array([np.searchsorted(block, grid, side="right") for block in blocks], dtype=np.float64)
    drawn = _drawn()
    shares = (drawn @ below) / (drawn @ np.array([len(block) for block in blocks]))[:, None]
    centre = float(np.quantile(pooled, q))
    low, high = np.quantile(grid[(shares >= q).argmax(axis=1)], (0.025, 0.975), method="inverted_cdf")
    if not math.isfinite(high):
        return Interval(centre, None, None, len(pooled), "the upper bound lies among failures")
    # Student's correction for the small number of blocks.
    factor = t_quantile(0.975, BLOCKS - 1) / NormalDist().inv_cdf(0.975) * math.sqrt(BLOCKS / (BLOCKS - 1))
    return Interval(
        centre, centre - factor * (centre - float(low)), centre + factor * (float(high) - centre), len(pooled)
    )


@functools.cache
def _drawn() -> NDArray[np.float64]:
    """Counts of each block in each resample, shape (draws, blocks); fixed, so that equal trials have equal bounds."""
    even = np.full(BLOCKS, 1 / BLOCKS)
    return np.random.default_rng(0).multinomial(BLOCKS, even, size=_DRAWS).astype(np.float64)
