"""Noise that trials do not show: limits by hand, and levels by simulation with an effect of starts."""

import math

import numpy as np
import pytest

from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.statistics import Comparison, Judgement, compare_runs
from bakeoff.results.statistics.comparison import Criteria
from bakeoff.results.statistics.two_sample import Contrast, Method
from bakeoff.results.statistics.unseen import NoiseSource, Unseen, under, withstands

OUTPUT = CATALOGUE["output_tokens_per_s"]
STARTS = Unseen(NoiseSource.STARTS, 2.0)


def compared(rng: np.random.Generator, *, start_sd: float, assumed: float | None, effect: float = 0.0) -> Comparison:
    """Two servers that stayed up, five trials each with a noise of half a per cent."""
    starts = rng.normal([0.0, effect], start_sd)
    a, b = (dict(enumerate(np.exp(start + rng.normal(0, 0.005, 5)))) for start in starts)
    unseen = Unseen(NoiseSource.STARTS, 2.0, assumed)
    return compare_runs(OUTPUT, "c=8", a, b, interleaved=True, criteria=Criteria(alpha=0.01), unseen=unseen)


def test_a_known_noise_widens_the_interval_and_never_narrows_it():
    """Of two degrees, the 99 % quantile is 9.92; a little noise more would lower it faster than it adds."""
    few = Contrast(0.1, 0.005, 2.0, Method.PAIRED, (3, 3))
    assert under(few, STARTS, 0.002, 0.01) == few
    wide = under(few, STARTS, 0.02, 0.01)
    assert wide.standard_error == pytest.approx(math.sqrt(0.005**2 + 2 * 0.02**2))
    assert wide.degrees == pytest.approx(2 * 33**2)


def test_the_limit_is_where_the_interval_touches_no_change():
    effect = Contrast(math.log(1.5), 0.001, 8.0, Method.WELCH, (5, 5))
    limit = withstands(effect, STARTS, 0.05, lambda whole: whole.p_value <= 0.05)
    assert limit == pytest.approx(math.log(1.5) / (1.95996 * math.sqrt(2)), rel=0.005)  # 14.6 %


@pytest.mark.slow
def test_equal_servers_are_told_apart_no_more_often_than_stated():
    """At a level of 1 % at most 14 of 600 (binomial, 99.9 %); judged without that noise many, with what undoes them."""
    rng = np.random.default_rng(5)
    decided = {Judgement.BETTER, Judgement.WORSE}
    alarms = sum(compared(rng, start_sd=0.03, assumed=0.03).judgement in decided for _ in range(600))
    assert alarms <= 14
    bold = [compared(rng, start_sd=0.03, assumed=None) for _ in range(100)]
    named = [one for one in bold if one.judgement in decided]
    assert len(named) > 30
    assert all(one.evidence is not None and one.evidence.withstands is not None for one in named)


def test_a_tenth_is_found_under_the_noise_that_a_gate_assumes():
    rng = np.random.default_rng(6)
    found = [compared(rng, start_sd=0.01, assumed=0.02, effect=-0.105).judgement for _ in range(200)]
    assert found.count(Judgement.WORSE) >= 190
    assert Judgement.BETTER not in found
