"""Steps and drifts in a series of numbers: each stage against closed forms, and all stages together."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from bakeoff.results.statistics.change_points import _Model, _noise, _without_outliers, change_points, course
from bakeoff.results.statistics.segments import Segment
from tests.results.statistics.test_segments import waves


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


def test_what_a_stretch_could_show_is_what_is_found_in_it() -> None:
    """A step three times as large is found in 19 of 20 series at least, and one a third as large in none."""
    for count in (8, 16, 40):
        shown = [math.log(course(noisy(seed, (50.0, count))).detectable or math.inf) for seed in range(20)]
        typical = float(np.median(shown))
        for factor, fewest, most in ((3.0, 19, 20), (1 / 3, 0, 0)):
            after = 50.0 * math.exp(factor * typical)
            found = sum(bool(change_points(noisy(seed, (50.0, count // 2), (after, count // 2)))) for seed in range(20))
            assert fewest <= found <= most, (count, factor)


def test_a_step_that_is_not_found_shows_as_little_power() -> None:
    doubled = [50.4, 51.0, 49.9, 100.5, 101.4, 99.5]
    assert change_points(doubled) == []
    assert (course(doubled).detectable or 0.0) > 2.0
    assert course(noisy(1, (50.0, 20), (60.0, 8))).detectable is None, "the step was found"


def test_up_and_back_down_do_not_hide_each_other() -> None:
    steps = change_points(noisy(2, (50.0, 40), (53.0, 6), (50.0, 40)))
    assert [step.index for step in steps] == pytest.approx([40, 46], abs=1)
    assert [step.before for step in steps] == pytest.approx([50.0, 53.0], rel=0.01)
    assert [step.after for step in steps] == pytest.approx([53.0, 50.0], rel=0.01)


def test_noise_and_single_runs_that_went_wrong_are_no_steps() -> None:
    for seed in range(10):
        values = noisy(seed, (50.0, 100))
        assert change_points(values) == []
        values[30] *= 1.5
        values[99] *= 0.5
        assert change_points(values) == []


def test_runs_that_resemble_the_night_before_are_no_steps() -> None:
    """If the runs were treated as independent, every second of these series would have a step."""
    for seed in range(10):
        course_shape = course(np.exp(0.01 * waves(seed, 100, 0.7)).tolist())
        assert (len(course_shape.stretches), course_shape.steps) == (1, [])
        assert 0.4 <= course_shape.autocorrelation <= 0.95


def test_a_step_is_seen_in_correlated_noise() -> None:
    values = np.exp(0.01 * waves(4, 100, 0.7) + np.repeat([0, 0.06], 50))
    (step,) = change_points(values.tolist())
    assert step.index == pytest.approx(50, abs=1)
    assert step.ratio == pytest.approx(1.06, abs=0.02)


def test_a_drift_is_found_and_has_no_commit() -> None:
    rng = np.random.default_rng(8)
    logs = rng.normal(0, 0.01, 160) + np.r_[np.zeros(60), np.linspace(0, 0.12, 100)]
    course_shape = course(np.exp(logs).tolist())
    assert course_shape.steps == []
    level, drift = course_shape.stretches
    assert (level.is_drift, level.p_value, level.first, level.start) == (False, None, 0, level.end)
    assert (drift.first, drift.last) == (level.last + 1, 159)
    assert 30 <= drift.first <= 80
    assert (drift.start, drift.end) == pytest.approx((1.0, 1.127), abs=0.01)
    assert drift.p_value is not None
    assert drift.p_value < 1e-6


def test_a_step_within_a_drift_is_a_step() -> None:
    rng = np.random.default_rng(9)
    logs = rng.normal(0, 0.01, 160) + np.linspace(0, 0.08, 160) + np.repeat([0, 0.08], 80)
    course_shape = course(np.exp(logs).tolist())
    (step,) = course_shape.steps
    assert step.index == pytest.approx(80, abs=1)
    assert step.ratio == pytest.approx(1.08, abs=0.015)
    assert [stretch.is_drift for stretch in course_shape.stretches] == [True, True]


def test_levels_and_constant_series() -> None:
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
    """The median absolute deviation of the differences, as in scipy, over √2: neither steps nor a drift contribute."""
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
        ([0] * 5 + [9] * 3 + [0] * 5, [0] * 13),  # three of the seven around each value
        ([0] * 5 + [9] * 4 + [0] * 5, [0] * 5 + [9] * 4 + [0] * 5),  # four
        (
            [5, 5, 0, 0, 0, 0, 0],
            [5, 0, 0, 0, 0, 0, 0],
        ),  # the edge: two of four, then two of five
        ([-9, 4, 0, 4, 4, 4, 4], [0, 4, 4, 4, 4, 4, 4]),  # of the two medians, the nearer one
    ],
)
def test_a_run_that_went_wrong_is_taken_for_its_neighbours_median(before: list[float], after: list[float]) -> None:
    """It is further than three times the noise from the median of itself and three runs on either side."""
    for turn in (1, -1):
        assert (_without_outliers(2.0 * np.array(before)[::turn], 2.0) == 2.0 * np.array(after)[::turn]).all()


def test_the_weakest_step_goes_first_and_its_segments_become_one() -> None:
    """Levels of 0, 0.5, 5 and 5.4 times the noise: only the step in the middle remains, wherever the weak ones are."""
    quiet = np.tile([-1.0, 1.0, 0.5, -0.5], 5)  # 20 runs, mean 0
    quarters = [Segment(first, first + 20) for first in range(0, 80, 20)]
    for levels, left in (
        ([0, 0.5, 5, 5.4], [40]),
        ([0, 5, 5.4, 5.0], [20]),
        ([5, 5.4, 5.0, 0], [60]),
        ([0, 0.3, 0.1, 0.2], []),
        ([0, 5, 0, 5], [20, 40, 60]),
    ):
        logs = np.concatenate([quiet + level for level in levels])
        held = _Model(logs, 0.0, 0.25).significant(quarters)
        assert held == [Segment(*pair) for pair in itertools.pairwise([0, *left, 80])]


def test_a_slope_that_does_not_hold_becomes_a_level() -> None:
    quiet = np.tile([-1.0, 1.0, 0.5, -0.5], 10)
    line = [Segment(0, 40, is_line=True)]
    assert _Model(quiet + 0.04 * np.arange(40), 0.0, 0.25).significant(line) == [Segment(0, 40)]
    assert _Model(quiet + 0.10 * np.arange(40), 0.0, 0.25).significant(line) == line
    parts = [Segment(0, 20), Segment(20, 40, is_line=True)]
    assert _Model(quiet, 0.0, 0.25).significant(parts) == [Segment(0, 40)], "then it joins its neighbour"
    bent = quiet + np.r_[np.zeros(20), 0.3 * np.arange(20)]
    assert _Model(bent, 0.0, 0.25).significant(parts) == parts, "no jump, but where the line begins"


def shifted(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """90 runs and 12 that take 3.5 % longer, at 1 % of noise."""
    rng = np.random.default_rng(seed)
    return rng.normal(0, 0.01, 90), rng.normal(0.035, 0.01, 12)


def test_the_p_value_is_students() -> None:
    """Of both segments with a common variance, as in scipy."""
    left, right = shifted(1)
    step = _Model(np.r_[left, right], 0.0, 0.0).step(Segment(0, 90), Segment(90, 102))
    assert step.index == 90
    assert (step.before, step.after) == (pytest.approx(math.exp(left.mean())), pytest.approx(math.exp(right.mean())))
    assert step.p_value == pytest.approx(stats.ttest_ind(left, right).pvalue, rel=1e-9, abs=0)
    assert [seen.index for seen in change_points(np.exp(np.r_[left, right]).tolist())] == [90]


def test_segments_that_happen_to_be_quiet_have_the_noise_of_the_series() -> None:
    left, right = shifted(24)
    step = _Model(np.r_[left, right], 0.0, 0.02**2).step(Segment(0, 90), Segment(90, 102))
    t = (right.mean() - left.mean()) / (0.02 * math.sqrt(1 / 90 + 1 / 12))
    assert step.p_value == pytest.approx(2 * stats.t.sf(t, 100), rel=1e-9, abs=0)


def test_the_noise_of_the_series_is_that_of_its_independent_part() -> None:
    """Differences of neighbours have variance 2 v / (1 + rho), where v is the variance that each run adds."""
    logs = 0.01 * waves(2, 100, 0.6) + np.repeat([0, 0.08], 50)
    course_shape = course(np.exp(logs).tolist())
    (step,) = course_shape.steps
    halves = (Segment(0, step.index), Segment(step.index, 100))
    clean, variance = _without_outliers(logs, _noise(logs)), _noise(logs) ** 2 * (1 + course_shape.autocorrelation)
    of_halves, of_series = (
        _Model(clean, course_shape.autocorrelation, least).step(*halves) for least in (0.0, variance)
    )
    assert step.p_value == pytest.approx(of_series.p_value, rel=1e-6, abs=0)
    assert of_series.p_value > 10 * of_halves.p_value, "the halves happen to be quiet"


def test_a_step_beside_a_slope_is_measured_between_two_runs() -> None:
    """A line of 0.1 a run, then a level: halfway between runs 19 and 20 the line is at 1.95, and so is a forecast."""
    logs = np.r_[0.1 * np.arange(20), np.full(20, 5.0)] + 1e-9 * waves(1, 40, 0.0)
    model = _Model(logs, 0.0, 1e-6)
    line = Segment(0, 20, is_line=True)
    step = model.step(line, Segment(20, 40))
    assert (step.before, step.after) == (pytest.approx(math.exp(1.95)), pytest.approx(math.exp(5)))
    assert model.newest(line, 1.9) == (pytest.approx(1.9), pytest.approx(1.0, abs=1e-3))


def test_the_p_value_of_a_drift_is_that_of_its_regression() -> None:
    logs = np.random.default_rng(1).normal(0, 0.01, 30) + 0.001 * np.arange(30)
    line = stats.linregress(np.arange(30), logs)
    drift = _Model(logs, 0.0, 0.0).stretch(Segment(0, 30, is_line=True))
    assert drift.p_value == pytest.approx(line.pvalue, rel=1e-9, abs=0)
    assert (drift.start, drift.end) == pytest.approx(
        (math.exp(line.intercept), math.exp(line.intercept + 29 * line.slope))
    )


def test_how_far_the_newest_run_is_from_the_others() -> None:
    """A prediction from the mean of the earlier runs: the newest run's noise plus the error of that mean (t test)."""
    logs = np.random.default_rng(6).normal(0, 0.01, 61)
    expected, p_value = _Model(logs, 0.0, 0.0).newest(Segment(0, 61), 0.04)
    assert expected == pytest.approx(logs[:60].mean())
    t = (0.04 - expected) / (logs[:60].std(ddof=1) * math.sqrt(1 + 1 / 60))
    assert p_value == pytest.approx(2 * stats.t.sf(t, 60), rel=1e-9)
    assert _Model(logs, 0.0, 0.02**2).newest(Segment(0, 61), 0.04)[1] > 0.04, "twice the noise"
    assert _Model(logs, 0.5, 0.75 * 0.02**2).newest(Segment(0, 61), 0.04)[1] > 0.04, "of which three quarters are new"
    assert course(np.exp(logs).tolist()).newest_p > 0.05
    stepped = course(np.exp(np.r_[logs, logs[:8] + 0.3]).tolist())
    assert stepped.newest_expected == pytest.approx(math.exp(0.3), rel=0.01), "its own level, not the one before"
    assert course(np.exp(np.r_[logs, 0.1]).tolist()).newest_p < 1e-6
