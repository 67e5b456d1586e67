"""Statistics of a stream equal those of the whole list, whatever the batches."""

import itertools
import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bakeoff.workloads.dispersion
from bakeoff.workloads.dispersion import WINDOWS_S, ArrivalStatistics

RATE_PER_S = 5.0


def statistics_of(offsets_s: Iterable[float]) -> ArrivalStatistics:
    statistics = ArrivalStatistics()
    statistics.add_all(offsets_s)
    return statistics


@pytest.fixture(scope="module")
def poisson() -> np.ndarray:
    """200,000 offsets: more than three batches."""
    return np.cumsum(np.random.default_rng(7).exponential(1 / RATE_PER_S, 200_000))


def test_a_stream_in_batches_has_the_statistics_of_the_list(poisson: np.ndarray) -> None:
    statistics, gaps = statistics_of(poisson), np.diff(poisson)
    assert statistics.count == 200_000
    assert statistics.span_s == pytest.approx(poisson[-1] - poisson[0], rel=1e-12)
    assert statistics.rate_per_s == pytest.approx(1 / gaps.mean())
    assert statistics.gap_cv == pytest.approx(gaps.std(ddof=1) / gaps.mean(), rel=1e-9)
    assert statistics.longest_gap_s == gaps.max()


@pytest.mark.parametrize("window_s", WINDOWS_S)
def test_windows_are_whole_and_counted_from_the_start(poisson: np.ndarray, window_s: int) -> None:
    statistics = statistics_of(poisson)
    edges = np.arange(0, poisson[-1] // window_s * window_s + 1, window_s)
    counts, _ = np.histogram(poisson[poisson < edges[-1]], edges)
    assert statistics.dispersion(window_s) == pytest.approx(counts.var(ddof=1) / counts.mean(), rel=1e-9)
    assert statistics.peak_to_mean(window_s) == pytest.approx(counts.max() / counts.mean(), rel=1e-9)


def test_poisson_has_one_in_every_window(poisson: np.ndarray) -> None:
    statistics = statistics_of(poisson)
    for window_s in WINDOWS_S:
        error = math.sqrt(2 * window_s / statistics.span_s)
        assert statistics.dispersion(window_s) == pytest.approx(1.0, abs=4 * error)


def test_even_spacing_has_no_dispersion() -> None:
    statistics = statistics_of(i / 4 for i in range(80_001))
    assert statistics.gap_cv == pytest.approx(0.0, abs=1e-9)
    assert [statistics.dispersion(window_s) for window_s in WINDOWS_S] == [0, 0, 0, 0]
    assert [statistics.peak_to_mean(window_s) for window_s in WINDOWS_S] == [1, 1, 1, 1]
    assert statistics.rate_per_s == 4.0


def test_crowds_at_one_moment_are_counted() -> None:
    statistics = statistics_of(second for second in range(100) for _ in range(10))
    assert statistics.gap_cv == pytest.approx(3.0, abs=0.05)


def test_too_little_gives_none() -> None:
    empty = ArrivalStatistics()
    assert (empty.count, empty.span_s, empty.rate_per_s, empty.gap_cv) == (0, 0.0, None, None)
    assert (empty.longest_gap_s, empty.dispersion(1)) == (None, None)
    assert empty.counts_over_time().counts == ()
    single = statistics_of([3.0])
    assert (single.count, single.rate_per_s, single.gap_cv, single.longest_gap_s) == (1, None, None, None)
    assert statistics_of([0.0, 0.0, 0.0]).gap_cv is None
    assert statistics_of([0.0, 1.0]).gap_cv is None


def test_ten_whole_windows_are_needed() -> None:
    assert statistics_of(np.arange(0, 99.9, 0.1)).dispersion(10) is None
    assert statistics_of(np.arange(0, 100.05, 0.1)).dispersion(10) is not None
    with pytest.raises(ValueError, match="window_s must be at least 1, not 0"):
        statistics_of([1.0]).dispersion(0)


def test_a_silence_at_the_start_counts_as_windows() -> None:
    late = statistics_of(np.arange(50, 100.05, 0.1))
    assert late.peak_to_mean(10) == pytest.approx(2.0)
    assert late.rate_per_s == pytest.approx(10.0)


@given(st.lists(st.floats(0, 2_000), min_size=1, max_size=50), st.integers(1, 150))
def test_the_histogram_holds_every_arrival_in_as_few_seconds_as_fit(offsets: list[float], most: int) -> None:
    offsets.sort()
    drawn = statistics_of(offsets).counts_over_time(most)
    assert sum(drawn.counts) == len(offsets)
    assert len(drawn.counts) <= most
    assert drawn.bin_s == 1 or math.ceil((math.floor(offsets[-1]) + 1) / (drawn.bin_s - 1)) > most
    assert [int(offset // drawn.bin_s) for offset in offsets] == [
        i for i, count in enumerate(drawn.counts) for _ in range(count)
    ]


@given(st.lists(st.floats(0, 10, allow_subnormal=False), min_size=3, max_size=40), st.integers(1, 7))
def test_it_may_be_asked_at_any_time(gaps: list[float], chunk: int) -> None:
    offsets = list(itertools.accumulate(gaps))
    asked = ArrivalStatistics()
    for i, offset in enumerate(offsets):
        asked.add(offset)
        if i % chunk == 0:
            assert asked.count == i + 1
            assert asked.span_s == offset - offsets[0]
    whole = statistics_of(offsets)
    assert asked.gap_cv == (None if whole.gap_cv is None else pytest.approx(whole.gap_cv, abs=1e-9))
    assert asked.counts_over_time() == whole.counts_over_time()


@pytest.mark.parametrize(
    "offsets",
    [[2.0, 1.0], [-1.0, 0.0], [math.nan], [1.0, math.nan, 2.0], [1.0, math.inf], [1_700_000_000.0]],
    ids=repr,
)
def test_what_is_no_offset_is_refused(offsets: list[float]) -> None:
    with pytest.raises(ValueError, match="from the start of the load, from 0 to 10⁸ and not decreasing"):
        assert statistics_of(offsets).span_s


def test_a_step_back_between_batches_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bakeoff.workloads.dispersion, "_CHUNK", 2)
    statistics = statistics_of([1.0, 5.0])
    with pytest.raises(ValueError, match="not decreasing"):
        statistics.add_all([4.0, 6.0])


def test_it_holds_seconds_and_not_arrivals() -> None:
    statistics = statistics_of(i * 1e-4 for i in range(1_000_000))
    assert statistics.count == 1_000_000
    assert len(statistics._buffer) < 65_536
    assert len(statistics._per_second) < 4_096
