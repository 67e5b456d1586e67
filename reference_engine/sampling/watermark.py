"""Green lists: after each token a pseudorandom share of the vocabulary gets higher scores, which a detector can count.

Kirchenbauer et al.: A Watermark for Large Language Models. ICML 2023, arXiv 2301.10226: its soft watermark, with a
context of one token. A list is a function of only key, share and previous token, so it is the same in any batch, at any
position, on any machine and for any size of the vocabulary.
"""

import functools
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from bakeoff.reference_engine.core.request import Request, Watermark
from bakeoff.reference_engine.sampling.uniform import philox

_GROUP = 8  # tokens that one column of Philox decides on, with 16 bits each
_BITS = 16
_STREAM = 1  # last word of the counter, which is 0 where tokens are drawn: equal seeds and keys share no number
_LOW, _HALF = 0xFFFFFFFF, 32
_MAX_LISTS = 1024  # 16 KiB each for 128k tokens; the most frequent tokens precede most of a text


def green_groups(watermark: Watermark, previous: NDArray[np.int64], groups: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which tokens are green, for groups of eight: token i is member i % 8 of group i // 8.

    Args:
        watermark: `gamma` is rounded to a multiple of 2^-16, `delta` is ignored.
        previous: the preceding token, in [0, 2^32): [n], or [1] for all groups.
        groups: [n] in [0, 2^29).

    Returns:
        [n, 8].
    """
    counter = np.zeros((4, len(groups)), np.uint64)
    counter[0], counter[1], counter[3] = groups, previous, _STREAM
    words = philox(counter, np.array([[watermark.key & _LOW], [watermark.key >> _HALF]], np.uint64))
    numbers = np.empty((len(groups), 4, 2), np.uint16)
    numbers[:, :, 0] = words.T & np.uint64((1 << _BITS) - 1)
    numbers[:, :, 1] = words.T >> np.uint64(_BITS)
    return numbers.reshape(-1, _GROUP) < round(watermark.gamma * (1 << _BITS))


def are_green(watermark: Watermark, previous: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each token [n] is green after the one before it [n]: [n]."""
    return green_groups(watermark, previous, tokens // _GROUP)[np.arange(len(tokens)), tokens % _GROUP]


@functools.lru_cache(maxsize=_MAX_LISTS)
def green_list(watermark: Watermark, previous: int, vocab_size: int) -> NDArray[np.uint8]:
    """All green tokens after one token, one bit each, the first token in the highest: [vocab_size / 8], rounded up."""
    packed = np.packbits(green_groups(watermark, np.array([previous]), np.arange(-(-vocab_size // _GROUP))))
    packed.flags.writeable = False  # shared by all callers
    return packed


def add_watermark(scores: torch.Tensor, requests: Sequence[Request]) -> None:
    """Adds `delta` to the green tokens of each request with a watermark.

    Args:
        scores: float32 [num_rows, vocab_size]; changed in place.
        requests: one per row; its last token is known.
    """
    marked = [
        (row, watermark, request.token_ids[-1])
        for row, request in enumerate(requests)
        if (watermark := request.sampling.watermark) is not None
    ]
    if not marked:
        return
    size = scores.shape[1]
    lists = np.stack([green_list(watermark, previous, size) for _, watermark, previous in marked])
    green = torch.from_numpy(np.unpackbits(lists, axis=-1, count=size).view(np.bool_)).to(scores.device)
    for (row, watermark, _), is_green in zip(marked, green, strict=True):
        scores[row].add_(is_green, alpha=watermark.delta)
