"""The load at which a given share of requests is late, pooled over trials."""

import math
import random

import pytest

from bakeoff.results.statistics.exceedance import Counted, threshold

RANGE = {"low": math.log(1.0), "high": math.log(64.0), "step": 0.01}


def trials(truth: float, levels: list[float], rng: random.Random, *, clusters: int = 1) -> list[Counted]:
    """Trials of 200 requests, late in clusters, with a share of one tenth at ``truth``."""
    counted = []
    for level in levels:
        share = 1 / (1 + 9 * (truth / level) ** 9)
        late = sum(clusters * (rng.random() < share) for _ in range(200 // clusters))
        counted.append(Counted(level, late, 200 // clusters * clusters, clustered=clusters))
    return counted


@pytest.mark.parametrize("clusters", [1, 20])
def test_the_interval_holds_the_truth_and_widens_with_dependence(clusters: int):
    rng = random.Random(1)
    levels = [10 * 1.08 ** (number % 5 - 2) for number in range(15)]
    found = [threshold(trials(10.0, levels, rng, clusters=clusters), 0.1, **RANGE) for _ in range(20)]
    held = sum(entry.low <= math.log(10.0) <= entry.high for entry in found)
    assert held >= 17
    middle = sum(entry.middle for entry in found) / len(found)
    assert math.exp(middle) == pytest.approx(10.0, rel=0.04 if clusters == 1 else 0.07)
    width = sum(entry.high - entry.low for entry in found) / len(found)
    assert (0.02 < width < 0.15) if clusters == 1 else (0.15 < width < 0.6)


def test_a_load_that_is_never_late_below_one_that_always_is():
    """The threshold lies between them."""
    found = threshold([Counted(8.0, 0, 100), Counted(8.8, 100, 100), Counted(4.0, 0, 100)], 0.1, **RANGE)
    assert math.log(8.0) < found.middle < math.log(8.8)


def test_five_trials_have_the_interval_of_a_generalised_linear_model():
    """A binomial GLM with a dispersion of 4 has 9.89 [8.84, 10.59]; queues have one of 8 or more."""
    counts = [(3.0, 0, 97), (6.0, 0, 119), (9.0, 6, 149), (10.0, 19, 155), (12.0, 69, 188)]
    found = threshold([Counted(*each) for each in counts], 0.1, **RANGE)
    assert math.exp(found.middle) == pytest.approx(9.89, rel=0.02)
    assert 7.5 < math.exp(found.low) < 9.1
    assert 10.4 < math.exp(found.high) < 11.2


def test_trials_far_from_the_threshold_bound_it_and_say_nothing_about_the_slope():
    """An engine that rejects what is too much, three quarters at four times its capacity: no slope fits that."""
    near = [Counted(level, late, 200) for level, late in ((9.5, 14), (10.0, 20), (10.5, 28), (9.0, 9))]
    far = [Counted(40.0, 150, 200), Counted(2.0, 1, 200)]
    alone, together = (threshold(some, 0.1, **RANGE) for some in (near, near + far))
    assert (together.middle, together.near) == (pytest.approx(alone.middle, abs=0.08), 4)


def test_trials_that_contradict_each_other_have_an_answer():
    """Leaving out distant trials moves the threshold, and each set of near ones pointed to the other."""
    late_at = {6.23: (118, 184), 5.77: (0, 199), 9.14: (11, 88), 3.53: (63, 300), 10.66: (26, 135), 3.59: (0, 146)}
    counted = [Counted(level, late, total) for level, (late, total) in late_at.items()]
    found = threshold(counted, 0.1, low=math.log(3), high=math.log(16), step=0.01)
    assert found.low <= found.middle <= found.high
