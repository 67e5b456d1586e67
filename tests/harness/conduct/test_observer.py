"""Estimated time left of a run: two engines, two repeats, one level; trials of 2 + 10 s are guessed to last 15 s."""

import msgspec
import pytest

from bakeoff.harness.conduct.progress import Estimate
from bakeoff.harness.experiment.config import Experiment, WorkloadConfig
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.harness.traffic.expected import ExpectedLength
from bakeoff.results.log.run_log import EngineStarted, EngineStarting, TrialFinished
from bakeoff.results.records import Load, TrialPlan, TrialRecord, Verdict, Window
from bakeoff.results.units import NS_PER_S as S

FIRST_GUESS_S = 4 * 6 + 4 * 15


@pytest.fixture
def experiment() -> Experiment:
    data = {
        "name": "t",
        "repeats": 2,
        "model": {"name": "m", "tokenizer": "tok"},
        "engines": [{"adapter": "openai", "url": "http://127.0.0.1:9", "label": label} for label in ("a", "b")],
        "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 5}},
        "loads": [{"concurrency": 1}],
        "trial": {"duration_s": 10, "ramp_s": 2},
    }
    return experiment_from(data, "t")


def record(plan: TrialPlan, seconds: float) -> TrialRecord:
    return TrialRecord(
        id=plan.id, engine=plan.engine, workload=plan.workload, load=plan.load, repeat=plan.repeat, order=1,
        started_ns=0, ended_ns=round(seconds * 1e9), issue_start_ns=0, issue_end_ns=0, window=Window(0, 0),
        planned_requests=1,
        workload_sha256="", verdict=Verdict.VALID,
    )  # fmt: skip


def test_the_estimate_uses_measured_starts_and_trials(experiment: Experiment) -> None:
    estimate = Estimate(experiment)
    first, second, *_ = experiment.plan()
    assert estimate.left_s() == pytest.approx(FIRST_GUESS_S)

    estimate.event(EngineStarting(engine=first.engine, turn=1, start=1))
    estimate.event(EngineStarted(t_ns=40 * S, engine=first.engine, turn=1))
    assert estimate.left_s() == pytest.approx(3 * 40 + 4 * 15), "b is taken to start as slowly as a"

    estimate.event(TrialFinished(record=record(first, 20)))
    estimate.event(EngineStarting(t_ns=60 * S, engine=second.engine, turn=1, start=1))
    assert estimate.left_s() == pytest.approx(3 * 40 + 20 + 2 * 15)

    estimate.event(EngineStarted(t_ns=62 * S, engine=second.engine, turn=1))
    estimate.event(TrialFinished(record=record(second, 15)))
    assert estimate.left_s() == pytest.approx(40 + 2 + 20 + 15)


def test_reused_trials_need_no_start(experiment: Experiment) -> None:
    estimate = Estimate(experiment)
    for plan in experiment.plan()[:2]:
        estimate.event(TrialFinished(record=record(plan, 15)))
    assert estimate.left_s() == pytest.approx(FIRST_GUESS_S / 2)


def test_pauses_of_the_workload_lengthen_the_expected_trials_of_a_closed_loop(experiment: Experiment) -> None:
    workload = WorkloadConfig(name="multi-turn")
    slow = ExpectedLength(msgspec.structs.replace(experiment, workload=workload))
    quick = ExpectedLength(experiment)
    users, arrivals = Load(concurrency=8), Load(rate_per_s=1.0, arrival="poisson")
    assert quick.of(users) == quick.of(arrivals) == slow.of(arrivals) == pytest.approx(15)
    assert slow.of(users) > 60
