"""Samples of bounded size: fair, exact where documented, and reproducible."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.workloads.distributions import ks_distance
from bakeoff.workloads.fitting.rounding import rounded, table
from bakeoff.workloads.fitting.samples import Sample, spearman


def filled(rows: int, kept: int) -> Sample:
    sample = Sample(2, kept)
    for number in range(rows):
        sample.add((number, 2 * number))
    return sample


def test_a_short_stream_is_kept_whole():
    sample = filled(100, 100)
    assert sample.column(0).tolist() == list(range(100))
    assert sample.column(1).tolist() == list(range(0, 200, 2))


def test_a_long_stream_is_sampled_evenly_and_rows_stay_together():
    sample = filled(300_000, 5_000)
    kept = sample.column(0)
    assert len(kept) == 5_000
    assert (sample.column(1) == 2 * kept).all()
    assert (np.diff(kept) > 0).all()
    assert ks_distance(kept, np.linspace(0, 300_000, 10_000)) < 1.95 / 5_000**0.5 + 1e-3
    assert (filled(300_000, 5_000).column(0) == kept).all()


def test_count_mean_and_highest_are_of_all_rows():
    sample = filled(100_001, 10)
    assert len(sample) == 100_001
    assert sample.mean(1) == pytest.approx(100_000)
    assert sample.highest(0) == 100_000


@pytest.mark.parametrize(
    ("x", "y", "wanted"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 1e9], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 1, 1], [1, 2, 3], 0.0),
        ([1, 2, 2, 3], [1, 2, 3, 3], 0.8333333),  # ties at their middle rank
        ([1], [1], 0.0),
    ],
)
def test_rank_correlation(x: list[float], y: list[float], wanted: float):
    assert spearman(np.array(x, float), np.array(y, float)) == pytest.approx(wanted)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=300))
def test_tables_keep_whole_numbers_and_never_leave_their_range(values: list[int]):
    made = table(np.array(values, float))
    assert (made.at(0), made.at(1)) == (min(values), max(values))
    assert made.mean() == pytest.approx(np.mean(values), rel=0.5)


def test_numbers_are_written_as_a_person_would():
    assert [rounded(value, 3) for value in (0.123456, 123456.0, 0.0)] == [0.123, 123000.0, 0.0]
    assert table(np.array([1 / 3, 2 / 3])).at(0) == 0.3333
