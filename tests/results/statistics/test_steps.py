"""The largest step of a series, against known ones."""

import numpy as np
import pytest

from bakeoff.results.statistics.steps import MOST_DEVIATIONS, autocorrelation_time, largest_step


@pytest.fixture
def rng() -> np.random.Generator:
    """The same draws in every test, whichever worker runs it."""
    return np.random.default_rng(0)


@pytest.mark.parametrize("place", [20, 100, 180])
def test_a_step_is_found_where_it_is(rng: np.random.Generator, place: int):
    values = np.exp(0.1 * rng.normal(size=200))
    values[place:] *= 1.5
    step = largest_step(values)
    assert step is not None
    assert step.place == pytest.approx(place, abs=1)
    assert step.deviations > MOST_DEVIATIONS
    assert step.after / step.before == pytest.approx(1.5, rel=0.1)


def test_a_step_without_noise_is_one():
    step = largest_step(np.array([1.0] * 50 + [2.0] * 50))
    assert step is not None
    assert (step.place, step.deviations > MOST_DEVIATIONS) == (50, True)


@pytest.mark.parametrize("place", [25, 100, 175])
def test_neither_a_slow_drift_nor_the_last_digits_hide_a_step(place: int):
    """A per cent of drift, and sums whose rounding errors grow, are in order throughout, but smaller than the step."""
    for drift in (0.01, 1e-15):
        values = 0.02 * (1 + drift * np.linspace(0, 1, 200))
        values[:place] *= 3
        step = largest_step(values)
        assert step is not None
        assert (step.place, step.deviations > MOST_DEVIATIONS) == (place, True)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_noise_is_none(rng: np.random.Generator, correlation: float):
    for _ in range(100):
        values = rng.normal(size=300)
        for i in range(1, 300):
            values[i] = correlation * values[i - 1] + values[i] * (1 - correlation**2) ** 0.5
        step = largest_step(values)
        assert step is not None
        assert step.deviations <= MOST_DEVIATIONS


def test_short_or_constant_series_have_none():
    assert largest_step(np.arange(19.0)) is None
    constant = largest_step(np.ones(100))
    assert constant is not None
    assert constant.deviations == 0


def test_the_autocorrelation_time_is_that_of_the_process(rng: np.random.Generator):
    """(1 + 0.5) / (1 − 0.5) = 3 of a first-order process."""
    values = rng.normal(size=20_000)
    for i in range(1, 20_000):
        values[i] += 0.5 * values[i - 1]
    assert autocorrelation_time(values - values.mean()) == pytest.approx(3.0, rel=0.15)
    assert autocorrelation_time(np.zeros(10)) == 1.0
