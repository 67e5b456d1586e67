"""The fit recovers the processes from which arrivals were drawn."""

import math
from typing import Any

import numpy as np
import pytest

from bakeoff.workloads.fitting.arrivals import ArrivalFit, fit_arrivals
from bakeoff.workloads.fitting.estimates import gamma_burstiness, moment_burstiness, weibull_burstiness
from tests.workloads.fitting.synthetic import SEED, seen, starts_of

BUDGET = 80_000
UNIFORM = {"family": "uniform", "low": 2.0, "high": 6.0}
SILENCES = {"family": "uniform", "low": 5.0, "high": 15.0}


def fitted(process: str, rate: float, options: dict[str, Any], count: int = 8_000) -> ArrivalFit:
    return fit_arrivals(seen(starts_of(process, rate, options, count)), SEED, budget=BUDGET)


@pytest.mark.parametrize(
    ("process", "rate", "options", "within"),
    [
        ("poisson", 4.0, {}, {}),
        ("gamma", 2.0, {"burstiness": 0.3}, {"burstiness": 0.1}),
        ("gamma", 2.0, {"burstiness": 6.0}, {"burstiness": 0.1}),
        ("weibull", 2.0, {"burstiness": 0.15}, {"burstiness": 0.15}),
        ("drift", 6.0, {"sigma": 0.4, "memory_s": 60.0}, {"sigma": 0.25, "memory_s": 0.6, "burstiness": 0.15}),
        ("onoff", 8.0, {"on_s": UNIFORM, "off_s": SILENCES, "spread": 0.3, "burstiness": 0.8}, {"burstiness": 0.15}),
    ],
)
def test_the_process_and_its_parameters(process: str, rate: float, options: dict[str, Any], within: dict[str, float]):
    arrival_fit = fitted(process, rate, options)
    assert arrival_fit.chosen.process == process, arrival_fit.reason
    assert arrival_fit.chosen.rate_per_s == pytest.approx(rate, rel=0.2)
    for name, tolerance in within.items():
        wanted = options.get(name, 0.9)  # drift's own burstiness
        assert arrival_fit.chosen.options[name] == pytest.approx(wanted, rel=tolerance), name
    assert arrival_fit.candidates[0].arrival == arrival_fit.chosen
    assert arrival_fit.candidates[0].gap_ks < 0.05
    assert [candidate.score for candidate in arrival_fit.candidates] == sorted(
        candidate.score for candidate in arrival_fit.candidates
    )


def test_bursts_and_silences_have_the_lengths_that_they_had():
    options = {"on_s": UNIFORM, "off_s": SILENCES, "spread": 0.3, "burstiness": 0.8}
    onoff = fitted("onoff", 8.0, options).chosen.made()
    assert onoff is not None
    assert onoff.on_s.mean() == pytest.approx(4.0, rel=0.1)
    assert onoff.off_s.mean() == pytest.approx(10.0, rel=0.1)
    assert onoff.spread == pytest.approx(0.3, abs=0.1)


def test_the_reason_names_every_process_that_was_rejected_and_where_it_fails():
    arrival_fit = fitted("drift", 6.0, {"sigma": 0.4, "memory_s": 60.0})
    assert arrival_fit.reason.startswith("drift (")
    for candidate in arrival_fit.candidates[1:]:
        assert f"{candidate.arrival.process}: {candidate.worst}" in arrival_fit.reason
    poisson = next(candidate for candidate in arrival_fit.candidates if candidate.arrival.process == "poisson")
    assert poisson.worst.startswith("the dispersion over ")


def test_estimates_of_burstiness_agree_on_their_own_family_and_only_there():
    gamma = seen(starts_of("gamma", 1.0, {"burstiness": 0.5}, 40_000)).gaps_s
    weibull = seen(starts_of("weibull", 1.0, {"burstiness": 0.5}, 40_000)).gaps_s
    assert gamma_burstiness(gamma) == pytest.approx(0.5, rel=0.03)
    assert weibull_burstiness(weibull) == pytest.approx(0.5, rel=0.03)
    assert moment_burstiness(gamma) == pytest.approx(0.5, rel=0.05)
    assert moment_burstiness(weibull) == pytest.approx(0.5, rel=0.05)
    assert abs(gamma_burstiness(weibull) - 0.5) > 0.05


def test_gaps_that_a_clock_took_for_zero_do_not_break_the_likelihood():
    gaps_s = np.diff([round(at_s, 3) for at_s in starts_of("poisson", 20.0, {}, 5_000)])
    assert (gaps_s == 0).mean() > 0.005
    assert math.isclose(gamma_burstiness(gaps_s), 1.0, rel_tol=0.05)


@pytest.mark.parametrize(
    ("starts_s", "at_once", "process", "words"),
    [
        (None, False, "poisson", "has no start times"),
        (None, True, "at-once", "start at once"),
        (starts_of("gamma", 2.0, {"burstiness": 0.2}, 49), False, "poisson", "49 starts determine only a rate"),
        (starts_of("constant", 4.0, {}, 500), False, "constant", "all equal"),
    ],
)
def test_what_is_taken_where_there_is_nothing_to_compare(
    starts_s: list[float] | None, at_once: bool, process: str, words: str
):
    arrivals = None if starts_s is None else seen(starts_s)
    arrival_fit = fit_arrivals(arrivals, SEED, at_once=at_once)
    assert arrival_fit.chosen.process == process
    assert words in arrival_fit.reason
    assert arrival_fit.candidates == ()
    if arrivals is not None:
        assert arrival_fit.chosen.rate_per_s == pytest.approx(arrivals.rate_per_s, rel=1e-3)


def test_the_same_trace_and_seed_give_the_same_fit():
    arrivals = seen(starts_of("gamma", 2.0, {"burstiness": 0.3}, 500))
    assert fit_arrivals(arrivals, SEED, budget=10_000) == fit_arrivals(arrivals, SEED, budget=10_000)


@pytest.mark.parametrize("rate", [0.01, 5_000.0])
def test_very_slow_and_very_quick_traces_are_fitted_too(rate: float):
    arrival_fit = fit_arrivals(seen(starts_of("weibull", rate, {"burstiness": 0.05}, 1_000)), SEED, budget=20_000)
    assert arrival_fit.candidates
    assert arrival_fit.chosen.made() is not None
