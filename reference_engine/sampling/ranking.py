"""The best tokens of each row in order, of all those above a floor, without sorting the rest.

Equal scores, which are frequent in half precision, are ordered by token id: the result must not depend on an unstable
sort, whose order may differ between batches.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from bakeoff.reference_engine.sampling.blocks import BLOCK, BlockedScores

_LOW = 0xFFFFFFFF
_SIGN_BIT, _OTHER_BITS = 31, 0x7FFFFFFF
_LEAST = np.finfo(np.float32).min
_NOTHING = np.iinfo(np.int64).min


@dataclasses.dataclass(frozen=True, slots=True)
class Ranked:
    """The best tokens of each row, best first; [num_rows, width] with the width of the longest row.

    Attributes:
        scores: float32, minus infinity after the end of a row.
        tokens: ids, undefined after the end of a row.
        counts: int64 [num_rows], the lengths of the rows.
    """

    scores: NDArray[np.float32]
    tokens: NDArray[np.int64]
    counts: NDArray[np.int64]


def top_k_floors(blocked: BlockedScores, ks: NDArray[np.int64]) -> NDArray[np.float32]:
    """For each row a score that its k best tokens reach; minus infinity where k is 0, which means all.

    The k-th largest block maximum is such a score, since k blocks hold a token that reaches it.

    Args:
        blocked: the scores.
        ks: [num_rows], at least 0.

    Returns:
        [num_rows].
    """
    maxima = blocked.maxima
    num_blocks = maxima.shape[1]
    floors = np.full(len(ks), -np.inf, np.float32)
    few = np.flatnonzero((ks > 0) & (ks <= num_blocks))
    if len(few):
        floors[few] = np.sort(maxima[few], axis=-1)[np.arange(len(few)), num_blocks - ks[few]]
    for row in np.flatnonzero((ks > num_blocks) & (ks < blocked.vocab_size)):
        place = blocked.vocab_size - ks[row]
        floors[row] = np.partition(blocked.row(int(row)), place)[place]
    return floors


def rank(blocked: BlockedScores, floors: NDArray[np.float32]) -> Ranked:
    """All tokens whose score reaches their row's floor, in order; never forbidden ones (minus infinity).

    Args:
        blocked: the scores.
        floors: [num_rows].
    """
    floors = np.maximum(floors, _LEAST)
    owners, numbers = np.nonzero(blocked.maxima >= floors[:, None])
    scores = blocked.take(owners, numbers)
    ranked = np.flatnonzero(scores >= floors[owners][:, None])
    owner, place = ranked // BLOCK, ranked % BLOCK
    tokens = numbers[owner] * BLOCK + place
    return _sorted(owners[owner], tokens, scores.reshape(-1)[ranked], blocked.num_rows)


def _sorted(rows: NDArray[np.int64], tokens: NDArray[np.int64], scores: NDArray[np.float32], num_rows: int) -> Ranked:
    """Sorts the selected tokens of each row; `rows` ascend."""
    counts = np.bincount(rows, minlength=num_rows)
    places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    # Score and id in one integer: sorting it is one vectorised call, and no two are equal.
    keys = np.full((num_rows, max(1, counts.max())), _NOTHING, np.int64)
    bits = (scores + np.float32(0.0)).view(np.int32)  # minus zero equals zero
    keys[rows, places] = _ordered(bits).astype(np.int64) << 32 | (_LOW - tokens)
    keys.sort(axis=-1)
    keys = keys[:, ::-1]
    ranked = _ordered((keys >> 32).astype(np.int32)).view(np.float32)
    ranked[np.arange(keys.shape[1]) >= counts[:, None]] = -np.inf
    return Ranked(ranked, _LOW - (keys & _LOW), counts)


def _ordered(bits: NDArray[np.int32]) -> NDArray[np.int32]:
    """Converts bits of floats to integers that compare as the floats do, and back: it is its own inverse."""
    return bits ^ ((bits >> _SIGN_BIT) & _OTHER_BITS)
