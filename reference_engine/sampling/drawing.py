"""Draws from whole distributions: the cumulative distribution is inverted over blocks first, then inside one block."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.sampling.blocks import BLOCK, BlockedScores


def draw(blocked: BlockedScores, params: Sequence[SamplingParams], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
    """One token per row.

    Args:
        blocked: scores of the rows.
        params: of each row; its temperature is above 0.
        uniforms: [num_rows] in [0, 1).

    Returns:
        Token ids [num_rows].
    """
    rows = np.arange(len(params))
    temperatures = np.array([sampling.temperature for sampling in params])
    with np.errstate(invalid="ignore"):  # a row in which everything is forbidden
        # float64: over a vocabulary of 10^5 tokens a float32 sum is off by more than an unlikely token's probability.
        block, rest = _invert(blocked.weights(temperatures), uniforms)
        scores = blocked.take(rows, block).astype(np.float64)
        place, _ = _invert(np.exp((scores - blocked.top) / temperatures[:, None]), rest)
    return np.minimum(block * BLOCK + place, blocked.vocab_size - 1)


def _invert(
    weights: NDArray[np.float64], uniforms: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Finds the weights at which uniform numbers fall; the weights need not add up to 1.

    Args:
        weights: [n, m].
        uniforms: [n] in [0, 1).

    Returns:
        The indices [n], whose weights are above 0, and how far into its weight each number falls, in [0, 1).
    """
    rows = np.arange(len(weights))
    cumulative = weights.cumsum(axis=-1)
    targets = cumulative[:, -1] * uniforms
    # A product that is rounded up to the whole sum must not fall after the last weight above 0.
    last = (cumulative < cumulative[:, -1:]).sum(axis=-1)
    place = np.minimum((cumulative <= targets[:, None]).sum(axis=-1), last)
    weight = weights[rows, place]
    into = (targets - (cumulative[rows, place] - weight)) / weight
    return place, np.clip(into, 0.0, np.nextafter(1.0, 0.0))
