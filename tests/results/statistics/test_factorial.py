"""Effects of a full factorial experiment: by hand, in blocks, and how often their intervals hold the truth."""

import itertools

import numpy as np
import pytest

from bakeoff.results.statistics.factorial import Combination, Effect, effects

Cells = dict[Combination, dict[int, float]]
BY_HAND: Cells = {(0, 0): {1: 10, 2: 12}, (0, 1): {1: 14, 2: 16}, (1, 0): {1: 20, 2: 24}, (1, 1): {1: 30, 2: 32}}
"""Means 11, 15, 22 and 31, in all 19.75."""


def of(found: list[Effect], factors: tuple[int, ...], values: tuple[int, ...]) -> Effect:
    (effect,) = [each for each in found if (each.factors, each.values) == (factors, values)]
    return effect


def test_effects_equal_arithmetic_by_hand():
    found = effects(BY_HAND)
    assert of(found, (0,), (1,)).size.centre == pytest.approx(26.5 - 19.75)
    assert of(found, (0,), (0,)).size.centre == pytest.approx(13 - 19.75)
    assert of(found, (1,), (1,)).size.centre == pytest.approx(23 - 19.75)
    assert abs(found[-1].size.centre) == pytest.approx(11 - 13 - 16.5 + 19.75)
    squares = [4 * 6.75**2, 4 * 3.25**2, 4 * 1.25**2]
    shares = [of(found, (0,), (0,)).share, of(found, (1,), (0,)).share, found[-1].share]
    assert shares == pytest.approx([square / sum(squares) for square in squares])


def test_blocks_cancel_and_the_error_is_that_of_the_residuals():
    """Residuals of (1, 0) are ∓0.75, of the others ±0.25: s² = 1.5 / 3; half = t(3) s √(4 · (1/4)² / 2)."""
    half = 3.182446 * np.sqrt(1.5 / 3) * np.sqrt(4 * 0.25**2 / 2)
    for shift in (0.0, 100.0):
        shifted = {
            place: {repeat: value + shift * repeat for repeat, value in cell.items()} for place, cell in BY_HAND.items()
        }
        size = of(effects(shifted), (0,), (1,)).size
        assert size.high is not None
        assert size.high - size.centre == pytest.approx(half, rel=1e-5)


def test_a_missing_repeat_leaves_the_variance_within_combinations():
    missing = BY_HAND | {(1, 1): {1: 30.0}}
    size = of(effects(missing), (0,), (1,)).size
    assert size.centre == pytest.approx((22 + 30) / 2 - (11 + 15 + 22 + 30) / 4)
    half = 3.182446 * np.sqrt(12 / 3) * np.sqrt(0.25**2 * (1 / 2 + 1 / 2 + 1 / 2 + 1))
    assert size.high is not None
    assert size.high - size.centre == pytest.approx(half, rel=1e-5)


def test_one_trial_each_has_no_interval_and_equal_ones_no_shares():
    (effect, *_) = effects({(0,): {1: 3.0}, (1,): {1: 5.0}})
    assert (effect.size.centre, effect.size.low, effect.share) == (-1.0, None, 1.0)
    assert effect.size.reason
    assert {each.share for each in effects({(0,): {1: 3.0}, (1,): {1: 3.0}})} == {None}


@pytest.mark.slow
def test_intervals_hold_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(3)
    places = list(itertools.product(range(3), range(2)))
    truth = {(i, j): (0.0, 0.1, 0.3)[i] + 0.2 * j + 0.05 * (i == 2) * j for i, j in places}
    held = total = 0
    for _ in range(300):
        blocks = rng.normal(0, 0.5, 4)
        cells = {place: {r: truth[place] + blocks[r] + rng.normal(0, 0.05) for r in range(4)} for place in places}
        for effect in effects(cells)[:5]:
            own = np.mean([truth[place] for place in places if place[effect.factors[0]] == effect.values[0]])
            assert effect.size.low is not None
            assert effect.size.high is not None
            held += effect.size.low <= own - np.mean(list(truth.values())) <= effect.size.high
            total += 1
    assert held / total == pytest.approx(0.95, abs=0.02)


@pytest.mark.nightly
@pytest.mark.slow
def test_where_nothing_interacts_the_largest_interaction_of_a_pair_is_rarely_said_to():
    rng = np.random.default_rng(5)
    for levels, most in (((2, 2), 0.09), ((3, 3), 0.07)):
        places = list(itertools.product(*map(range, levels)))
        found = [effects({place: {r: rng.normal() for r in range(3)} for place in places})[-1].size for _ in range(300)]
        assert np.mean([not (size.low or 0) <= 0 <= (size.high or 0) for size in found]) <= most
