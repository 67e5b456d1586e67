"""Exact permutation tests of mean logs: a distribution-free cross-check of Student's t (Fisher 1935).

Under the null hypothesis every assignment of runs to sides is equally likely; with pairs, every choice of signs. The p
value is the fraction of assignments whose means differ at least as much as observed. Few runs bound it from below:
3 against 3 have 20 assignments, so 0.1 at best; 5 pairs give 0.0625.

Counts that are mostly 0 are far from normal; :func:`rank_test` permutes their ranks (Wilcoxon 1945, exact with ties).
"""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from bakeoff.results.statistics.two_sample import Contrast, Method, on_scale

_MAX_DIVISIONS = 200_000
_DRAWS = 20_000
_BLOCK = 1_000_000
"""Signs drawn at once, 9 MB; evaluations have thousands of pieces."""
_ROUNDING = 1e-12


class PermutationTest(msgspec.Struct, frozen=True):
    """Result of a permutation test.

    Attributes:
        p_value: two-sided; one-sided for :func:`rank_test`.
        least: smallest p value possible with this number of runs.
    """

    p_value: float
    least: float

    def agrees(self, alpha: float) -> bool:
        """Whether the test rejects at ``alpha``, or has the smallest p value possible."""
        return self.p_value <= max(alpha, self.least) + _ROUNDING


def permutation_test(a: Mapping[int, float], b: Mapping[int, float], contrast: Contrast) -> PermutationTest:
    """Permutation test of a contrast.

    Args:
        a: repeat → value.
        b: repeat → value, of the other side.
        contrast: result of :func:`~bakeoff.results.statistics.two_sample.contrast` for ``a`` and ``b``.
    """
    if contrast.method is Method.PAIRED:
        pairs = sorted(a.keys() & b.keys())
        of_a, of_b = (on_scale([side[repeat] for repeat in pairs], contrast.scale) for side in (a, b))
        return sign_test(of_b - of_a)
    return division_test(*(on_scale(list(side.values()), contrast.scale) for side in (a, b)))


def rank_test(a: Sequence[float], b: Sequence[float]) -> PermutationTest:
    """One-sided rank test of whether B's values exceed A's; exact with ties."""
    _, index, count = np.unique([*a, *b], return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[index]  # ties share the mean of their ranks
    ranks -= ranks.mean()
    sums = _divisions(len(a), len(b)) @ ranks
    below = sums <= float(ranks[: len(a)].sum()) + _ROUNDING
    return PermutationTest(float(below.mean()), 1 / math.comb(len(ranks), len(a)))


def division_test(a: np.ndarray, b: np.ndarray) -> PermutationTest:
    """Two-sided test of the difference of means.

    Args:
        a: values on their scale, shape (runs,).
        b: values of the other side, likewise.
    """
    pooled = np.concatenate([a, b])
    pooled -= pooled.mean()
    members = _divisions(len(a), len(b))
    # After centring, the difference of the means is a constant times the sum of one side.
    sums = np.abs(members @ pooled)
    observed = abs(float(pooled[: len(a)].sum()))
    least = 2 if len(a) == len(b) else 1
    return PermutationTest(float((sums >= observed - _ROUNDING).mean()), least / math.comb(len(pooled), len(a)))


def sign_test(differences: np.ndarray) -> PermutationTest:
    """Two-sided test of the mean of paired differences, by flipping their signs.

    Args:
        differences: on their scale, shape (pairs,).
    """
    n = len(differences)
    sums = np.abs(_signs(n) @ differences if 2**n <= _MAX_DIVISIONS else _drawn_sums(differences))
    observed = abs(float(differences.sum()))
    return PermutationTest(float((sums >= observed - _ROUNDING).mean()), 2.0 ** (1 - n))


@functools.lru_cache(maxsize=32)
def _divisions(n_a: int, n_b: int) -> np.ndarray:
    """Indicators of side A, shape (assignments, runs): all, or the observed one and a fixed random sample."""
    total = n_a + n_b
    if math.comb(total, n_a) <= _MAX_DIVISIONS:
        chosen = np.array(list(itertools.combinations(range(total), n_a)))
    else:
        rng = np.random.default_rng(0)
        drawn = rng.permuted(np.tile(np.arange(total), (_DRAWS - 1, 1)), axis=1)[:, :n_a]
        chosen = np.vstack([np.arange(n_a), drawn])
    members = np.zeros((len(chosen), total))
    np.put_along_axis(members, chosen, 1.0, axis=1)
    return members


@functools.lru_cache(maxsize=32)
def _signs(n: int) -> np.ndarray:
    """All choices of signs, shape (choices, pairs)."""
    return np.array(list(itertools.product((1.0, -1.0), repeat=n)))


def _drawn_sums(differences: np.ndarray) -> np.ndarray:
    """Sums with the observed signs, and with a fixed random sample of others, of which few are in memory at once."""
    rng = np.random.default_rng(0)
    total = differences.sum()
    sums = [total]
    block = max(1, _BLOCK // len(differences))
    for begin in range(1, _DRAWS, block):
        are_flipped = rng.integers(0, 2, size=(min(block, _DRAWS - begin), len(differences)), dtype=np.int8)
        sums += (total - 2 * (are_flipped @ differences)).tolist()
    return np.array(sums)
