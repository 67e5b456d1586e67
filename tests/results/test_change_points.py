"""Steps in a series of numbers."""

import numpy as np
import pytest

from results.statistics.change_points import change_points


def noisy(seed: int, *levels: tuple[float, int]) -> list[float]:
    rng = np.random.default_rng(seed)
    return [level * float(np.exp(rng.normal(0, 0.01))) for level, count in levels for _ in range(count)]


def test_a_step_is_found_where_it_is() -> None:
    values = noisy(1, (50.0, 40), (51.5, 20))
    (step,) = change_points(values)
    assert step.index == pytest.approx(40, abs=2)
    assert (step.before, step.after) == pytest.approx((50.0, 51.5), rel=0.005)
    assert step.ratio == pytest.approx(1.03, abs=0.008)
    assert step.p_value < 1e-6
    assert change_points(values) == [step], "the same answer every time"


def test_up_and_back_down_do_not_hide_each_other() -> None:
    steps = change_points(noisy(2, (50.0, 40), (53.0, 6), (50.0, 40)))
    assert [step.index for step in steps] == pytest.approx([40, 46], abs=1)
    assert [step.ratio > 1 for step in steps] == [True, False]


def test_noise_and_single_runs_that_went_wrong_are_no_steps() -> None:
    for seed in range(30):
        values = noisy(seed, (50.0, 100))
        assert change_points(values) == []
        values[30] *= 1.5
        values[99] *= 0.5
        assert change_points(values) == []


def test_a_drift_of_levels_and_constant_series() -> None:
    assert change_points([3.0] * 20) == []
    (step,) = change_points([3.0] * 10 + [4.0] * 10)
    assert (step.index, step.before, step.after) == (10, pytest.approx(3.0), pytest.approx(4.0))
    assert change_points([1.0, 1.0, 5.0, 5.0, 5.0]) == [], "two runs are no level"
    assert change_points([]) == []


def test_the_unit_does_not_matter() -> None:
    values = noisy(5, (1.0, 30), (1.05, 30))
    seen, scaled = change_points(values), change_points([1e6 * value for value in values])
    assert [step.index for step in seen] == [step.index for step in scaled]
    assert scaled[0].ratio == pytest.approx(seen[0].ratio)
