"""Exact permutation tests on mean logs: the cross-check of Student's t, which assumes no distribution (Fisher 1935).

If nothing differs, any division of the runs into two sides was as likely as the one that was made; with pairs, any
choice of which of the two is A. The p value is the share of divisions whose means lie as far apart. With few runs it
cannot be small: 3 against 3 have 20 divisions, so 0.1 at best, and 5 pairs give 0.0625.

Counts that are mostly 0 are far from normal; :func:`rank_test` divides their ranks (Wilcoxon 1945, exact with ties).
"""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from results.statistics.two_sample import Contrast, Method, on_scale

_MAX_DIVISIONS = 200_000
_DRAWS = 20_000
_ROUNDING = 1e-12


class PermutationTest(msgspec.Struct, frozen=True):
    """What the divisions say.

    Attributes:
        p_value: two-sided; of ranks, of a rise.
        least: the smallest p value that so few runs can have.
    """

    p_value: float
    least: float

    def agrees(self, alpha: float) -> bool:
        """Whether it would reject at ``alpha`` too, as far as so few runs can."""
        return self.p_value <= max(alpha, self.least) + _ROUNDING


def permutation_test(a: Mapping[int, float], b: Mapping[int, float], found: Contrast) -> PermutationTest:
    """The test that belongs to a contrast.

    Args:
        a: repeat → value.
        b: the same for the other side.
        found: what :func:`~results.statistics.two_sample.contrast` made of them.
    """
    if found.method is Method.PAIRED:
        pairs = sorted(a.keys() & b.keys())
        of_a, of_b = (on_scale([side[repeat] for repeat in pairs], found.scale) for side in (a, b))
        return _flipped(of_b - of_a)
    return division_test(*(on_scale(list(side.values()), found.scale) for side in (a, b)))


def rank_test(a: Sequence[float], b: Sequence[float]) -> PermutationTest:
    """Whether B's values rank above A's by more than chance; one-sided, exact however many values are equal."""
    _, place, count = np.unique([*a, *b], return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]  # equal values share the mean of their ranks
    ranks -= ranks.mean()
    sums = _divisions(len(a), len(b)) @ ranks
    below = sums <= float(ranks[: len(a)].sum()) + _ROUNDING
    return PermutationTest(float(below.mean()), 1 / math.comb(len(ranks), len(a)))


def division_test(a: np.ndarray, b: np.ndarray) -> PermutationTest:
    """Whether the means of two sides lie as far apart as by chance.

    Args:
        a: values on their scale.
        b: of the other side.
    """
    pooled = np.concatenate([a, b])
    pooled -= pooled.mean()
    members = _divisions(len(a), len(b))
    # With the mean taken out, the difference of the sides' means is the sum of one of them times a constant.
    sums = np.abs(members @ pooled)
    seen = abs(float(pooled[: len(a)].sum()))
    least = 2 if len(a) == len(b) else 1
    return PermutationTest(float((sums >= seen - _ROUNDING).mean()), least / math.comb(len(pooled), len(a)))


def _flipped(differences: np.ndarray) -> PermutationTest:
    sums = np.abs(_signs(len(differences)) @ differences)
    seen = abs(float(differences.sum()))
    return PermutationTest(float((sums >= seen - _ROUNDING).mean()), 2.0 ** (1 - len(differences)))


@functools.lru_cache(maxsize=32)
def _divisions(n_a: int, n_b: int) -> np.ndarray:
    """[divisions, runs], 1 where a run is on side A; all of them, or a fixed sample with the real one in it."""
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
    """[choices, pairs] of 1 and -1; all of them, or a fixed sample with the real one in it."""
    if 2**n <= _MAX_DIVISIONS:
        return np.array(list(itertools.product((1.0, -1.0), repeat=n)))
    drawn = np.random.default_rng(0).choice((1.0, -1.0), size=(_DRAWS - 1, n))
    return np.vstack([np.ones(n), drawn])
