"""Comparison of sides measured in different runs, with the noise between runs included.

The trials of one run share its conditions: placement, page cache, temperature, other load. With standard deviations s_b
between runs and s_w between trials, the mean of a run's n trials has variance s_b² + s_w²/n, and no number of trials
removes s_b. The unit is therefore the run. For k runs of A and m of B, each with mean y,

    SE² = v (1/k + 1/m),    v = Σ (y − mean of its side)² / (k + m − 2),

for any s_b and s_w, and for autocorrelated trials: v contains all of it (one-way random effects; Searle, Casella &
McCulloch 1992, §3). If B's means are noisier within their runs than A's (fewer trials, or a share nearer to 1/2), the
excess max(s_A², s_B²)/n_B − s_A²/n_A is added, divided by m: one or two trials of B cannot show that B varies less than
A. The degrees of freedom remain those of v unless an F test shows that B's trials vary more; then they are
Satterthwaite's (1946). Always using Satterthwaite's raises them whenever v is small and the excess large by chance:
2.5 % of false alarms at a level of 1 % with three runs of A. With one run of B, the test asks whether B could have been
one more run of A.

Fewer than :data:`MIN_RUNS` runs of A do not estimate v. A noise floor then replaces it: an upper bound of √v from
repeated runs of one configuration (:func:`upper_bound`). Without a floor there is no comparison.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from bakeoff.results.statistics.distributions import chi_square_quantile, f_tail
from bakeoff.results.statistics.two_sample import Contrast, Method, Scale, on_scale

MIN_RUNS = 3
"""Minimum of baseline runs to estimate the variance between runs."""
MIN_FLOOR_RUNS = 5
"""Minimum of runs of one configuration to measure a noise floor."""
_MORE_NOISE = 0.01
"""Significance level of the F test for a larger variance of B's trials."""
_CERTAIN = 1e6
"""Degrees of freedom of a bound: it is taken as known."""


class NoiseFloor(msgspec.Struct, frozen=True):
    """Upper bound of the noise between runs of one configuration.

    Attributes:
        bound: 99 % upper bound of the standard deviation of run means, on the metric's scale.
        trials: trials per run with which it was measured.
    """

    bound: float
    trials: float


def upper_bound(means: Sequence[float], confidence: float = 0.99) -> float:
    """Upper confidence bound of the standard deviation of run means: s √((n − 1) / χ²).

    Args:
        means: of runs of one configuration, on the metric's scale; at least :data:`MIN_FLOOR_RUNS`.
        confidence: one-sided, 0 < c < 1.
    """
    degrees = len(means) - 1
    return float(np.std(means, ddof=1)) * math.sqrt(degrees / chi_square_quantile(1 - confidence, degrees))


def run_means(runs: Sequence[Sequence[float]], scale: Scale) -> np.ndarray:
    """Mean of each run's trials on the given scale, shape (runs,)."""
    return np.array([float(on_scale(values, scale).mean()) for values in runs])


def between_runs(
    a: Sequence[Sequence[float]],
    b: Sequence[Sequence[float]],
    *,
    scale: Scale = Scale.RATIO,
    floor: NoiseFloor | None = None,
    min_error: float = 0.0,
) -> Contrast | None:
    """Contrast of B against A, measured in different runs.

    Args:
        a: values of the baseline, one sequence of trials per run; positive on the ratio scale.
        b: values of the candidate, likewise.
        scale: how values are compared.
        floor: replaces the variance between runs if the baseline has too few runs.
        min_error: lower bound of the standard error.

    Returns:
        None if the noise between runs is unknown.
    """
    means_a, means_b = run_means(a, scale), run_means(b, scale)
    k, m = len(means_a), len(means_b)
    within_a, within_b = _within(a, scale), _within(b, scale)
    if k >= MIN_RUNS:
        degrees, method = float(k + m - 2), Method.BETWEEN_RUNS
        variance = (_squares(means_a) + _squares(means_b)) / degrees
        mean_variance_a = within_a.variance / within_a.trials
    elif floor is not None and m:
        degrees, method, variance = _CERTAIN, Method.NOISE_FLOOR, floor.bound**2
        mean_variance_a = within_a.variance / floor.trials
    else:
        return None
    run_variance = variance * (1 / k + 1 / m)
    mean_variance_b = max(within_a.variance, within_b.variance) / within_b.trials
    excess = max(0.0, mean_variance_b - mean_variance_a) / m
    if excess and within_b.degrees and (method is Method.NOISE_FLOOR or _vary_more(within_b, within_a)):
        degrees = (run_variance + excess) ** 2 / (run_variance**2 / degrees + excess**2 / within_b.degrees)
    error = max(math.sqrt(run_variance + excess), min_error)
    return Contrast(float(means_b.mean() - means_a.mean()), error, degrees, method, (k, m), scale)


class _Within(msgspec.Struct, frozen=True):
    """Variance within runs.

    Attributes:
        variance: between the trials of a run, pooled over runs.
        degrees: degrees of freedom of the variance.
        trials: harmonic mean of the trials per run.
    """

    variance: float
    degrees: float
    trials: float


def _vary_more(within_b: _Within, within_a: _Within) -> bool:
    """Whether the trials of B vary significantly more than those of A."""
    if within_a.variance == 0:
        return within_a.degrees > 0
    return f_tail(within_b.variance / within_a.variance, within_b.degrees, within_a.degrees) < _MORE_NOISE


def _within(runs: Sequence[Sequence[float]], scale: Scale) -> _Within:
    degrees = sum(len(values) - 1 for values in runs)
    squares = sum(_squares(on_scale(values, scale)) for values in runs)
    trials = len(runs) / sum(1 / len(values) for values in runs)
    return _Within(squares / degrees if degrees else 0.0, float(degrees), trials)


def _squares(x: np.ndarray) -> float:
    """Sum of squared deviations; exactly 0 for equal values, whatever the rounding of their mean."""
    return 0.0 if np.ptp(x) == 0 else float(((x - x.mean()) ** 2).sum())
