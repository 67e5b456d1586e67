"""Draws from the tokens that min-p, top-k and top-p keep, for all rows that use any of them at once.

In vLLM's order: min-p (arXiv 2407.01082) of the whole distribution; of the rest the k most likely (arXiv 1805.04833);
of those, normalised to 1, the most likely whose probabilities reach p (the nucleus, arXiv 1904.09751), including the
token that crosses the threshold.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.sampling.blocks import BlockedScores
from bakeoff.reference_engine.sampling.ranking import rank, top_k_floors


def draw_truncated(
    blocked: BlockedScores, params: Sequence[SamplingParams], uniforms: NDArray[np.float64]
) -> NDArray[np.int64]:
    """One token per row.

    Args:
        blocked: scores of the rows.
        params: of each row; its temperature is above 0.
        uniforms: [num_rows] in [0, 1).

    Returns:
        Token ids [num_rows].
    """
    settings = np.array([(sampling.temperature, sampling.min_p, sampling.top_p) for sampling in params])
    temperatures, min_ps, top_ps = settings[:, 0], settings[:, 1], settings[:, 2]
    ks = np.array([min(sampling.top_k, blocked.vocab_size) for sampling in params])
    floors, sums = _floors(blocked, temperatures, ks, min_ps, top_ps)
    ranked = rank(blocked, floors)
    limits = np.where(ks > 0, np.minimum(ks, ranked.counts), ranked.counts)
    with np.errstate(invalid="ignore"):  # a row in which everything is forbidden
        weights = np.exp((ranked.scores - blocked.top.astype(np.float64)) / temperatures[:, None])
    weights[np.arange(weights.shape[1]) >= limits[:, None]] = 0.0
    weights[weights < min_ps[:, None]] = 0.0
    cumulative = weights.cumsum(axis=-1)
    sums = np.where(sums > 0, sums, cumulative[:, -1])
    is_kept = (cumulative - weights < (top_ps * sums)[:, None]) & (weights > 0)
    last = np.maximum(is_kept.sum(axis=-1) - 1, 0)  # weights fall, so the kept ones come first
    rows = np.arange(len(params))
    index = (cumulative <= (cumulative[rows, last] * uniforms)[:, None]).sum(axis=-1)
    # If everything is forbidden nothing is ranked, and any token will do.
    return np.minimum(ranked.tokens[rows, np.minimum(index, last)], blocked.vocab_size - 1)


def _floors(
    blocked: BlockedScores,
    temperatures: NDArray[np.float64],
    ks: NDArray[np.int64],
    min_ps: NDArray[np.float64],
    top_ps: NDArray[np.float64],
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Scores [num_rows] that all tokens which can be drawn reach, so that the others need not be ranked.

    Also the weights [num_rows] of all tokens together, for rows with only top-p; elsewhere 0, since the mass that top-p
    is a share of is among the ranked tokens.
    """
    floors = np.maximum(top_k_floors(blocked, ks), _min_p_floors(blocked, min_ps, temperatures))
    sums = np.zeros(len(ks))
    rows = np.flatnonzero((ks == 0) & (min_ps == 0))
    if len(rows):
        part = blocked.of(rows)
        sums[rows] = part.weights(temperatures[rows]).sum(axis=-1)
        floors[rows] = _top_p_floors(part, temperatures[rows], top_ps[rows], sums[rows])
    return floors, sums


def _min_p_floors(
    blocked: BlockedScores, min_ps: NDArray[np.float64], temperatures: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Scores [num_rows] below which min-p keeps nothing, rounded down."""
    with np.errstate(divide="ignore"):
        floors = blocked.top[:, 0] + np.log(min_ps) * temperatures
    return np.nextafter(floors.astype(np.float32), np.float32(-np.inf))


def _top_p_floors(
    blocked: BlockedScores,
    temperatures: NDArray[np.float64],
    top_ps: NDArray[np.float64],
    sums: NDArray[np.float64],
) -> NDArray[np.float32]:
    """Scores [num_rows] below which a nucleus has nothing.

    All tokens that are less likely than (1 - p) / vocab_size have less than 1 - p together: the others reach p.
    """
    shares = np.maximum(1.0 - top_ps, 0.0) * 0.5 / blocked.vocab_size  # a half, for the sum's rounding
    with np.errstate(divide="ignore"):
        floors = blocked.top[:, 0] + np.log(shares * sums) * temperatures
    return floors.astype(np.float32)
