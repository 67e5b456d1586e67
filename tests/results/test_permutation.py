"""Permutation tests: every division counted by hand."""

import numpy as np
import pytest

from results.statistics.permutation import permutation_test
from results.statistics.two_sample import Contrast, Method, contrast
from tests.results.runs import runs, sides


def test_all_divisions_are_counted() -> None:
    """1, 2 against 4, 8: of six divisions of four logs two are as far apart as this one."""
    a, b = runs(1.0, 2.0), runs(4.0, 8.0)
    found = contrast(a, b, interleaved=False)
    assert found is not None
    test = permutation_test(a, b, found)
    assert (test.p_value, test.least) == pytest.approx((2 / 6, 2 / 6))
    assert test.agrees(0.01), "it cannot say more with so few runs"
    uneven = permutation_test(runs(1.0), runs(2.0, 4.0), found)
    assert uneven.least == pytest.approx(1 / 3)


def test_pairs_are_turned_over() -> None:
    """Differences 1, 2 and -3 of logs: of eight choices of signs, all sum to 0 or more in size."""
    found = Contrast(0.0, 1.0, 2, Method.PAIRED, (3, 3))
    a = runs(1.0, 1.0, 1.0)
    none = permutation_test(a, runs(*np.exp([1, 2, -3])), found)
    assert (none.p_value, none.least) == (1.0, 0.25)
    all_up = permutation_test(a, runs(*np.exp([1, 2, 3])), found)
    assert all_up.p_value == 0.25, "all up and all down"


def test_many_runs_are_divided_by_lot_and_always_the_same() -> None:
    rng = np.random.default_rng(3)
    a, b = sides(rng, 1.05, count=12)
    found = contrast(a, b, interleaved=False)
    assert found is not None
    tests = [permutation_test(a, b, found) for _ in range(2)]
    assert tests[0] == tests[1]
    assert tests[0].p_value < 0.01
    equal = permutation_test(a, a, found)
    assert equal.p_value == 1.0
