"""Intervals over trials that include the error of their windows."""

import math

import numpy as np
import pytest

from bakeoff.results.statistics.interval import Interval, log_t_interval
from bakeoff.results.statistics.queue_intervals import queue_interval

OVER = Interval(2.0, 1.9, 2.0 * 2.0 / 1.9, 3)


def test_worked() -> None:
    """Waits 1 to 1000: at q = 0.9 the slope is ln(950 / 800) / 0.15 = 1.146.

    Nine states: t = 2.306, so the half width is 2.306 × 1.146 × √(0.09 / 9) = 0.2643; with ln(2 / 1.9) it is 0.2692.
    """
    found = queue_interval(OVER, 0.9, [list(range(1, 1001))] * 3, 9.0)
    assert found.low == pytest.approx(2.0 * math.exp(-0.2692), rel=1e-3)
    assert found.high == pytest.approx(2.0 * math.exp(0.2692), rel=1e-3)
    assert (found.centre, found.n) == (2.0, 3)


def test_without_bounds_it_stays_as_it_is() -> None:
    one = Interval(2.0, None, None, 1, "one trial has no interval; three or more give one")
    assert queue_interval(one, 0.9, [[1.0, 2.0]], 9.0) == one


def test_a_percentile_near_failures_has_no_bounds() -> None:
    found = queue_interval(OVER, 0.9, [[1.0] * 94 + [math.inf] * 6], 9.0)
    assert (found.low, found.high) == (None, None)
    assert found.reason


@pytest.mark.slow
@pytest.mark.parametrize("states", [40, 160])
def test_it_covers_the_long_run_where_repeats_share_their_traffic(states: int) -> None:
    """Exponential waits, in blocks of equal ones; repeats differ by 1 %."""
    rng, truth, held, held_before = np.random.default_rng(1), math.log(10), 0, 0
    for _ in range(300):
        waits = rng.exponential(size=(states, 1)) + np.zeros((1, 10))
        blocks = np.sort(waits.ravel())
        trials = [(blocks * math.exp(0.01 * rng.normal())).tolist() for _ in range(3)]
        over = log_t_interval([float(np.quantile(values, 0.9)) for values in trials])
        assert over is not None
        found = queue_interval(over, 0.9, trials, states)
        held += (found.low or 0) <= truth <= (found.high or 0)
        held_before += (over.low or 0) <= truth <= (over.high or 0)
    assert held >= 0.85 * 300
    assert held_before <= 0.5 * 300
