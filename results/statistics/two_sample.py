"""Two-sample contrasts with one value per trial: a ratio on the log scale, or a difference.

Two tests, and a rule that chooses between them:

- **Welch** (1947): the trials of a side are independent. The difference of means has the standard error
  √(s_a²/n_a + s_b²/n_b) and Student's t with Satterthwaite's degrees of freedom. Against a side of two trials there
  are at most two: where these two are close to each other by chance, the degrees seem to be those of the other side.
- **paired**: adjacent trials share the state of the machine. Student's t of the differences of n pairs has n − 1
  degrees of freedom, fewer than Welch, but slow drift cancels.

Pairs exist if the sides were interleaved. The paired test is chosen if the pairs share noise: the sums a_i + b_i then
vary more than the differences b_i − a_i, and F = var(sums)/var(differences) exceeds the 99 % quantile of
F(n − 1, n − 1). Where trials share nothing, it is chosen in 1 % of the comparisons, whose differences then vary little
by chance: they are half of the false alarms of three pairs beyond the level. Other loads of the same trials
(:func:`share_noise`) make the choice more certain. ``benchmarks/statistics/verdicts.py`` states the level.

Both are for sides measured in one run. For different runs see :mod:`bakeoff.results.statistics.between_runs`.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec
import numpy as np

from bakeoff.results.statistics.distributions import f_tail, t_quantile, t_tails
from bakeoff.results.statistics.interval import Interval

_SHARED_NOISE = 0.01
"""Significance level of the F test that chooses the paired test."""
MIN_PAIRS = 3
LARGEST_LOG = math.log(sys.float_info.max)
"""Bound of log ratios: those of two runs with one degree of freedom may exceed what a float can hold."""


class Method(StrEnum):
    """Source of the standard error."""

    WELCH = "welch"
    PAIRED = "paired"
    BETWEEN_RUNS = "between runs"
    """Variance between the runs of both sides."""
    NOISE_FLOOR = "noise floor"
    """Upper bound of the variance between runs, measured beforehand on this machine."""
    PIECES = "pieces"
    """Differences on pieces of one text."""


class Scale(StrEnum):
    """How two values are compared."""

    RATIO = "ratio"
    """Difference of logs: for times and rates, whose noise is proportional to their value."""
    DIFFERENCE = "difference"
    """Plain difference: for shares. The ratio of 99.9 % and 97.5 % is near 1, yet one has 25 times the failures."""


def on_scale(values: Sequence[float], scale: Scale) -> np.ndarray:
    """Values on the scale on which they are averaged: logs for a ratio."""
    x = np.asarray(values, dtype=np.float64)
    return np.log(x) if scale is Scale.RATIO else x


class Contrast(msgspec.Struct, frozen=True):
    """Difference of B from A with its uncertainty.

    Attributes:
        difference: of the means on the scale, or mean difference of the pairs.
        standard_error: of the difference.
        degrees: degrees of freedom of its t distribution.
        method: source of the standard error.
        n: trials of A and of B (pairs count on both sides); runs if the sides are of different runs.
        scale: of the difference.
    """

    difference: float
    standard_error: float
    degrees: float
    method: Method
    n: tuple[int, int]
    scale: Scale = Scale.RATIO

    @property
    def p_value(self) -> float:
        """Two-sided p value of no difference; 0 or 1 if there is no noise."""
        if self.standard_error == 0:
            return 1.0 if self.difference == 0 else 0.0
        return t_tails(self.difference / self.standard_error, self.degrees)

    def interval(self, confidence: float) -> Interval:
        """Interval of the ratio or of the difference.

        Args:
            confidence: two-sided level, 0 < c < 1.
        """
        half = t_quantile((1 + confidence) / 2, self.degrees) * self.standard_error
        bounds = [self.difference + shift for shift in (0.0, -half, half)]
        if self.scale is Scale.RATIO:
            bounds = [math.exp(min(bound, LARGEST_LOG)) for bound in bounds]
        return Interval(*bounds, n=min(self.n))


def contrast(
    a: Mapping[int, float],
    b: Mapping[int, float],
    *,
    interleaved: bool,
    only_pairs: bool = False,
    scale: Scale = Scale.RATIO,
    min_error: float = 0.0,
    other_loads: Sequence[tuple[Mapping[int, float], Mapping[int, float]]] = (),
) -> Contrast | None:
    """Contrast of B against A.

    Args:
        a: repeat → value, positive on the ratio scale.
        b: repeat → value of the other side.
        interleaved: whether equal repeats were measured one after the other.
        only_pairs: whether only the paired test is valid: the repeats belong to sessions that differ in noise.
        scale: how values are compared.
        min_error: lower bound of the standard error.
        other_loads: values of both sides at other loads, whose pairs share noise if these do.

    Returns:
        None if the noise is unknown: a side has fewer than two trials, or too few pairs where only pairs are valid.
    """
    if min(len(a), len(b)) < 2:
        return None
    pairs = sorted(a.keys() & b.keys()) if interleaved else []
    if only_pairs and len(pairs) < MIN_PAIRS:
        return None
    chosen = None
    if len(pairs) >= MIN_PAIRS and (only_pairs or share_noise([(a, b), *other_loads], scale)):
        of_a, of_b = (on_scale([side[repeat] for repeat in pairs], scale) for side in (a, b))
        chosen = _paired(of_b - of_a)
    chosen = chosen or _welch(*(on_scale(list(side.values()), scale) for side in (a, b)))
    return msgspec.structs.replace(chosen, standard_error=max(chosen.standard_error, min_error), scale=scale)


def share_noise(loads: Sequence[tuple[Mapping[int, float], Mapping[int, float]]], scale: Scale) -> bool:
    """Whether the pairs of equal repeats share more noise than chance explains.

    Each load counts relative to its own noise, with its degrees of freedom; the test is then conservative.

    Args:
        loads: repeat → value of both sides, at each load.
        scale: on which values are averaged; loads with values that have no log are ignored.
    """
    sums = differences = degrees = 0.0
    for a, b in loads:
        pairs = sorted(a.keys() & b.keys())
        values = [[side[repeat] for repeat in pairs] for side in (a, b)]
        if len(pairs) < MIN_PAIRS or (
            scale is Scale.RATIO and not all(0 < x < math.inf for side in values for x in side)
        ):
            continue
        of_a, of_b = (on_scale(side, scale) for side in values)
        of_sums, of_differences = (float(x.var()) for x in (of_a + of_b, of_b - of_a))
        if total := of_sums + of_differences:
            sums += of_sums / total * (len(pairs) - 1)
            differences += of_differences / total * (len(pairs) - 1)
            degrees += len(pairs) - 1
    if differences == 0:
        return sums > 0
    return f_tail(sums / differences, degrees, degrees) < _SHARED_NOISE


def _paired(differences: np.ndarray) -> Contrast:
    n = len(differences)
    error = float(differences.std(ddof=1)) / math.sqrt(n)
    return Contrast(float(differences.mean()), error, n - 1, Method.PAIRED, (n, n))


def _welch(of_a: np.ndarray, of_b: np.ndarray) -> Contrast:
    n_a, n_b = len(of_a), len(of_b)
    # Rounding of the mean would give equal values a variance above 0.
    var_a, var_b = (0.0 if np.ptp(side) == 0 else float(side.var(ddof=1)) / len(side) for side in (of_a, of_b))
    total = var_a + var_b
    degrees = n_a + n_b - 2.0
    if total > 0:
        degrees = total**2 / (var_a**2 / (n_a - 1) + var_b**2 / (n_b - 1))
    if min(n_a, n_b) == 2:
        degrees = min(degrees, 2.0)
    return Contrast(float(of_b.mean() - of_a.mean()), math.sqrt(total), degrees, Method.WELCH, (n_a, n_b))
