"""Interim looks at the data spend alpha and no more."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from bakeoff.results.statistics.sequential import analysis_schedule, nominal_levels


def test_looks_spend_alpha_and_no_more() -> None:
    """A single look spends all; a Brownian motion crosses the levels with a probability of alpha in total."""
    assert nominal_levels(0.01, [8]) == pytest.approx([0.01])
    looks = analysis_schedule(8)
    assert looks == [4, 6, 8]
    assert analysis_schedule(3) == [3]
    assert analysis_schedule(5) == [3, 5]
    levels = nominal_levels(0.05, looks)
    assert levels[0] == pytest.approx(0.05 / 8)
    steps = np.random.default_rng(6).normal(0, 1, (200_000, 8)).cumsum(axis=1)
    crossed = np.zeros(len(steps), bool)
    for look, level in zip(looks, levels, strict=True):
        crossed |= np.abs(steps[:, look - 1]) / math.sqrt(look) > -NormalDist().inv_cdf(level / 2)
    assert crossed.mean() == pytest.approx(0.05, abs=0.002)
