"""Bursts and silences: the code completion trace's figures, and the mean rate whatever the lengths."""

import itertools
import math
import statistics

import numpy as np
import pytest

from bakeoff.workloads.arrivals import OnOff
from bakeoff.workloads.arrivals.onoff import AZURE_CODE_BURST_S, AZURE_CODE_SILENCE_S
from bakeoff.workloads.dispersion import ArrivalStatistics
from bakeoff.workloads.distributions import Exponential, Fixed


def until(process: OnOff, seed: str, end_s: float) -> list[float]:
    return list(itertools.takewhile(lambda offset: offset < end_s, process.offsets_s(seed)))


@pytest.mark.slow
def test_the_defaults_are_the_code_trace() -> None:
    """Azure code 2023, 57 minutes at 2.567/s: CV 13.15, dispersion 13.2 / 71.6 / 164 over 1 / 10 / 60 s, longest
    silence 217 s. Over 20 seeds the standard deviations are 0.7, 1.4, 12, 42 and 14."""
    hours = [ArrivalStatistics() for _ in range(20)]
    gaps_s: list[float] = []
    for seed, hour in enumerate(hours):
        offsets = until(OnOff(2.567), str(seed), 3_435.0)
        hour.add_all(offsets)
        gaps_s.append(statistics.median(after - before for before, after in itertools.pairwise(offsets)))
    assert min(hour.gap_cv or 0 for hour in hours) > 10
    assert statistics.mean(hour.gap_cv or 0 for hour in hours) == pytest.approx(13.15, abs=0.7)
    assert statistics.mean(hour.dispersion(1) or 0 for hour in hours) == pytest.approx(13.2, abs=1.3)
    assert statistics.mean(hour.dispersion(10) or 0 for hour in hours) == pytest.approx(71.6, abs=10)
    assert statistics.mean(hour.dispersion(60) or 0 for hour in hours) == pytest.approx(164, abs=35)
    assert min(hour.longest_gap_s or 0 for hour in hours) > 120
    assert statistics.median(gaps_s) < 0.1


def test_the_tables_are_the_code_trace() -> None:
    """28 % of the time are bursts, 57 silences in 57 minutes; quantiles as published in the trace."""
    on_s, off_s = AZURE_CODE_BURST_S.mean(), AZURE_CODE_SILENCE_S.mean()
    assert on_s / (on_s + off_s) == pytest.approx(0.28, abs=0.005)
    assert on_s + off_s == pytest.approx(60.0, abs=1.0)
    assert [AZURE_CODE_BURST_S.at(p) for p in (0.5, 0.9, 1)] == [15, 27, 46]
    assert [AZURE_CODE_SILENCE_S.at(p) for p in (0, 0.5, 0.9, 1)] == [5, 25, 106, 217]


def test_bursts_and_silences_have_their_lengths() -> None:
    process = OnOff(10.0, Fixed(4.0), Fixed(6.0), spread=0.0, burstiness=math.inf)
    offsets = np.array(until(process, "7", 1_000.0))
    gaps = np.diff(offsets)
    silences = gaps[gaps > 1]
    assert len(silences) in {99, 100}
    assert silences == pytest.approx(6.0, abs=0.1)
    assert gaps[gaps < 1] == pytest.approx(1 / 25)
    assert len(offsets) == pytest.approx(10_000, abs=100)


@pytest.mark.slow
def test_the_mean_rate_counts_the_silences() -> None:
    """Over 10,000 cycles of exponential lengths the time inside bursts has a standard error of 1 % of itself, and the
    count of it one of √(10.5/n)."""
    process = OnOff(2.0, Exponential(5.0), Exponential(15.0))
    offsets = until(process, "7", 200_000.0)
    assert len(offsets) / 200_000 == pytest.approx(2.0, rel=0.06)


def test_a_load_begins_anywhere() -> None:
    """Already in its first second the mean rate is the wanted one: one load in four begins inside a burst."""
    process = OnOff(2.0, Fixed(5.0), Exponential(15.0), spread=0.0)
    starts = [len(until(process, str(seed), 1.0)) for seed in range(2_000)]
    error = float(np.std(starts)) / math.sqrt(len(starts))
    assert np.mean(starts) == pytest.approx(2.0, abs=4 * error)
    assert error < 0.15
    assert 0.6 < np.mean([count == 0 for count in starts]) < 0.85


@pytest.mark.slow
def test_another_rate_changes_neither_bursts_nor_silences() -> None:
    def at_rate(rate_per_s: float) -> np.ndarray:
        return np.array(until(OnOff(rate_per_s, Exponential(20.0), Exponential(40.0), spread=0.0), "7", 2_000.0))

    dense = at_rate(64.0)
    for rate_per_s in (1.0, 8.0):
        sparse = at_rate(rate_per_s)
        after = np.searchsorted(dense, sparse).clip(1, len(dense) - 1)
        nearest_s = np.minimum(np.abs(dense[after] - sparse), np.abs(dense[after - 1] - sparse))
        assert len(sparse) > 1_000
        assert nearest_s.max() < 1.0, "every arrival is inside a burst of the other"
