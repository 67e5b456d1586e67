"""Steps in a series of numbers: the four stages against closed forms, and what they say together."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from results.statistics.change_points import _divided, _merged, _noise, _without_outliers, change_points


def noisy(seed: int, *levels: tuple[float, int]) -> list[float]:
    rng = np.random.default_rng(seed)
    return [level * float(np.exp(rng.normal(0, 0.01))) for level, count in levels for _ in range(count)]


def test_a_step_is_found_where_it_is() -> None:
    values = noisy(1, (50.0, 40), (51.5, 20))
    (step,) = change_points(values)
    assert step.index == pytest.approx(40, abs=2)
    assert (step.before, step.after) == pytest.approx((50.0, 51.5), rel=0.005)
    assert step.ratio == pytest.approx(1.03, abs=0.008)
    assert step.p_value < 1e-6
    assert change_points(values) == [step], "the same answer every time"


def test_up_and_back_down_do_not_hide_each_other() -> None:
    steps = change_points(noisy(2, (50.0, 40), (53.0, 6), (50.0, 40)))
    assert [step.index for step in steps] == pytest.approx([40, 46], abs=1)
    assert [step.before for step in steps] == pytest.approx([50.0, 53.0], rel=0.01)
    assert [step.after for step in steps] == pytest.approx([53.0, 50.0], rel=0.01)


def test_noise_and_single_runs_that_went_wrong_are_no_steps() -> None:
    for seed in range(30):
        values = noisy(seed, (50.0, 100))
        assert change_points(values) == []
        values[30] *= 1.5
        values[99] *= 0.5
        assert change_points(values) == []


def test_a_drift_of_levels_and_constant_series() -> None:
    assert change_points([3.0] * 20) == []
    (step,) = change_points([3.0] * 10 + [4.0] * 10)
    assert (step.index, step.before, step.after) == (10, pytest.approx(3.0), pytest.approx(4.0))
    assert change_points([1.0, 1.0, 5.0, 5.0, 5.0]) == [], "two runs are no level"
    assert change_points([]) == []


def test_the_unit_does_not_matter() -> None:
    values = noisy(5, (1.0, 30), (1.05, 30))
    seen, scaled = change_points(values), change_points([1e6 * value for value in values])
    assert [step.index for step in seen] == [step.index for step in scaled]
    assert scaled[0].ratio == pytest.approx(seen[0].ratio)


def test_short_series() -> None:
    (step,) = change_points([3.0] * 4 + [4.0] * 4)
    assert (step.index, step.ratio) == (4, pytest.approx(4 / 3))
    (step,) = change_points([3.0] * 10 + [4.0] * 3)
    assert step.index == 10
    assert change_points([3.0]) == change_points([3.0, 4.0]) == change_points([3.0] * 11 + [4.0] * 2) == []


def test_the_noise_is_that_of_neighbours_whatever_the_levels_do() -> None:
    """Median absolute deviation of the differences, as scipy has it, over √2: neither steps nor a drift are in it."""
    rng = np.random.default_rng(11)
    noise = rng.normal(0, 0.01, 400)
    for logs in (noise, noise + np.arange(400) * 0.05, noise + np.repeat([0.0, 3.0, 1.0, 5.0], 100)):
        spread = stats.median_abs_deviation(np.diff(logs), scale="normal") / math.sqrt(2)
        assert _noise(logs) == pytest.approx(spread, rel=1e-5)
        assert spread == pytest.approx(0.01, rel=0.1)
    assert _noise(np.zeros(9)) == 1e-6, "what is printed with six digits is not known better"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([0, 0, 0, 3.0, 0, 0, 0], [0, 0, 0, 3.0, 0, 0, 0]),
        ([0, 0, 0, -3.1, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0]),
        ([0] * 5 + [9] * 3 + [0] * 5, [0] * 13),  # three of the seven around each
        ([0] * 5 + [9] * 4 + [0] * 5, [0] * 5 + [9] * 4 + [0] * 5),  # four
        (
            [5, 5, 0, 0, 0, 0, 0],
            [5, 0, 0, 0, 0, 0, 0],
        ),  # the edge: two of four, then two of five
    ],
)
def test_a_run_that_went_wrong_is_taken_for_its_neighbours_median(before: list[float], after: list[float]) -> None:
    """Further than three times the noise from the median of itself and three runs to either side."""
    for turn in (1, -1):
        assert (_without_outliers(2.0 * np.array(before)[::turn], 2.0) == 2.0 * np.array(after)[::turn]).all()


def divisions(count: int) -> Iterator[list[int]]:
    """All edges of segments of three or more."""
    inner = (itertools.combinations(range(3, count - 2), many) for many in range(count // 3))
    for whole in ([0, *edges, count] for edges in itertools.chain.from_iterable(inner)):
        if all(last - first >= 3 for first, last in itertools.pairwise(whole)):
            yield whole


def cost(values: np.ndarray, edges: list[int]) -> float:
    """Squared distances to the means of the segments, and 14 for each of them."""
    segments = [values[first:last] for first, last in itertools.pairwise(edges)]
    return sum(float(((part - part.mean()) ** 2).sum()) + 14 for part in segments)


@given(st.lists(st.tuples(st.integers(3, 5), st.floats(-8, 8)), min_size=1, max_size=3), st.integers(0, 99))
def test_no_division_is_cheaper(levels: list[tuple[int, float]], seed: int) -> None:
    values = np.concatenate([np.full(runs, level) for runs, level in levels])
    values += np.random.default_rng(seed).normal(0, 1, len(values))
    found = _divided(values)
    assert found in list(divisions(len(values)))
    assert cost(values, found) == pytest.approx(min(cost(values, edges) for edges in divisions(len(values))))


def test_a_step_must_hold_before_students_t() -> None:
    """The search alone would end the last four at 2.4 times the noise as a level of their own: too little for t."""
    rng = np.random.default_rng(6)
    logs = np.r_[rng.normal(0, 1, 30), rng.normal(2.4, 0.6, 4)] * 0.01
    noise = _noise(logs)
    assert _divided(_without_outliers(logs, noise) / noise) == [0, 30, 34]
    assert stats.ttest_ind(logs[:30], logs[30:]).pvalue > 3e-5
    assert change_points(np.exp(logs).tolist()) == []
    assert [step.index for step in change_points(np.exp(np.r_[logs - 1, logs]).tolist())] == [34]
    assert [step.index for step in change_points(np.exp(np.r_[logs[::-1], logs - 1]).tolist())] == [34]


def test_the_weakest_step_goes_first_and_its_segments_become_one() -> None:
    """Levels 0, 0.5, 5 and 5.4 times the noise: only the step in the middle is left, wherever the weak ones are."""
    quiet = np.tile([-1.0, 1.0, 0.5, -0.5], 5)  # 20 runs, mean 0
    for levels, left in (
        ([0, 0.5, 5, 5.4], [40]),
        ([0, 5, 5.4, 5.0], [20]),
        ([5, 5.4, 5.0, 0], [60]),
        ([0, 0.3, 0.1, 0.2], []),
        ([0, 5, 0, 5], [20, 40, 60]),
    ):
        logs = np.concatenate([quiet + level for level in levels])
        assert _merged(logs, [0, 20, 40, 60, 80], 0.5) == [0, *left, 80]


def shifted(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """24 runs and 12 that take 3.5 % longer, at 1 % of noise."""
    rng = np.random.default_rng(seed)
    return rng.normal(0, 0.01, 24), rng.normal(0.035, 0.01, 12)


def test_the_p_value_is_students() -> None:
    """Of both segments with a common variance, as scipy has it."""
    left, right = shifted(0)
    (step,) = change_points(np.exp(np.r_[left, right]).tolist())
    assert step.index == 24
    assert (step.before, step.after) == (pytest.approx(math.exp(left.mean())), pytest.approx(math.exp(right.mean())))
    assert step.p_value == pytest.approx(stats.ttest_ind(left, right).pvalue, rel=1e-9, abs=0)


def test_segments_that_happen_to_be_quiet_have_the_noise_of_the_series() -> None:
    left, right = shifted(24)
    noise = _noise(np.r_[left, right])
    assert noise > max(left.std(ddof=1), right.std(ddof=1))
    (step,) = change_points(np.exp(np.r_[left, right]).tolist())
    t = (right.mean() - left.mean()) / (noise * math.sqrt(1 / 24 + 1 / 12))
    assert step.p_value == pytest.approx(2 * stats.t.sf(t, 34), rel=1e-9, abs=0)
