"""The best of several settings, against tables and simulation."""

import numpy as np
import pytest

from bakeoff.results.statistics.best import beside, means_of, shrunk
from bakeoff.results.statistics.distributions import range_quantile


@pytest.mark.parametrize(("settings", "degrees", "value"), [(3, 10, 3.877), (12, 20, 5.20), (2, 5, 3.635)])
def test_the_studentised_range_is_that_of_the_tables(settings: int, degrees: int, value: float):
    """Tables of Pearson and Hartley, 5 %."""
    assert range_quantile(0.95, settings, degrees) == pytest.approx(value, abs=0.005)


@pytest.mark.parametrize(("settings", "repeats"), [(12, 3), (24, 5)])
def test_of_equal_settings_some_one_falls_behind_in_a_twentieth_of_the_grids(settings: int, repeats: int):
    """Repeats share noise. Of 400 grids at most 34 (binomial, 99.9 %); each pair by itself loses some one in half."""
    rng, lost = np.random.default_rng(3), 0
    for _ in range(400):
        shared = rng.normal(0, 0.02, repeats)
        grid = [dict(enumerate(shared + rng.normal(0, 0.02, repeats))) for _ in range(settings)]
        means = means_of(grid)
        found = beside(means, int(means.centres.argmax()), settings, 0.95)
        lost += any(not low <= 0 <= high for _, low, high in found)
    assert 6 <= lost <= 34


def test_the_luck_of_the_best_is_taken_off():
    """Twelve settings that differ by 1 %, with as much noise in their means: the best is 0.8 % too good as measured."""
    rng, raw, fair = np.random.default_rng(4), list[float](), list[float]()
    for _ in range(500):
        truth = rng.normal(0, 0.01, 12)
        means = means_of([dict(enumerate(each + rng.normal(0, 0.0224, 5))) for each in truth])
        best = int(means.centres.argmax())
        raw.append(float(means.centres[best] - truth[best]))
        fair.append(float(shrunk(means)[best] - truth[best]))
    assert np.mean(raw) > 0.006
    assert abs(np.mean(fair)) < 0.0025


def test_missing_repeats_leave_the_noise_within_settings():
    means = means_of([{1: 1.0, 2: 3.0}, {1: 2.0}])
    assert (means.degrees, means.centres.tolist()) == (1, [2.0, 2.0])
    assert means.errors.tolist() == pytest.approx([1.0, np.sqrt(2)])
    assert means_of([{1: 1.0}, {1: 2.0}]).degrees == 0
