"""What a run says of itself. Its estimate: two engines, two repeats, one level; a trial of 2 + 10 s is guessed 15 s."""

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bakeoff.engines import EngineSpec
from bakeoff.harness.client.wire.orders import Silence
from bakeoff.harness.conduct.estimate import Estimate
from bakeoff.harness.conduct.progress import PlainObserver, QuietObserver, Stage, plan_text
from bakeoff.harness.conduct.run import create_run, run_experiment
from bakeoff.harness.conduct.world import inside
from bakeoff.harness.experiment.config import Experiment, WorkloadConfig
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.harness.traffic.expected import ExpectedLength
from bakeoff.harness.virtual import Fixed, PerToken, VirtualEngine, VirtualWorld
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
    assert estimate.left_s() == pytest.approx(3 * 40 + 20 + 2 * 20), "b's trials are taken to need as much more time"

    estimate.event(EngineStarted(t_ns=62 * S, engine=second.engine, turn=1))
    estimate.event(TrialFinished(record=record(second, 15)))
    assert estimate.left_s() == pytest.approx(40 + 2 + 20 + 15)

    again = msgspec.structs.replace(record(second, 15), id="again", replaces=second.id)
    estimate.event(TrialFinished(record=again))
    assert estimate.left_s() == pytest.approx(40 + 2 + 3 / 2 * (20 + 15)), "one of two was measured again"


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


def test_before_the_first_trial_the_time_of_histories_is_not_known(experiment: Experiment) -> None:
    sessions = msgspec.structs.replace(experiment, workload=WorkloadConfig(name="multi-turn"))
    assert " about " in plan_text(experiment)
    assert " at least " in plan_text(sessions)
    without_cache = msgspec.structs.replace(sessions, spec=EngineSpec(enable_prefix_caching=False))
    assert " about " in plan_text(without_cache)
    estimate = Estimate(sessions)
    expected_s = ExpectedLength(sessions).of(sessions.loads[0])
    estimate.event(TrialFinished(record=record(sessions.plan()[0], 3 * expected_s)))
    assert estimate.text.startswith("about ")
    assert estimate.left_s() == pytest.approx(3 * (6 + 3 * expected_s))


def test_a_stage_is_printed_after_a_long_silence_alone(experiment: Experiment) -> None:
    now_s, written = 0.0, io.StringIO()
    observer = PlainObserver(Console(file=written, width=200), experiment, lambda: now_s)
    plan = experiment.plan()[0]
    observer.stage(plan, Stage.PLAN)
    now_s = 40.0
    observer.stage(plan, Stage.PRIME)
    now_s = 50.0
    observer.stage(plan, Stage.RAMP)
    assert written.getvalue() == "a c=1, repeat 1: filling the cache with their history\n"


def test_a_silence_is_printed_at_8_s_and_each_time_that_it_has_doubled(experiment: Experiment) -> None:
    written = io.StringIO()
    observer = PlainObserver(Console(file=written, width=200), experiment)
    for silence_s in (2, 4, 6, 8, 10, 12, 14, 16, 18, None, 8):
        observer.silence(None if silence_s is None else Silence(3, silence_s, 60.0))
    seconds = [int(line.split()[3]) for line in written.getvalue().splitlines()]
    assert seconds == [8, 16, 8]
    assert "nothing received for 8 s: 3 requests in flight, timeout 60 s" in written.getvalue()


def test_a_trial_tells_its_stages_in_order(tmp_path: Path) -> None:
    told: list[tuple[str, Stage]] = []

    class Noting(QuietObserver):
        def stage(self, plan: TrialPlan, stage: Stage) -> None:
            told.append((plan.id, stage))

    data = {
        "name": "t", "engines": [{"adapter": "reference", "label": "a"}], "repeats": 1,
        "workload": {"name": "multi-turn", "options": {"scale": 0.1}}, "loads": [{"concurrency": 4}],
        "trial": {"warm_up_s": 0.0, "duration_s": 5, "ramp_s": 1}, "quality": {"samples": 0},
    }  # fmt: skip
    world = VirtualWorld({"a": VirtualEngine(service=PerToken(Fixed(0.05), Fixed(0.01)))})
    with inside(world):
        made = experiment_from(data, "t")
        world.run(run_experiment(made, create_run(made, tmp_path), Noting()))
    once = [Stage.PLAN, Stage.PRIME, Stage.RAMP]
    stages = [stage for _, stage in told]
    assert stages[:3] == once
    assert stages[-1] is Stage.WINDOW
    assert stages[:-1] == once * (len(stages) // 3), "again where the pace was off"
