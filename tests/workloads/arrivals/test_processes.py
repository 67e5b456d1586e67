"""Arrival processes, on whose schedule an open loop depends."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from bakeoff.workloads.arrivals import (
    ARRIVALS,
    Arrival,
    Constant,
    Diurnal,
    Drift,
    Gamma,
    MultiTenant,
    OnOff,
    Poisson,
    Ramp,
    Stretched,
    Weibull,
    arrival,
)
from bakeoff.workloads.dispersion import ArrivalStatistics
from bakeoff.workloads.distributions import Exponential, Fixed
from bakeoff.workloads.errors import BadOption, UnknownWorkload

# For exponential gaps the sample's coefficient of variation has a standard error of 1/√n, and the index of dispersion
# of w windows one of √(2/w): these sizes put the wanted bounds (0.02 and 0.2) at four standard errors.
GAPS = 40_000
RATE_PER_S = 5.0
SEEDS = ("1", "2", "7")
FIRST_THREE = {
    "constant": (0.0, 0.5, 1.0),
    "poisson": (0.483317675, 1.234993806, 1.672363827),
    "gamma": (1.301729952, 1.303755045, 1.361163389),
    "weibull": (0.028604041, 0.341079951, 3.646467635),
    "onoff": (3.550440012, 3.568300289, 3.676197475),
    "ramp": (3.291165609, 10.083760491, 17.597463747),
    "diurnal": (0.554005595, 1.107699421, 1.390021666),
    "drift": (0.562070985, 0.611461986, 1.169385030),
    "multi-tenant": (0.288313893, 0.676814205, 0.999994641),
}
"""Of seed 7 at 2 per second: a change to any draw would silently change every experiment."""


def first(process: Arrival, count: int, seed: str = "7") -> list[float]:
    return list(itertools.islice(process.offsets_s(seed), count))


def statistics_of(process: Arrival, count: int, seed: str) -> ArrivalStatistics:
    statistics = ArrivalStatistics()
    statistics.add_all(itertools.islice(process.offsets_s(seed), count))
    return statistics


@pytest.mark.parametrize("seed", SEEDS)
def test_poisson_has_a_coefficient_of_variation_and_a_dispersion_of_one(seed: str) -> None:
    """Gaps that are correct individually but clustered would pass the first test and fail the second."""
    statistics = statistics_of(Poisson(RATE_PER_S), GAPS, seed)
    assert statistics.gap_cv == pytest.approx(1.0, abs=0.02)
    assert statistics.rate_per_s == pytest.approx(RATE_PER_S, rel=0.02)
    assert statistics.dispersion(10) == pytest.approx(1.0, abs=0.2)


def test_a_faster_poisson_is_the_same_one_compressed() -> None:
    slow, fast = first(Poisson(1.0), 50), first(Poisson(4.0), 50)
    assert fast == pytest.approx([offset / 4 for offset in slow])


def test_constant_is_exact_however_long_it_runs() -> None:
    offsets = list(itertools.islice(Constant(3.0).offsets_s("any"), 100_001))
    assert offsets[:3] == [0.0, 1 / 3, 2 / 3]
    assert offsets[3_000] == 1000.0
    assert offsets == [i / 3 for i in range(100_001)], "no rounding may add up"
    assert offsets == list(itertools.islice(Constant(3.0).offsets_s("other"), 100_001))


def test_the_first_offsets_of_each_process_never_change() -> None:
    assert set(FIRST_THREE) == set(ARRIVALS)
    for name, offsets in FIRST_THREE.items():
        assert first(arrival(name, 2.0), 3) == pytest.approx(offsets, rel=0, abs=1e-9), name


@pytest.mark.parametrize("name", ARRIVALS)
def test_offsets_are_fixed_by_the_seed_finite_and_never_fall(name: str) -> None:
    offsets = np.array(first(arrival(name, 3.0), 5_000))
    assert np.isfinite(offsets).all()
    assert offsets[0] >= 0
    assert (np.diff(offsets) >= 0).all()
    assert offsets.tolist() == first(arrival(name, 3.0), 5_000)
    other = np.array(first(arrival(name, 3.0), 5_000, seed="8"))
    assert (other == offsets).all() if name == "constant" else (other[:100] != offsets[:100]).all()


@pytest.mark.parametrize(
    ("name", "options", "made"),
    [
        ("constant", {}, Constant(2.0)),
        ("poisson", {}, Poisson(2.0)),
        ("gamma", {"burstiness": 0.5}, Gamma(2.0, 0.5)),
        ("weibull", {"burstiness": 3}, Weibull(2.0, 3.0)),
        (
            "onoff",
            {"on_s": {"family": "fixed", "value": 3}, "off_s": {"family": "exponential", "mean": 9}, "spread": 0},
            OnOff(2.0, Fixed(3.0), Exponential(9.0), spread=0.0),
        ),
        ("ramp", {"start": 0.5, "end": 2, "over_s": 30}, Ramp(2.0, 0.5, 2.0, 30.0)),
        ("diurnal", {"profile": [1, 2, 3], "period_s": 60}, Diurnal(2.0, 60.0, profile=(1.0, 2.0, 3.0))),
        ("drift", {"sigma": 0.5, "memory_s": 10}, Drift(2.0, 0.5, 10.0)),
        ("multi-tenant", {"tenants": 3, "cv": {"family": "fixed", "value": 2}}, MultiTenant(2.0, 3, cv=Fixed(2.0))),
    ],
)
def test_processes_are_made_by_name_with_options(name: str, options: dict[str, Any], made: Arrival) -> None:
    assert arrival(name, 2.0, options) == made


def test_an_unknown_process_names_the_nearest() -> None:
    with pytest.raises(UnknownWorkload, match=r"^unknown arrival process 'poison'; did you mean 'poisson'\? known: "):
        arrival("poison", 1.0)


@pytest.mark.parametrize("name", ARRIVALS)
@pytest.mark.parametrize("rate_per_s", [0.0, -1.0, math.inf, math.nan])
def test_a_rate_that_is_no_positive_number_is_refused(name: str, rate_per_s: float) -> None:
    with pytest.raises(BadOption, match="rate_per_s must be above 0"):
        arrival(name, rate_per_s)


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("poisson", {"burstiness": 1}, "has no option 'burstiness'; it has none"),
        ("gamma", {"burstyness": 1}, r"has no option 'burstyness'; did you mean 'burstiness'\? known: burstiness"),
        ("gamma", {"rate_per_s": 1}, "has no option 'rate_per_s'; known: burstiness"),
        ("gamma", {"burstiness": 0}, "burstiness must be at least 0.0001, not 0"),
        ("weibull", {"burstiness": math.nan}, "burstiness must be at least 0.0001, not nan"),
        ("gamma", {"burstiness": "1"}, "Expected `float`, got `str`"),
        ("onoff", {"on_s": {"family": "fixed", "valu": 3}}, r"on_s has no option 'valu'; did you mean 'value'"),
        ("onoff", {"on_s": 3}, "Expected `object`, got `int`"),
        ("onoff", {"on_s": {"family": "fixed", "value": 0}}, "on_s must not be negative, and its mean must be above 0"),
        ("onoff", {"off_s": {"family": "uniform", "low": -1, "high": 9}}, "off_s must not be negative"),
        (
            "onoff",
            {"on_s": {"family": "fixed", "value": 1e-9}, "off_s": {"family": "fixed", "value": 1e-9}},
            "on_s and off_s together must have a mean of at least 0.1 s",
        ),
        ("onoff", {"spread": -1}, "spread must be from 0 to 3, not -1"),
        ("ramp", {"end": 0}, "end must be above 0, not 0"),
        ("ramp", {"start": -1}, "start must be at least 0"),
        ("ramp", {"over_s": 0}, "over_s must be above 0"),
        ("diurnal", {"swing": 0.5}, "swing must be at least 1, not 0.5"),
        ("diurnal", {"profile": [0, 0]}, "profile needs rates of at least 0, one of them above 0"),
        ("diurnal", {"profile": [1, -1, 3]}, "profile needs rates of at least 0"),
        ("diurnal", {"profile": [1, 2], "swing": 2}, "give either profile or swing, not both"),
        ("diurnal", {"period_s": 0.5}, "period_s must be at least 1, not 0.5"),
        ("diurnal", {"phase_s": math.inf}, "phase_s must be finite"),
        ("drift", {"sigma": 4}, "sigma must be from 0 to 3, not 4"),
        ("drift", {"memory_s": 0.5}, "memory_s must be at least 1, not 0.5"),
        ("multi-tenant", {"tenants": 0}, "tenants must be from 1 to 10,000, not 0"),
        ("multi-tenant", {"skew": -1}, "skew must be from 0 to 10"),
        ("multi-tenant", {"swing": 0}, "swing must be at least 1"),
        ("multi-tenant", {"cv": {"family": "fixed", "value": 101}}, "cv must be from 0 to 100"),
    ],
)
def test_an_option_that_cannot_be_is_refused_in_one_line(name: str, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadOption, match=rf"^arrival process '{name}'.*{complaint}[^\n]*$"):
        arrival(name, 2.0, options)


def test_stretched_plays_any_process_slower_or_faster() -> None:
    day = Diurnal(2.0, period_s=60.0)
    assert first(Stretched(day, 0.5), 100) == [offset / 2 for offset in first(day, 100)]
    with pytest.raises(ValueError, match="factor must be above 0, not 0"):
        Stretched(day, 0.0)
