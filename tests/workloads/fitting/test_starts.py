"""Statistics of session starts, computed from a stream."""

from itertools import pairwise

import numpy as np
import pytest

from bakeoff.workloads.dispersion import ArrivalStatistics
from bakeoff.workloads.distributions import ks_distance
from bakeoff.workloads.fitting import starts as module
from bakeoff.workloads.fitting.starts import coarse_tick_s
from bakeoff.workloads.rng import Rng
from tests.workloads.fitting.synthetic import cumulated, seen, starts_of

POISSON = starts_of("poisson", 3.0, {}, 40_000)


def test_figures_are_those_of_the_same_starts_looked_at_at_once():
    statistics = ArrivalStatistics()
    statistics.add_all(at_s - POISSON[0] for at_s in POISSON)
    arrivals = seen(POISSON)
    assert arrivals.count == arrivals.stretch_count == len(POISSON)
    assert arrivals.rate_per_s == pytest.approx(statistics.rate_per_s)
    assert arrivals.gap_cv == pytest.approx(statistics.gap_cv)
    assert arrivals.dispersions[10] == pytest.approx(statistics.dispersion(10))
    assert arrivals.in_order_s == pytest.approx(np.diff(POISSON))
    assert sorted(arrivals.gaps_s) == pytest.approx(sorted(np.diff(POISSON)))
    assert arrivals.tick_s is None


def test_windows_of_five_minutes_do_not_see_that_the_rate_doubles_every_hour():
    starts_s = cumulated(gap_s * 2.0 ** -(number // 5_000) for number, gap_s in enumerate(np.diff(POISSON)))
    arrivals = seen(starts_s)
    assert arrivals.gap_cv is not None
    assert arrivals.gap_cv > 1.5
    assert arrivals.window_cv == pytest.approx(1.0, abs=0.05)


def test_a_long_stream_is_looked_at_in_stretches(monkeypatch: pytest.MonkeyPatch):
    slow_then_quick = cumulated([1.0, 3.1] * 1_000 + [0.1, 0.31] * 1_000)
    together = seen(slow_then_quick)
    monkeypatch.setattr(module, "STRETCH", 2_001)
    apart = seen(slow_then_quick)
    assert apart.stretch_count == 2_001
    assert apart.count == together.count == 4_001
    assert apart.rate_per_s == together.rate_per_s
    assert apart.gap_cv == pytest.approx(1.05 / 2.05, rel=0.01)
    assert together.gap_cv is not None
    assert together.gap_cv > 1


def test_gaps_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "IN_ORDER", 100)
    assert seen(POISSON).in_order_s == pytest.approx(np.diff(POISSON[:101]))


@pytest.mark.parametrize(
    ("starts_s", "tick_s"),
    [
        ([float(int(at_s)) for at_s in POISSON[:256]], 1.0),
        ([3.0 * int(at_s / 3) for at_s in POISSON[:256]], 3.0),
        (POISSON[:256], None),
        ([round(at_s, 3) for at_s in POISSON[:256]], None),  # milliseconds distinguish gaps of 0.3 s
        ([0.5 * number for number in range(256)], None),  # even spacing is not a coarse clock
        ([0.0] * 256, None),
    ],
)
def test_a_coarse_clock_is_told_by_its_multiples(starts_s: list[float], tick_s: float | None):
    assert coarse_tick_s(starts_s) == tick_s


def test_starts_of_a_coarse_clock_are_spread_over_its_ticks():
    arrivals = seen(float(int(at_s)) for at_s in POISSON)
    assert arrivals.tick_s == 1.0
    assert arrivals.gap_cv == pytest.approx(1.0, abs=0.05)
    assert ks_distance(arrivals.gaps_s, np.diff(POISSON)) < 0.02
    assert all(gap_s >= 0 for gap_s in arrivals.in_order_s)


@pytest.mark.parametrize("starts_s", [[], [1.0], [2.0] * 300])
def test_no_time_passes(starts_s: list[float]):
    starts = module.Starts(Rng("ticks"))
    for at_s in starts_s:
        starts.add(at_s)
    assert starts.done() is None


def test_times_that_fall_are_refused():
    with pytest.raises(ValueError, match="1 s follows"):
        seen([*POISSON, 1.0])


def test_synthetic_starts_rise():
    assert all(a <= b for a, b in pairwise(POISSON))
