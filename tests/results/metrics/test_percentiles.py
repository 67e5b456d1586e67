"""Percentiles equal numpy's, and are given only from the count on that MLPerf's early stopping requires."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.results.metrics.percentiles import percentile, required_count

GATES = [(0.5, 3), (0.9, 64), (0.95, 130), (0.99, 662), (0.999, 6636)]


@pytest.mark.parametrize(("q", "required"), GATES)
def test_gate(q: float, required: int) -> None:
    """With one observation too few the percentile is absent and names the count; with enough it equals numpy's."""
    assert required_count(q) == required
    rng = np.random.default_rng(3)
    values = rng.lognormal(size=required).tolist()
    short = percentile(values[:-1], q)
    assert short.value is None
    assert short.reason == f"p{q * 100:g} needs {required:,} observations, there are {required - 1:,}"
    assert percentile(values, q).value == pytest.approx(float(np.quantile(values, q)), rel=1e-12)


@pytest.mark.parametrize("q", [0.501, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.975, 0.99, 0.999])
def test_gate_is_the_smallest_count_that_satisfies_the_condition(q: float) -> None:
    """q^n + n (1 − q) q^(n − 1) ≤ 0.01 holds for n but not for n − 1."""

    def chance_of_at_most_one_miss(n: int) -> float:
        return q**n + n * (1 - q) * q ** (n - 1)

    required = required_count(q)
    assert chance_of_at_most_one_miss(required) <= 0.01 < chance_of_at_most_one_miss(required - 1)


def test_median_interpolates_between_the_two_middle_values() -> None:
    """Type 7: the median of 1, 2, 4, 9 is (2 + 4) / 2 = 3."""
    assert percentile([9, 1, 4, 2], 0.5).value == pytest.approx(3.0)


@given(st.lists(st.floats(0, 1e6), min_size=130, max_size=200))
def test_percentiles_rise_with_the_quantile_and_stay_inside(values: list[float]) -> None:
    percentiles = [percentile(values, q).value for q in (0.5, 0.9, 0.95)]
    assert None not in percentiles
    assert min(values) <= percentiles[0] <= percentiles[1] <= percentiles[2] <= max(values)  # type: ignore[operator]


@given(st.lists(st.floats(1e-6, 1e6), min_size=64, max_size=100), st.permutations(range(64)))
def test_order_does_not_matter(values: list[float], order: list[int]) -> None:
    shuffled = [values[i] for i in order] + values[64:]
    assert percentile(shuffled, 0.9) == percentile(values, 0.9)
