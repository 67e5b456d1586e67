"""The interval of one run's own percentile: what the same run, gone on for longer, might have shown.

It says nothing of another start of the engine, so it is never compared; whether engines differ is told by runs
(:mod:`results.statistics.interval`). Requests are no independent sample: who waits in a queue waits with others, and
the tokens of an answer share its batches. So the hierarchical bootstrap draws whole stretches of time with all their
requests and all their tokens (Künsch 1989; Davison & Hinkley 1997 §3.8, strategy 1); as if requests were independent,
a queue's interval would be several times too narrow.
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

STRETCHES = 20
_DRAWS = 999
_GRID = 1000
"""So many order statistics, at most, a percentile is looked for among."""


def own_interval(requests: Sequence[Sequence[float]], q: float) -> Interval | None:
    """Percentile ``q`` of all observations with its 95 % bootstrap interval.

    Args:
        requests: of each its observations, in the order in which they were planned; it may have none, and a failed
            one has infinity.
        q: 0 < q < 1.

    Returns:
        ``n`` counts observations. None where fewer requests than :data:`STRETCHES` have any.
    """
    told = [one for one in requests if len(one)]
    if len(told) < STRETCHES:
        return None
    edges = [len(told) * i // STRETCHES for i in range(STRETCHES + 1)]
    stretches = [np.sort(np.concatenate(told[a:b])) for a, b in itertools.pairwise(edges)]
    pooled = np.sort(np.concatenate(stretches))
    grid = pooled[np.linspace(0, len(pooled) - 1, min(len(pooled), _GRID)).round().astype(np.int64)]
    below = np.array([np.searchsorted(one, grid, side="right") for one in stretches], dtype=np.float64)
    drawn = _drawn()
    shares = (drawn @ below) / (drawn @ np.array([len(one) for one in stretches]))[:, None]
    centre = float(np.quantile(pooled, q))
    low, high = np.quantile(grid[(shares >= q).argmax(axis=1)], (0.025, 0.975), method="inverted_cdf")
    if not math.isfinite(high):
        return Interval(centre, None, None, len(pooled), "the upper bound lies among failures")
    # Few stretches vary less among themselves than all that could have been: Student's correction.
    wider = t_quantile(0.975, STRETCHES - 1) / NormalDist().inv_cdf(0.975) * math.sqrt(STRETCHES / (STRETCHES - 1))
    return Interval(
        centre, centre - wider * (centre - float(low)), centre + wider * (float(high) - centre), len(pooled)
    )


@functools.cache
def _drawn() -> NDArray[np.float64]:
    """How often each draw has each stretch: the same draws for every trial, so that equal trials have equal bounds."""
    even = np.full(STRETCHES, 1 / STRETCHES)
    return np.random.default_rng(0).multinomial(STRETCHES, even, size=_DRAWS).astype(np.float64)
