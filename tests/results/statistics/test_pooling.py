"""Noise of several loads and metrics, pooled where it is alike."""

import math

import numpy as np
import pytest
from scipy import stats

from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.statistics import Judgement, compare_sessions
from bakeoff.results.statistics.pooling import Others, Trials, pool_runs, pool_trials
from bakeoff.results.statistics.two_sample import Contrast, Method, contrast
from tests.results.runs import runs

UP, DOWN = (0.01, 0.0, -0.01), (-0.01, 0.02, -0.01)
"""Uncorrelated logs, of variances 1e-4 and 3e-4."""


def trials(a: tuple[float, ...], b: tuple[float, ...]) -> Trials:
    return runs(*np.exp(a)), runs(*np.exp(b))


def welch(sides: Trials) -> Contrast:
    effect = contrast(*sides, interleaved=False)
    assert effect is not None
    return effect


def test_sides_that_vary_alike_have_the_degrees_of_students_t() -> None:
    own = trials(UP, DOWN)
    effect = welch(own)
    pooled = pool_trials(effect, own, Others())
    assert (pooled.standard_error, pooled.degrees) == (pytest.approx(effect.standard_error), 4)
    expected = stats.ttest_ind(DOWN, UP)
    assert pooled.p_value == pytest.approx(expected.pvalue)


@pytest.mark.parametrize(
    "own",
    [
        trials(UP, tuple(20 * log for log in DOWN)),
        trials(UP, (0.0, 0.0, 0.0)),
        (runs(*np.exp(UP)), runs(*np.exp(UP + DOWN + (0.02,)))),
        (runs(*np.exp(UP)), runs(1.0, 1.01)),
        (runs(1.0, 1.1, 0.0), runs(1.0, 1.1, 1.2)),
    ],
)
def test_sides_that_do_not_keep_welchs_degrees(own: Trials) -> None:
    effect = Contrast(0.1, 0.01, 2.5, Method.WELCH, (3, 3))
    assert pool_trials(effect, own, Others([trials(UP, DOWN)])) == effect


def test_independent_loads_add_their_degrees() -> None:
    """The second load's residuals are orthogonal to the first's, with the same variance of 2e-4."""
    own, other = trials(UP, DOWN), trials(DOWN, UP)
    effect = welch(own)
    pooled = pool_trials(effect, own, Others([other]))
    assert (pooled.standard_error, pooled.degrees) == (pytest.approx(effect.standard_error), pytest.approx(8))


def test_metrics_that_vary_together_add_no_degrees() -> None:
    own = trials(UP, DOWN)
    effect = welch(own)
    copied = pool_trials(effect, own, Others(metrics=[own, own]))
    assert (copied.standard_error, copied.degrees) == (pytest.approx(effect.standard_error), pytest.approx(4))


def test_pooling_raises_the_noise_and_never_lowers_it() -> None:
    """The other load has 2.25 times the variance: 1.625 times when pooled."""
    own, noisier = trials(UP, DOWN), trials(tuple(1.5 * x for x in DOWN), tuple(1.5 * x for x in UP))
    more = pool_trials(welch(own), own, Others([noisier]))
    assert more.standard_error == pytest.approx(welch(own).standard_error * math.sqrt(1.625))
    less = pool_trials(welch(noisier), noisier, Others([own]))
    assert less.standard_error == pytest.approx(welch(noisier).standard_error)
    degrees = 4 * (1 + 2.25) ** 2 / (1 + 2.25**2)
    assert more.degrees == pytest.approx(degrees)
    assert less.degrees == pytest.approx(4 + (degrees - 4) * (1.625 / 2.25) ** 2), "the others count for less"


def test_what_varies_differently_is_not_pooled() -> None:
    """First all are tried, then the loads alone, then the sides."""
    own, alike = trials(UP, DOWN), trials(DOWN, UP)
    wild = trials(tuple(30 * x for x in DOWN), tuple(30 * x for x in UP))
    effect = welch(own)
    assert pool_trials(effect, own, Others([wild])).degrees == 4
    assert pool_trials(effect, own, Others([alike], [wild])).degrees == pytest.approx(8)
    other_repeats = tuple({repeat + 1: value for repeat, value in side.items()} for side in alike)
    assert pool_trials(effect, own, Others([other_repeats])).degrees == 4


def test_pairs_are_pooled_with_pairs() -> None:
    """Two degrees of freedom need a t of 9.9 at 99 %, four one of 4.6."""
    shared = np.array([0.0, 10.0, -10.0])
    own = runs(*np.exp(shared)), runs(*np.exp(shared + UP))
    other = runs(*np.exp(shared)), runs(*np.exp(shared + np.array(DOWN) / math.sqrt(3)))
    effect = contrast(*own, interleaved=True)
    assert effect is not None
    pooled = pool_trials(effect, own, Others([other]))
    assert (effect.method, effect.degrees) == (Method.PAIRED, 2)
    assert (pooled.standard_error, pooled.degrees) == (pytest.approx(effect.standard_error), pytest.approx(4))


def test_runs_of_different_times_are_pooled_over_loads() -> None:
    """Five stored runs and one now: four degrees, eight with a load that varies independently."""
    a = [0.02, -0.02, 0.01, -0.01, 0.0]
    other = [0.01, -0.01, -0.02, 0.02, 0.0]
    own = [[math.exp(log)] for log in a], [[1.0]]
    loads = [([[math.exp(log)] for log in other], [[1.1]])]
    error = float(np.std(a, ddof=1)) * math.sqrt(1 / 5 + 1)
    effect = Contrast(0.0, error, 4.0, Method.BETWEEN_RUNS, (5, 1))
    pooled = pool_runs(effect, own, Others(loads))
    assert (pooled.standard_error, pooled.degrees) == (pytest.approx(error), pytest.approx(8))
    by_trials = Contrast(0.0, error, 3.1, Method.BETWEEN_RUNS, (5, 1))
    assert pool_runs(by_trials, own, Others(loads)) == by_trials
    ttft = CATALOGUE["ttft_p50_s"]
    slower = [[1.075]]
    alone = compare_sessions(ttft, "c=8", own[0], slower)
    together = compare_sessions(ttft, "c=8", own[0], slower, others=Others(loads))
    assert (alone.judgement, together.judgement) == (Judgement.UNCLEAR, Judgement.WORSE)


@pytest.mark.slow
@pytest.mark.parametrize("noisier", [1.0, 2.0, 3.0])
def test_loads_and_metrics_that_vary_differently_raise_few_alarms(noisier: float) -> None:
    """Three repeats of equal engines, 800 comparisons at 5 %: 6 % in a large sample, with a standard error of 0.8 %."""
    rng = np.random.default_rng(3)

    def sides(cv: float) -> Trials:
        a, b = (dict(enumerate(np.exp(rng.normal(0, cv, 3)).tolist())) for _ in "ab")
        return a, b

    alarms = 0
    for _ in range(800):
        own, others = sides(0.01 * noisier), Others([sides(0.01)], [sides(0.01), sides(0.01)])
        alarms += pool_trials(welch(own), own, others).p_value <= 0.05
    assert alarms / 800 <= 0.08
