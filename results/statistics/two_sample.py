"""The ratio of two sides, one number a run, on the log scale.

Two ways to say how sure it is, and a rule for which one speaks:

- **Welch** (1947): the runs of a side are a sample. The difference of mean logs has the standard error
  √(s_a²/n_a + s_b²/n_b), and Student's t with Satterthwaite's degrees of freedom.
- **paired**: runs that were made one beside the other share what the machine did at the time. Student's t of the
  differences of n pairs has n − 1 degrees of freedom, fewer than Welch, but a slow quarter of an hour cancels.

Pairs exist where the sides were interleaved. They speak where the pairs share a noise that is there: the sums a_i + b_i
then vary more than the differences b_i − a_i, and F = var(sums)/var(differences) is beyond the 98 % quantile of
F(n − 1, n − 1). Sums and differences of equal, normal noises are independent, so the choice hardly touches the level:
`benchmarks/statistics/verdicts.py` finds 0.5 to 1.0 % of false alarms at a level of 1 %, whatever the runs share.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec
import numpy as np

from results.statistics.distributions import f_tail, t_quantile, t_tails
from results.statistics.interval import Interval

_SHARED_NOISE = 0.02
"""Pairs speak where sums vary more than differences by what chance does in so small a share of cases."""
LEAST_PAIRS = 3


class Method(StrEnum):
    """What an uncertainty rests on."""

    WELCH = "welch"
    PAIRED = "paired"


class Contrast(msgspec.Struct, frozen=True):
    """B over A.

    Attributes:
        log_ratio: difference of the mean logs, or mean difference of the pairs.
        standard_error: of it.
        degrees: of freedom of its t distribution.
        method: where they come from.
        n: runs of A and of B that it rests on; pairs count on both sides.
    """

    log_ratio: float
    standard_error: float
    degrees: float
    method: Method
    n: tuple[int, int]

    @property
    def p_value(self) -> float:
        """Two-sided, of no difference. Runs without any noise differ or they do not."""
        if self.standard_error == 0:
            return 1.0 if self.log_ratio == 0 else 0.0
        return t_tails(self.log_ratio / self.standard_error, self.degrees)

    def interval(self, confidence: float) -> Interval:
        """Of the ratio.

        Args:
            confidence: two-sided level, 0 < c < 1.
        """
        half = t_quantile((1 + confidence) / 2, self.degrees) * self.standard_error
        bounds = [math.exp(self.log_ratio + shift) for shift in (0.0, -half, half)]
        return Interval(*bounds, n=min(self.n))


def contrast(a: Mapping[int, float], b: Mapping[int, float], *, interleaved: bool) -> Contrast | None:
    """The ratio of B to A.

    Args:
        a: repeat → value, above 0.
        b: the same for the other side.
        interleaved: whether equal repeats were measured one beside the other.

    Returns:
        None where a side has fewer than two runs, and so no noise is known.
    """
    if min(len(a), len(b)) < 2:
        return None
    pairs = sorted(a.keys() & b.keys()) if interleaved else []
    if len(pairs) >= LEAST_PAIRS:
        log_a, log_b = _logs([a[repeat] for repeat in pairs]), _logs([b[repeat] for repeat in pairs])
        if _share_noise(log_a, log_b):
            return _paired(log_b - log_a)
    return _welch(_logs(list(a.values())), _logs(list(b.values())))


def _logs(values: Sequence[float]) -> np.ndarray:
    return np.log(np.asarray(values, dtype=np.float64))


def _share_noise(log_a: np.ndarray, log_b: np.ndarray) -> bool:
    sums, differences = float((log_a + log_b).var(ddof=1)), float((log_b - log_a).var(ddof=1))
    if differences == 0:
        return sums > 0
    degrees = len(log_a) - 1
    return f_tail(sums / differences, degrees, degrees) < _SHARED_NOISE


def _paired(differences: np.ndarray) -> Contrast:
    n = len(differences)
    error = float(differences.std(ddof=1)) / math.sqrt(n)
    return Contrast(float(differences.mean()), error, n - 1, Method.PAIRED, (n, n))


def _welch(log_a: np.ndarray, log_b: np.ndarray) -> Contrast:
    n_a, n_b = len(log_a), len(log_b)
    # Equal values have equal logs, but the mean of equal logs may be off by a rounding.
    of_a, of_b = (0.0 if np.ptp(side) == 0 else float(side.var(ddof=1)) / len(side) for side in (log_a, log_b))
    total = of_a + of_b
    degrees = n_a + n_b - 2.0
    if total > 0:
        degrees = total**2 / (of_a**2 / (n_a - 1) + of_b**2 / (n_b - 1))
    return Contrast(float(log_b.mean() - log_a.mean()), math.sqrt(total), degrees, Method.WELCH, (n_a, n_b))
