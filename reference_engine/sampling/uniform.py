"""Random numbers as a pure function of a seed and a position: Philox4x32-10.

Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3. SC'11. The seed is the key and the position is
the counter, so a request needs no generator: its numbers are the same alone, in any batch, and after a preemption.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 10
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_KEY_STEPS = np.array([[0x9E3779B9], [0xBB67AE85]], np.uint64)  # golden ratio, and square root of 3 minus 1
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_SEED_MASK = (1 << 64) - 1


def uniforms(seeds: Sequence[int], places: Sequence[int], stream: int = 0) -> NDArray[np.float64]:
    """One number in [0, 1) with 53 random bits for each pair.

    Args:
        seeds: any integers; used modulo 2^64.
        places: index of the number in the seed's stream, at least 0.
        stream: equal pairs have independent numbers in other streams.
    """
    key = np.array([seed & _SEED_MASK for seed in seeds], np.uint64)
    place = np.array(places, np.uint64)
    counter = np.zeros((4, len(places)), np.uint64)
    counter[0], counter[1], counter[2] = place & _LOW, place >> _HALF, stream
    words = philox(counter, np.stack([key & _LOW, key >> _HALF]))
    return ((words[0] << _HALF | words[1]) >> np.uint64(11)) * 2.0**-53


def philox(counter: NDArray[np.uint64], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Four random 32-bit words for each column.

    Args:
        counter: [4, n], 32 bits each.
        key: [2, n], or [2, 1] for all columns; 32 bits each.

    Returns:
        [4, n].
    """
    even, odd = counter[0::2], counter[1::2]  # words 0 and 2, which are multiplied, and words 1 and 3
    for _ in range(_ROUNDS):
        products = (even * _MULTIPLIERS)[::-1]
        even, odd = (products >> _HALF) ^ odd ^ key, products & _LOW
        key = (key + _KEY_STEPS) & _LOW
    return np.stack([even[0], odd[0], even[1], odd[1]])
