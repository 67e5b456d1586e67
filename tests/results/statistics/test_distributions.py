"""Quantiles and tails against printed tables and closed forms."""

import pytest

from bakeoff.results.statistics.distributions import t_quantile


@pytest.mark.parametrize(
    ("probability", "degrees", "table"),
    [
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 4, 2.776),
        (0.975, 7, 2.365),
        (0.995, 7, 3.499),
        (0.975, 30, 2.042),
    ],
)
def test_t_quantile_matches_the_printed_table(probability: float, degrees: int, table: float) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(table, abs=5e-4)
