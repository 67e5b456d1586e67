"""Boschloo's test of two counts, against sums worked by hand and against scipy."""

import pytest
from scipy.stats import boschloo_exact

from bakeoff.results.statistics.counts import boschloo, trials_needed


def test_worked_by_hand() -> None:
    """All of three and none of three: p^3 (1 - p)^3, largest at p = 1/2. Two of two and none of one: at p = 2/3."""
    assert boschloo((0, 3), (3, 3)) == pytest.approx(1 / 64)
    assert boschloo((0, 1), (2, 2)) == pytest.approx(4 / 27, rel=1e-3)
    assert boschloo((3, 5), (3, 5)) == boschloo((3, 5), (0, 5)) == boschloo((0, 0), (2, 8)) == 1.0


@pytest.mark.parametrize(("a", "b"), [((0, 8), (3, 8)), ((1, 8), (5, 8)), ((2, 24), (3, 8)), ((1, 5), (4, 6))])
def test_as_scipy(a: tuple[int, int], b: tuple[int, int]) -> None:
    table = [[b[0], a[0]], [b[1] - b[0], a[1] - a[0]]]
    assert boschloo(a, b) == pytest.approx(boschloo_exact(table, alternative="greater").pvalue, rel=0.01)


def test_how_many_trials_would_decide() -> None:
    assert trials_needed((0, 8), (2, 8), 0.05) == 14
    assert trials_needed((0, 8), (1, 8), 0.05) == 28
    assert trials_needed((0, 0), (1, 8), 0.05) is None
    assert trials_needed((30, 80), (31, 80), 0.05) is None, "hundreds"
