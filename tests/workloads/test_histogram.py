"""Histograms: bins lose no value, and heights are proportional to comparable areas."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.workloads.histogram import SHORTEST_S, integer_histogram, seconds_histogram


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=200))
def test_every_token_count_lies_in_one_bin_of_whole_tokens(values: list[int]) -> None:
    histogram = integer_histogram(values)
    assert sum(bin_.count for bin_ in histogram.bins) == histogram.total == len(values)
    assert all(a.high == b.low for a, b in itertools.pairwise(histogram.bins))
    assert all(bin_.high - bin_.low >= 1 and bin_.low == int(bin_.low) for bin_ in histogram.bins)
    assert histogram.bins[0].low == min(values)
    assert histogram.bins[-1].high > max(values)


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=200))
def test_pauses_below_the_shortest_lie_in_no_bin(values: list[float]) -> None:
    histogram = seconds_histogram(values)
    assert sum(bin_.count for bin_ in histogram.bins) == sum(value >= SHORTEST_S for value in values)
    assert histogram.total == len(values)


def test_mean_and_quantiles() -> None:
    histogram = integer_histogram(list(range(1, 102)))
    assert (histogram.mean, histogram.p50, histogram.p90, histogram.p99, histogram.max) == (51, 51, 91, 100, 101)


def test_heights_are_comparable_areas() -> None:
    """A quarter of the sample in 1…2 is as high as a quarter in 512…1024, not 512 times as high."""
    histogram = integer_histogram([1] * 500 + list(range(512, 1024)) * 10)
    areas = zip(histogram.heights, histogram.bins, strict=True)
    assert sum(height * math.log2(bin_.high / bin_.low) for height, bin_ in areas) == pytest.approx(100)
    assert integer_histogram([100, 120, 150]).logarithmic is False
    assert sum(integer_histogram([100, 120, 150]).heights) == pytest.approx(100)


def test_uniform_lengths_fill_all_bins_evenly() -> None:
    counts = [bin_.count for bin_ in integer_histogram(list(range(252, 902)) * 3).bins]
    assert min(counts) == max(counts)


def test_an_empty_sample_and_a_single_value() -> None:
    assert integer_histogram([]).bins == seconds_histogram([0.0, 0.0]).bins == ()
    assert (integer_histogram([]).total, integer_histogram([]).max) == (0, 0)
    assert [(bin_.low, bin_.high, bin_.count) for bin_ in integer_histogram([128] * 9).bins] == [(128, 129, 9)]
