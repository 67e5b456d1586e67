"""Sides of different runs: what differs from run to run is noise, too.

The trials of one run share its day: placement, page cache, temperature, neighbours. With a standard deviation s_b
between runs and s_w between trials, the mean of a run's n trials varies by s_b² + s_w²/n, and no number of trials takes
s_b away. So the run is the unit here. Of k runs of A and m of B, each with its mean y,

    SE² = v (1/k + 1/m),    v = Σ (y − mean of its side)² / (k + m − 2),

which holds for any s_b and s_w, and for trials that resemble their neighbours: all of that is in v (one-way random
effects; Searle, Casella & McCulloch 1992, §3). Where B's means are noisier within their runs than A's (fewer trials,
or a share nearer to a half), the excess s_B²/n_B − s_A²/n_A is added over m. The degrees of freedom stay those of v
unless an F test says that B's trials do vary more; then they are Satterthwaite's (1946). If they always were, a v that
is small by chance, beside an excess that is chance too, would raise them: 2.5 % of false alarms at a level of 1 % with
three runs of A. With one run of B all of this asks whether B could have been one more run of A.

Fewer than :data:`MIN_RUNS` of A do not show v. A noise floor then stands for it: an upper bound of √v from runs of
the same thing at other times (:func:`upper_bound`). Without one nothing can be said.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from results.statistics.distributions import chi_square_quantile, f_tail
from results.statistics.two_sample import Contrast, Method, Scale, on_scale

MIN_RUNS = 3
"""Of the baseline, to show how runs differ."""
MIN_FLOOR_RUNS = 5
"""Of the same thing, for a floor."""
_MORE_NOISE = 0.01
"""B's trials vary more than A's where chance does so in so small a share of cases."""
_CERTAIN = 1e6
"""Degrees of freedom of a bound, which is not estimated any more."""


class NoiseFloor(msgspec.Struct, frozen=True):
    """How much runs of one thing differ at most.

    Attributes:
        bound: 99 % upper bound of the standard deviation of run means, on the metric's scale.
        trials: of each run that it was measured with.
    """

    bound: float
    trials: float


def upper_bound(means: Sequence[float], confidence: float = 0.99) -> float:
    """The standard deviation of run means is below this with the given confidence: s √((n − 1) / χ²).

    Args:
        means: of runs of the same thing, on the metric's scale; at least :data:`MIN_FLOOR_RUNS`.
        confidence: one-sided, 0 < c < 1.
    """
    degrees = len(means) - 1
    return float(np.std(means, ddof=1)) * math.sqrt(degrees / chi_square_quantile(1 - confidence, degrees))


def run_means(runs: Sequence[Sequence[float]], scale: Scale) -> np.ndarray:
    """The mean of each run's trials, on a scale."""
    return np.array([float(on_scale(values, scale).mean()) for values in runs])


def between_runs(
    a: Sequence[Sequence[float]],
    b: Sequence[Sequence[float]],
    *,
    scale: Scale = Scale.RATIO,
    floor: NoiseFloor | None = None,
    min_error: float = 0.0,
) -> Contrast | None:
    """B against A, of other runs.

    Args:
        a: of each run of the baseline its trials' values, above 0 on the ratio scale.
        b: the same of the candidate.
        scale: how values are compared.
        floor: for a baseline of too few runs.
        min_error: the standard error is no smaller.

    Returns:
        None where nothing is known of the noise between runs.
    """
    means_a, means_b = run_means(a, scale), run_means(b, scale)
    k, m = len(means_a), len(means_b)
    within_a, within_b = _within(a, scale), _within(b, scale)
    if k >= MIN_RUNS:
        degrees, method = float(k + m - 2), Method.BETWEEN_RUNS
        variance = (_squares(means_a) + _squares(means_b)) / degrees
        part_of_a = within_a.variance / within_a.trials
    elif floor is not None and m:
        degrees, method, variance = _CERTAIN, Method.NOISE_FLOOR, floor.bound**2
        part_of_a = within_a.variance / floor.trials
    else:
        return None
    of_runs = variance * (1 / k + 1 / m)
    excess = max(0.0, within_b.variance / within_b.trials - part_of_a) / m
    if excess and (method is Method.NOISE_FLOOR or _vary_more(within_b, within_a)):
        degrees = (of_runs + excess) ** 2 / (of_runs**2 / degrees + excess**2 / within_b.degrees)
    error = max(math.sqrt(of_runs + excess), min_error)
    return Contrast(float(means_b.mean() - means_a.mean()), error, degrees, method, (k, m), scale)


class _Within(msgspec.Struct, frozen=True):
    """Variance between the trials of a run, pooled over runs; its degrees of freedom; trials of a run (harmonic)."""

    variance: float
    degrees: float
    trials: float


def _vary_more(within_b: _Within, within_a: _Within) -> bool:
    """Whether the trials of B vary more than those of A beyond chance."""
    if within_a.variance == 0:
        return within_a.degrees > 0
    return f_tail(within_b.variance / within_a.variance, within_b.degrees, within_a.degrees) < _MORE_NOISE


def _within(runs: Sequence[Sequence[float]], scale: Scale) -> _Within:
    degrees = sum(len(values) - 1 for values in runs)
    squares = sum(_squares(on_scale(values, scale)) for values in runs)
    trials = len(runs) / sum(1 / len(values) for values in runs)
    return _Within(squares / degrees if degrees else 0.0, float(degrees), trials)


def _squares(x: np.ndarray) -> float:
    """Squared distances to the mean; equal values have none, whatever their mean is rounded to."""
    return 0.0 if np.ptp(x) == 0 else float(((x - x.mean()) ** 2).sum())
