"""The smallest effect that can be detected, and the number of runs that an effect needs."""

import math

import numpy as np
import pytest
from scipy import stats

from bakeoff.results.statistics.power import runs_needed, smallest_effect
from bakeoff.results.statistics.two_sample import Contrast, Method, contrast
from tests.results.runs import sides


def equal(runs: int, noise: float = 0.02, method: Method = Method.WELCH) -> Contrast:
    """This many runs of each side with this noise; pairs have half the degrees of freedom."""
    degrees = runs - 1 if method in {Method.PAIRED, Method.PIECES} else 2 * (runs - 1)
    return Contrast(0.0, noise * math.sqrt(2 / runs), degrees, method, (runs, runs))


def test_the_stated_power_is_reached() -> None:
    """Other runs that differ by the size that equal sides printed are told apart in about 9 of 10 cases."""
    rng = np.random.default_rng(4)
    detected = 0
    for _ in range(1_000):
        printed = contrast(*sides(rng, 1.0), interleaved=False)
        assert printed is not None
        found = contrast(*sides(rng, 1 + smallest_effect(printed, 0.01)), interleaved=False)
        assert found is not None
        detected += found.p_value <= 0.01
    assert detected == pytest.approx(900, abs=30)


@pytest.mark.parametrize("degrees", [1.7, 4.0, 14.0, 98.4])
@pytest.mark.parametrize("alpha", [0.01, 0.05])
def test_the_smallest_effect_has_a_power_of_nine_tenths(degrees: float, alpha: float) -> None:
    """Checked with scipy's noncentral t, over the χ² distribution of an estimated standard error."""
    critical = stats.t.isf(alpha / 2, degrees)
    for error in (0.001, 0.01):
        centre = math.log1p(smallest_effect(Contrast(0.5, error, degrees, Method.WELCH, (8, 8)), alpha)) / error
        errors = np.sqrt(stats.chi2.ppf((np.arange(300) + 0.5) / 300, degrees) / degrees)
        assert np.mean(stats.nct.sf(critical, degrees, centre * errors)) == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("method", list(Method))
@pytest.mark.parametrize("runs", [2, 3, 8, 100])
def test_the_present_runs_detect_their_smallest_effect(runs: int, method: Method) -> None:
    equal_sides = equal(runs, method=method)
    effect = smallest_effect(equal_sides, 0.01)
    assert runs_needed(equal_sides, 0.01, effect * 1.001) == runs
    more = runs + 1 if runs < 100 else None
    assert runs_needed(equal_sides, 0.01, effect * 0.998) == more, "above 100 there are too many"
    assert runs_needed(equal_sides, 0.01, 1e6) == 2, "fewer know no noise"


def test_unequal_sides_count_by_their_harmonic_mean() -> None:
    """3 and 12 runs are as precise as 4.8 of each: 1/3 + 1/12 = 2/4.8."""
    uneven = Contrast(0.0, 0.02 * math.sqrt(1 / 3 + 1 / 12), 13, Method.WELCH, (3, 12))
    for effect in (0.03, 0.05, 0.1):
        assert runs_needed(uneven, 0.01, effect) == runs_needed(equal(8), 0.01, effect)
