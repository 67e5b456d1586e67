"""Permutation tests: all divisions are counted by hand or by a count of sums, and random divisions are fair."""

import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from bakeoff.results.statistics import permutation
from bakeoff.results.statistics.permutation import PermutationTest, permutation_test
from bakeoff.results.statistics.two_sample import Contrast, Method, contrast
from tests.results.runs import runs, sides

PAIRED = Contrast(0.0, 1.0, 2, Method.PAIRED, (3, 3))
WELCH = Contrast(0.0, 1.0, 2, Method.WELCH, (3, 3))
DRAWS = 20_000


def test_all_divisions_are_counted() -> None:
    """1, 2 against 4, 8: of six divisions of the four logs, two are as far apart as this one."""
    a, b = runs(1.0, 2.0), runs(4.0, 8.0)
    effect = contrast(a, b, interleaved=False)
    assert effect is not None
    test = permutation_test(a, b, effect)
    assert (test.p_value, test.least) == pytest.approx((2 / 6, 2 / 6))
    assert test.agrees(0.01), "it cannot say more with so few runs"
    uneven = permutation_test(runs(1.0), runs(2.0, 4.0), effect)
    assert uneven.least == pytest.approx(1 / 3)


def test_pairs_are_turned_over() -> None:
    """Differences 1, 2 and -3 of logs: with all eight choices of signs the absolute sum is at least 0."""
    a = runs(1.0, 1.0, 1.0)
    none = permutation_test(a, runs(*np.exp([1, 2, -3])), PAIRED)
    assert (none.p_value, none.least) == (1.0, 0.25)
    all_up = permutation_test(a, runs(*np.exp([1, 2, 3])), PAIRED)
    assert all_up.p_value == 0.25, "all up and all down"


def test_only_repeats_of_both_sides_are_pairs() -> None:
    a, b = {0: 1.0, 1: 1.0, 2: 1.0, 3: 9.0}, {0: 2.0, 1: 3.0, 2: 4.0, 7: 0.1}
    assert permutation_test(a, b, PAIRED) == PermutationTest(0.25, 0.25)


def as_extreme(values: list[int], seen: int) -> float:
    """Share of the choices of signs whose sum is as far from 0 as ``seen``, from a count of sums."""
    sums = Counter({0: 1})
    for value in values:
        sums = Counter(
            {
                total: sums[total - value] + sums[total + value]
                for total in {s + sign * value for s in sums for sign in (1, -1)}
            }
        )
    return sum(count for total, count in sums.items() if abs(total) >= seen) / 2 ** len(values)


def apart(values: list[int], size: int) -> float:
    """Share of the divisions of integer logs whose first side has a sum as far from its mean as the real first side."""
    ways = Counter({(0, 0): 1})
    for value in values:
        for (taken, total), count in list(ways.items()):
            ways[taken + 1, total + value] += count
    middle = size * sum(values) / len(values)
    sums = {total: count for (taken, total), count in ways.items() if taken == size}
    seen = abs(sum(values[:size]) - middle)
    return sum(count for total, count in sums.items() if abs(total - middle) >= seen - 1e-9) / sum(sums.values())


def chance(share: float) -> float:
    """Four standard errors of a share of ``DRAWS`` draws."""
    return 4 * math.sqrt(share * (1 - share) / DRAWS)


@pytest.mark.parametrize("count", [17, 18, 30])
def test_many_pairs_give_the_share_of_all_choices(count: int) -> None:
    """The 131,072 choices of 17 pairs are all counted; for more than 200,000 a sample of 20,000 is drawn."""
    differences = [(-1) ** place * (place % 5) + 1 for place in range(count)]
    b = {place: math.exp(0.01 * value) for place, value in enumerate(differences)}
    test = permutation_test(dict.fromkeys(b, 1.0), b, PAIRED)
    share = as_extreme(differences, abs(sum(differences)))
    assert test.p_value == pytest.approx(share, abs=1e-9 if count == 17 else chance(share))
    assert test.least == 2 / 2**count


@pytest.mark.parametrize(("a", "b"), [(8, 9), (12, 10), (9, 14)])
def test_many_runs_give_the_share_of_all_divisions(a: int, b: int) -> None:
    """The 24,310 divisions of 8 of 17 are all counted; for 12 of 22 and 9 of 23, above 200,000, a sample is drawn."""
    logs = [place * place % 17 + (1 if place < a else 3) for place in range(a + b)]
    values = [math.exp(0.01 * log) for log in logs]
    test = permutation_test(runs(*values[:a]), runs(*values[a:]), WELCH)
    share = apart(logs, a)
    assert test.p_value == pytest.approx(share, abs=1e-9 if a == 8 else chance(share))
    assert test.least == 1 / math.comb(a + b, a)


def test_random_divisions_include_the_real_one() -> None:
    """No p value is 0: sides that are far apart are matched by one draw of 20,000, the real division itself."""
    low, high = runs(*np.linspace(1.0, 1.1, 12)), runs(*np.linspace(2.0, 2.1, 12))
    assert permutation_test(low, high, WELCH).p_value == pytest.approx(1 / DRAWS)
    low, high = runs(*np.linspace(1.0, 1.1, 30)), runs(*np.linspace(2.0, 2.1, 30))
    assert permutation_test(low, high, PAIRED).p_value == pytest.approx(1 / DRAWS)


def test_random_divisions_are_the_same_in_every_process() -> None:
    rng = np.random.default_rng(3)
    a, b = sides(rng, 1.01, count=20)
    tests = []
    for _ in range(2):
        permutation._divisions.cache_clear()
        tests.append([permutation_test(a, b, effect) for effect in (WELCH, PAIRED)])
    assert tests[0] == tests[1]
    assert permutation_test(a, a, WELCH).p_value == 1.0


def test_pieces_of_a_long_text_need_little_memory() -> None:
    """All 20,000 choices of signs of 1,000 pieces would take 160 MB."""
    differences = np.random.default_rng(3).normal(0.1, 1.0, 1_000)
    tracemalloc.start()
    test = permutation.sign_test(differences)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30e6
    error = differences.mean() / math.sqrt(float((differences**2).mean()) / len(differences))
    share = math.erfc(abs(error) / math.sqrt(2))
    assert test.p_value == pytest.approx(share, abs=chance(share) + 1e-3), "the sum of many signs is normal"
