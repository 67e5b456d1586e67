"""Searches of engines whose threshold is known; ``tests/acceptance/statistics/search.py`` counts more of them."""

import math
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from bakeoff.results.statistics.bisection import _FAR, Bisection, levels_between
from tests.acceptance.statistics.search import LEVELS, Trial, disturbed, gentle, searched, steep, wall
from tests.selection import sampled

WHOLE = [float(n) for n in range(1, 65)]


def test_levels_are_even_in_their_logs_and_have_few_digits():
    levels = levels_between(1.0, 64.0, 0.05)
    assert (levels[0], levels[-1]) == (1.0, 64.0)
    assert max(math.log(b / a) for a, b in pairwise(levels)) < 0.02
    assert {f"{level:g}" for level in levels} == {f"{level:.3g}" for level in levels}
    assert levels_between(2.0, 2.01, 0.05) == [2.0, 2.01]


CURVES = [(gentle, 0.02), (steep, 0.02), (steep, 0.05), (wall, 0.02)]


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "cv"), sampled(CURVES, CURVES[3:]))
def test_the_interval_holds_the_threshold(engine, cv: float):
    rng = np.random.default_rng(1)
    thresholds = np.exp(rng.uniform(math.log(1.2), math.log(53), 20))
    searches = [searched(partial(engine, cv), true, rng) for true in thresholds]
    assert sum(search.holds for search in searches) >= 18
    assert np.median([search.error for search in searches]) <= 0.05
    assert all(search.trials <= 20 for search in searches)


@pytest.mark.slow
def test_a_run_in_twenty_that_is_disturbed_does_not_mislead():
    rng = np.random.default_rng(2)
    searches = [searched(partial(disturbed, 0.02), 12.0, rng) for _ in range(16)]
    assert sum(search.holds for search in searches) >= 15


def run(search: Bisection, trial: Trial, most: int = 20) -> list[float]:
    """The levels that were tried."""
    rng, tried = np.random.default_rng(3), []
    while len(tried) < most and not search.is_settled:
        level = search.next_level()
        assert level is not None
        met, margin = trial(rng, level)
        search.observe(level, met=met, margin=margin)
        tried.append(level)
    return tried


def test_it_doubles_from_the_low_end_until_the_engine_fails():
    tried = run(Bisection(LEVELS), steep(0.02, 20.0))
    assert tried[:6] == pytest.approx([1, 2, 4, 8, 16, 32], rel=0.03)
    assert all(10 < level < 40 for level in tried[6:])


def test_a_search_goes_up_or_down_from_its_start():
    assert run(Bisection(LEVELS, start=16.0), wall(0.02, 50.0))[:3] == pytest.approx([16, 32, 64], rel=0.03)
    assert run(Bisection(LEVELS, start=16.0), wall(0.02, 3.0))[:4] == pytest.approx([16, 8, 4, 2], rel=0.03)


def test_a_guess_is_tried_first_and_a_wrong_one_given_up():
    near = run(Bisection(LEVELS, guess=12.0), steep(0.02, 12.3))
    assert near[0] == pytest.approx(12.0, rel=0.03)
    assert all(8 < level < 18 for level in near)
    wrong = Bisection(LEVELS, guess=40.0)
    run(wrong, steep(0.02, 5.0))
    assert (wrong.bracket.low or 0) <= 5.0 <= (wrong.bracket.high or 0)


def test_rates_are_not_repeated_but_whole_numbers_are_if_needed():
    rates = run(Bisection(LEVELS), gentle(0.05, 12.0))
    assert len(set(rates)) == len(rates) == 20
    counts = run(Bisection(WHOLE), wall(0.05, 3.1))
    assert set(counts) <= {1.0, 2.0, 3.0, 4.0, 5.0}
    assert len(counts) > len(set(counts))


def test_a_search_of_whole_numbers_ends_at_one_of_them():
    """c = 6 meets the objective and c = 7 does not: no resolution is finer than that."""
    search = Bisection(WHOLE)
    tried = run(search, steep(0.02, 6.5))
    assert search.is_settled
    assert len(tried) < 15
    assert (search.bracket.low, search.bracket.level, search.bracket.high) == (6.0, 6.0, 6.0)


def test_the_ends_of_the_range_are_told_apart_from_answers():
    above = Bisection(LEVELS)
    run(above, steep(0.05, 300.0))
    assert (above.bracket.low, above.bracket.open_above) == (64.0, True)
    below = Bisection(LEVELS)
    assert len(run(below, steep(0.05, 0.2))) <= 5
    assert (below.bracket.low, below.bracket.level, below.bracket.high) == (None, None, None)


def test_levels_that_cannot_be_judged_are_left_out():
    search = Bisection(LEVELS)
    search.drop_up_to(8.0)
    tried = run(search, steep(0.05, 20.0))
    assert tried[0] == min(search.levels) > 8.0
    tried_low = min(tried)
    search.drop_up_to(64.0)
    assert 64.0 not in search.levels
    assert min(search.levels) >= tried_low
    assert search.bracket.level is not None
    unjudged = Bisection(LEVELS)
    unjudged.drop_up_to(64.0)
    assert unjudged.next_level() is None


def test_one_answer_by_hand():
    """Two levels and a wall: yes at 1, no at 64. Nothing else is known, so the median is near their middle, 8."""
    search = Bisection(LEVELS)
    search.observe(1.0, met=True)
    search.observe(64.0, met=False)
    assert search.bracket.level == pytest.approx(8.0, rel=0.1)
    assert not search.is_settled
    before = search.bracket
    search.observe(8.0, met=True, margin=0.1)
    assert (search.bracket.low or 0) > (before.low or 0)
    assert 8.0 < (search.bracket.level or 0) < 20.0, "a margin of a tenth says that it is not far"
    far = Bisection(LEVELS)
    for level, met in ((1.0, True), (64.0, False)):
        far.observe(level, met=met)
    far.observe(8.0, met=True, margin=2.0)
    assert (far.bracket.level or 0) > (search.bracket.level or 0)


def test_the_probabilities_of_all_answers_add_up_to_one():
    """With a margin: of -_FAR and less, of _FAR and more, and the density between; without a margin: of yes and no."""
    search, ahead = Bisection(LEVELS), np.array([-0.5, 0.0, 0.1, 1.0])[:, None, None]
    edges = np.linspace(-_FAR, _FAR, 4001)
    middles, width = (edges[1:] + edges[:-1]) / 2, edges[1] - edges[0]
    between = sum(search._likelihood(ahead, margin > 0, float(margin)) for margin in middles) * width
    beyond = search._likelihood(ahead, False, -_FAR) + search._likelihood(ahead, True, _FAR)
    assert np.allclose(between + beyond, 1, atol=2e-3)
    assert np.allclose(search._likelihood(ahead, True, None) + search._likelihood(ahead, False, None), 1)


def test_an_unlucky_first_answer_does_not_end_the_doubling():
    """No at 1, then yes just above: nothing higher is known, so the search doubles instead of taking the middle."""
    search = Bisection(LEVELS)
    search.observe(1.0, met=False)
    assert search.next_level() == pytest.approx(1.0, rel=0.05)
    search.observe(1.01, met=True)
    assert search.next_level() == pytest.approx(2.0, rel=0.05)


def test_levels_above_what_can_be_judged_are_left_out():
    search = Bisection(LEVELS)
    search.observe(8.0, met=True, margin=1.0)
    search.drop_from(11.0)
    assert max(search.levels) < 11.0
    tried = run(search, steep(0.05, 20.0))
    assert max(tried) < 11.0
    assert (search.bracket.low, search.bracket.open_above) == (max(search.levels), True)
