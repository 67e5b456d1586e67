"""Varying rates: exact against the integral of the wanted rate, and similar to the traces that set their defaults."""

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.workloads.arrivals import Arrival, Diurnal, Drift, Ramp
from bakeoff.workloads.arrivals.intensity import Piece, cycle, in_seconds, skipped
from bakeoff.workloads.dispersion import ArrivalStatistics

HOUR_S = 3600.0
heights = st.floats(0, 5).map(lambda height: round(height, 3))
pieces = st.builds(Piece, st.floats(0.01, 50), heights, heights)


def until(process: Arrival, seed: str, end_s: float) -> np.ndarray:
    return np.fromiter(itertools.takewhile(lambda offset: offset < end_s, process.offsets_s(seed)), float)


def integral(curve: list[Piece], offset_s: float) -> float:
    """The integral of the curve up to a time, straight from the definition."""
    total = 0.0
    for piece in curve:
        inside = min(offset_s, piece.length_s)
        end = piece.begin + (piece.end - piece.begin) * inside / piece.length_s
        total += inside * (piece.begin + end) / 2
        offset_s -= inside
    return total


@given(curve=st.lists(pieces, min_size=1, max_size=8), rate=st.floats(0.1, 100), shares=st.lists(st.floats(0, 1)))
def test_each_arrival_comes_when_the_integral_says(curve: list[Piece], rate: float, shares: list[float]) -> None:
    worth = integral(curve, math.inf)
    times = sorted(share * worth * rate for share in shares)
    endless = itertools.chain(curve, itertools.repeat(Piece(1.0, 1.0, 1.0)))
    offsets = list(in_seconds(times, endless, rate))
    assert offsets == sorted(offsets)
    for time, offset in zip(times, offsets, strict=True):
        assert integral([*curve, Piece(1e9, 1.0, 1.0)], offset) * rate == pytest.approx(time, rel=1e-9, abs=1e-9 * rate)


@given(curve=st.lists(pieces, min_size=1, max_size=8), share=st.floats(0, 0.99))
def test_a_curve_that_has_begun_is_worth_the_rest(curve: list[Piece], share: float) -> None:
    skip_s = share * sum(piece.length_s for piece in curve)
    rest = integral(list(skipped(iter(curve), skip_s)), math.inf)
    assert rest == pytest.approx(integral(curve, math.inf) - integral(curve, skip_s), abs=1e-6)


def test_a_cycle_has_a_mean_of_one() -> None:
    assert list(itertools.islice(cycle([1, 3], 10.0, level=False), 3)) == [
        Piece(10, 0.5, 1.5),
        Piece(10, 1.5, 0.5),
        Piece(10, 0.5, 1.5),
    ]
    assert list(itertools.islice(cycle([0, 2], 10.0, level=True), 2)) == [Piece(10, 0, 0), Piece(10, 2, 2)]


@pytest.mark.parametrize("seed", ["1", "2", "7"])
@pytest.mark.parametrize(("start", "end"), [(0.0, 1.0), (0.5, 2.0), (2.0, 0.25), (1.0, 1.0)])
def test_a_ramp_climbs_evenly_and_stays(seed: str, start: float, end: float) -> None:
    rate, over_s = 20.0, 400.0
    offsets = until(Ramp(rate, start, end, over_s), seed, 600.0)
    counts, edges = np.histogram(offsets, np.arange(0, 601, 50))
    middles = (edges[:-1] + 25).clip(max=over_s + 25)
    wanted = np.where(middles < over_s, start + (end - start) * middles / over_s, end) * rate * 50
    assert (np.abs(counts - wanted) < 4.5 * np.sqrt(wanted)).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", "2", "7"])
def test_a_day_swings_fourfold_around_its_mean(seed: str) -> None:
    offsets = until(Diurnal(2.0), seed, 2 * 86_400.0)
    counts, _ = np.histogram(offsets, np.arange(0, 2 * 86_400 + 1, HOUR_S))
    assert len(offsets) / (2 * 86_400) == pytest.approx(2.0, rel=4 / math.sqrt(len(offsets)))
    # The fullest of the hours near the peak, 11,500 arrivals of 2 days, over the emptiest: 1.5 % each, and the maximum
    # of a few hours is a standard error or so high.
    hours = counts[:24] + counts[24:]
    assert hours.max() / hours.min() == pytest.approx(4.0, rel=0.08)
    assert hours.argmax() in {5, 6}
    assert hours.argmin() in {17, 18}


def test_a_phase_is_where_the_load_begins() -> None:
    """Even gaps show the rate itself: at a quarter of a period it has its maximum, 1.6 of the mean."""
    for phase_s, rate in ((0.0, 1.0), (21_600.0, 1.6), (64_800.0, 0.4), (86_400.0 + 21_600.0, 1.6), (-21_600.0, 0.4)):
        offsets = until(Diurnal(10.0, phase_s=phase_s, burstiness=math.inf), "7", 300.0)
        assert len(offsets) == pytest.approx(rate * 3_000, rel=0.03), phase_s


def test_a_profile_holds_for_an_hour_each() -> None:
    profile = tuple(float(hour % 5) for hour in range(24))
    offsets = until(Diurnal(2.0, profile=profile, burstiness=math.inf), "7", 86_400.0)
    counts, _ = np.histogram(offsets, np.arange(0, 86_401, HOUR_S))
    assert counts == pytest.approx(np.array(profile) / np.mean(profile) * 7_200, abs=1)
    assert len(offsets) == pytest.approx(172_800, abs=1)


@pytest.mark.slow
def test_drift_is_the_conversation_trace() -> None:
    """Azure conversation 2023, one hour at 5.53/s: CV 1.094, dispersion 1.39 / 3.86 / 16.1 over 1 / 10 / 60 s.

    An hour holds few of the rate's five-minute memories, so single hours differ: over 20 seeds the dispersion over 60 s
    has a standard deviation of 6.6. The means and medians of 20 must be the trace's.
    """
    hours = [ArrivalStatistics() for _ in range(20)]
    for seed, hour in enumerate(hours):
        hour.add_all(until(Drift(5.53), str(seed), HOUR_S))
    cvs = [hour.gap_cv or 0 for hour in hours]
    assert min(cvs) > 1.05
    assert max(cvs) < 1.15
    assert statistics.mean(hour.dispersion(1) or 0 for hour in hours) == pytest.approx(1.39, abs=0.1)
    assert 3 <= statistics.median(hour.dispersion(10) or 0 for hour in hours) <= 4
    assert statistics.mean(hour.dispersion(60) or 0 for hour in hours) == pytest.approx(16.1, abs=1.5)
    assert statistics.mean(hour.rate_per_s or 0 for hour in hours) == pytest.approx(5.53, abs=0.4)


@pytest.mark.slow
def test_drift_has_its_mean_rate_in_the_long_run() -> None:
    """Over 10,000 memories: the standard error of the mean of exp(0.6·x) is √(2·0.433/10,000) = 0.9 %."""
    process = Drift(1.0, sigma=0.6, memory_s=10.0, burstiness=1.0)
    assert len(until(process, "7", 100_000.0)) / 100_000 == pytest.approx(1.0, rel=0.037)


def test_without_sigma_drift_is_its_gaps() -> None:
    calm = ArrivalStatistics()
    calm.add_all(itertools.islice(Drift(5.0, sigma=0.0, burstiness=1.0).offsets_s("7"), 40_000))
    assert calm.gap_cv == pytest.approx(1.0, abs=0.02)
    assert calm.dispersion(60) == pytest.approx(1.0, abs=4 * math.sqrt(2 * 60 / calm.span_s))
