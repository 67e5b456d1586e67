"""Engines of several servers that the harness starts: their hardware, their requests, and those that start late."""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bakeoff import results
from bakeoff.engines import Engine, Launch, Server
from bakeoff.engines.errors import EngineDied
from bakeoff.harness.conduct.faults import FaultInjector
from bakeoff.harness.conduct.replicas import VISIBLE, Part, launches_of, parts_of
from bakeoff.harness.errors import BadExperiment
from bakeoff.harness.experiment.faults import Fault
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.harness.virtual import Fixed, PerToken, VirtualEngine, virtual_run
from bakeoff.harness.virtual.engine import Death
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.records import FaultAction, Phase, Verdict
from bakeoff.results.report import render_html
from bakeoff.results.report.sections.faults import figures_of, name_of
from bakeoff.results.run.faults import faults_of
from bakeoff.results.show.table import Cell
from tests.engines.quill import model
from tests.harness.cli.test_adapters_docs import quill
from tests.harness.fake_runs import measured_run

__all__ = ["quill"]

START_S, SLOTS, E2E_S, SLO_S, RATE = 2.0, 4, 0.25, 0.6, 20.0
ENGINE = VirtualEngine(service=PerToken(Fixed(0.05), Fixed(0.05)), start_s=START_S, slots=SLOTS)
TRIAL = {"warm_up_s": 0.0, "duration_s": 60}
START = {"action": "start", "replica": "replica-2", "at_s": 10}


def run_of(path: Path, *faults: dict[str, Any], engine: VirtualEngine = ENGINE, **changes: Any) -> results.Run:
    data = {
        "name": "r", "engines": [{"adapter": "reference", "label": "a", "replicas": 2}], "faults": list(faults),
        "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 5, "spread": 0.0}},
        "loads": [{"rate_per_s": RATE, "arrival": "constant"}], "repeats": 2, "slo": {"e2e_s": SLO_S},
        "trial": TRIAL, "quality": {"samples": 0}, **changes,
    }  # fmt: skip
    return virtual_run(experiment_from(data, "r"), {"a": engine}, path)


@pytest.mark.parametrize(
    ("gpus", "cores", "replicas", "parts"),
    [
        ("0123", range(8), 2, [Part(gpus="01"), Part(gpus="23")]),
        ("012", range(8), 2, [Part(gpus="0"), Part(gpus="1")]),
        ("0", range(8), 2, [Part(gpus="0"), Part(gpus="0")]),
        ("", range(5), 2, [Part(cores=range(2)), Part(cores=range(2, 4))]),
        ("", [3], 2, [Part(cores=[3]), Part(cores=[3])]),
    ],
)
def test_replicas_get_equal_parts_of_the_gpus_or_else_of_the_cores(
    gpus: str, cores: Any, replicas: int, parts: list[Part]
):
    found = parts_of(list(gpus), list(cores), replicas)
    assert [(list(part.gpus), list(part.cores)) for part in found] == [
        (list(part.gpus), list(part.cores)) for part in parts
    ]


def test_each_launch_has_its_gpus_its_cores_and_a_port_of_its_own():
    class Launched:
        def launch(self, port: int) -> Launch:
            return Launch(("serve",), port, env={VISIBLE: "0,1", "A": "b"})

    engine: Engine = Launched()  # pyright: ignore[reportAssignmentType]  (nothing else of it is asked)
    one, two, bare = launches_of(engine, [Part(gpus=["0"]), Part(gpus=["1"]), Part(cores=[3, 4])])
    assert (one.env, two.env) == ({VISIBLE: "0", "A": "b"}, {VISIBLE: "1", "A": "b"})
    assert (one.cores, bare.cores) == ((), (3, 4))
    assert len({one.port, two.port, bare.port}) == 3


@pytest.mark.usefixtures("quill")
def test_real_servers_share_the_requests_and_end_with_their_turn(tmp_path: Path):
    smol = {"name": "smol", "path": str(model(tmp_path / "model"))}
    (trial,) = asyncio.run(measured_run(tmp_path, {"adapter": "quill", "replicas": 2}, model=smol)).finished
    assert trial.record.verdict is Verdict.VALID
    description = trial.record.engine_description
    assert description is not None
    assert [address.label for address in description.addresses] == ["replica-1", "replica-2"]
    assert [note.split(" on ")[0] for note in description.notes][-2:] == ["replica-1", "replica-2"]
    counts = Counter(request.address for request in trial.requests)
    assert abs(counts["replica-1"] - counts["replica-2"]) <= 1
    logs = sorted(path.name for path in (tmp_path / "runs").glob("*/engines/*.log"))
    assert {"quill-1.log", "quill-1-replica-2.log"} <= set(logs)


def test_two_replicas_hold_what_one_cannot(tmp_path: Path):
    run = run_of(tmp_path)
    for trial in run.finished:
        assert trial.record.verdict is Verdict.VALID
        counts = Counter(request.address for request in trial.requests)
        assert abs(counts["replica-1"] - counts["replica-2"]) <= 1
    assert run.finished[0].record.start_s == START_S


def test_the_end_of_one_replica_ends_the_trial(tmp_path: Path):
    dying = VirtualEngine(service=PerToken(Fixed(0.05), Fixed(0.05)), slots=SLOTS, deaths=(Death(after_requests=200),))
    (trial, *_) = run_of(tmp_path, engine=dying, repeats=1).finished
    assert FindingCode.ENGINE_DIED in {finding.code for finding in trial.record.findings}


def test_a_replica_that_is_started_under_load_ends_the_backlog_when_arithmetic_says_so(tmp_path: Path):
    run = run_of(tmp_path, START)
    for trial in run.finished:
        assert trial.record.verdict is Verdict.VALID
        (fault,) = trial.record.faults
        assert (fault.action, fault.replica, fault.error) == (FaultAction.START, "replica-2", None)
        assert fault.ready_ns is not None
        assert (fault.ready_ns - fault.begun_ns) / 1e9 == pytest.approx(START_S, abs=1e-3)
        load = [request for request in trial.requests if request.phase is not Phase.WARMUP]
        late = [request for request in load if request.address == "replica-2"]
        assert min(request.planned_ns for request in late) >= fault.ready_ns
        after = [request for request in load if request.planned_ns > fault.ready_ns]
        assert len(late) == pytest.approx(len(after) / 2, abs=2)
        # Until then the backlog grows by what one server cannot do; then one gets half of the arrivals, and drains it.
        capacity = SLOTS / E2E_S
        backlog = (RATE - capacity) * (fault.ready_ns - trial.record.issue_start_ns) / 1e9
        drained_s = (backlog - (SLO_S - E2E_S) * capacity) / (capacity - RATE / 2)
        (summary,) = faults_of(run)
        assert summary.recovered_s is not None
        assert summary.recovered_s.centre == pytest.approx(START_S + drained_s, abs=1.0)
        assert summary.start_s is not None
        assert summary.start_s.centre == pytest.approx(START_S, abs=1e-3)
        assert summary.down_s is None
    assert name_of(summary) == "start of replica-2"
    assert "start of replica-2" in render_html(run)


def test_one_late_request_minutes_later_does_not_put_off_the_recovery(tmp_path: Path):
    """Near capacity a request is late now and then; the backlog of the start has long been drained."""
    loads = [{"rate_per_s": 18.0, "arrival": "poisson"}]
    run = run_of(tmp_path, START, loads=loads, slo={"e2e_s": 0.35}, repeats=1, trial=TRIAL | {"duration_s": 130})
    (trial,) = run.finished
    (fault,) = trial.record.faults
    late_s = [
        (request.planned_ns - fault.begun_ns) / 1e9
        for request in trial.requests
        if request.phase is not Phase.WARMUP and request.ended_ns - request.planned_ns > 0.35e9
    ]
    drained_s = max(at_s for at_s in late_s if at_s < 60)
    assert max(late_s) > drained_s + 20, "one comes much later"
    (summary,) = faults_of(run)
    assert summary.recovered_s is not None
    assert summary.recovered_s.centre <= drained_s + 1


def test_what_was_bad_before_a_start_is_no_peace_for_a_later_fault(tmp_path: Path):
    loads = [{"rate_per_s": 22.0, "arrival": "poisson"}]
    restart = {"action": "restart", "replica": "replica-1", "at_s": 80, "for_s": 5}
    start = {"action": "start", "replica": "replica-3", "at_s": 20}
    engines = [{"adapter": "reference", "label": "a", "replicas": 3}]
    slow = VirtualEngine(service=PerToken(Fixed(0.1), Fixed(0.075)), start_s=START_S, slots=SLOTS)  # 10/s each
    run = run_of(
        tmp_path, start, restart, engine=slow, engines=engines, loads=loads, slo={"e2e_s": 1.0}, repeats=1,
        trial=TRIAL | {"duration_s": 150},
    )  # fmt: skip
    _, later = faults_of(run)
    assert later.recovered_s is not None
    assert later.recovered_s.centre == pytest.approx(5 + START_S, abs=1.0)
    assert later.failed > 0.5 * 7 * 22 / 3


def test_a_replica_that_ends_by_itself_after_its_start_ends_the_trial():
    """The server that a fault launched is watched as the others are."""
    started = Server("http://127.0.0.1:9")

    class Starting:
        async def start(self, *_: object) -> Server:
            return started

        async def close(self) -> None:
            pass

    async def live() -> EngineDied | None:
        sampled = asyncio.Event()

        async def sample(server: Server) -> None:
            assert server is started
            sampled.set()

        async def join(_: str) -> None:
            pass

        fault = Fault(FaultAction.START, 0.0, replica="replica-2")
        controls: Any = {"replica-2": Starting()}
        injector = FaultInjector([fault], controls, time.monotonic_ns, joined=join, launched=sample, ready_s=1)
        injector.opened(time.monotonic_ns())
        await asyncio.wait_for(sampled.wait(), 5)
        assert injector.died() is None
        started.exit_status = 9
        started.ended.set()
        await asyncio.wait_for(injector.ended.wait(), 5)
        death = injector.died()
        await injector.aclose()
        return death

    death = asyncio.run(live())
    assert isinstance(death, EngineDied)
    assert str(death).startswith("replica-2: ")


def test_a_fault_of_a_replica_that_is_still_starting_says_so(tmp_path: Path):
    (trial,) = run_of(tmp_path, START, {"action": "kill", "replica": "replica-2", "at_s": 11}, repeats=1).finished
    assert trial.record.faults[1].error == "replica-2 was still starting; raise at_s"


def test_a_replica_that_is_ready_after_the_window_has_not_helped(tmp_path: Path):
    (summary,) = faults_of(run_of(tmp_path, START | {"at_s": 59}, repeats=1))
    assert (summary.recovered, summary.decidable) == (0, 1)


def test_too_few_requests_are_not_told_to_be_a_failure(tmp_path: Path):
    loads = [{"rate_per_s": 0.3, "arrival": "poisson"}]
    run = run_of(tmp_path, START, loads=loads, repeats=1, trial=TRIAL | {"min_requests": 5})
    (summary,) = faults_of(run)
    assert summary.decidable == 0
    assert Cell("too few requests") in figures_of(summary)


def test_each_load_begins_without_the_replica_that_is_to_start(tmp_path: Path):
    loads = [{"concurrency": 2}, {"rate_per_s": 5.0, "arrival": "poisson"}]
    for trial in run_of(tmp_path, START, loads=loads, repeats=1).finished:
        (fault,) = trial.record.faults
        assert fault.error is None
        late = [request.planned_ns for request in trial.requests if request.address == "replica-2"]
        assert late
        assert min(late) >= (fault.ready_ns or 0)


def test_several_workers_send_to_a_replica_from_when_it_is_ready(tmp_path: Path):
    (trial,) = run_of(tmp_path, START, repeats=1, client={"workers": 3}).finished
    (fault,) = trial.record.faults
    after = [r.address for r in trial.requests if r.phase is not Phase.WARMUP and r.planned_ns > (fault.ready_ns or 0)]
    assert Counter(after)["replica-2"] == pytest.approx(len(after) / 2, rel=0.02)


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ([START | {"replica": "replica-3"}], "no replica 'replica-3'; choose from replica-1, replica-2"),
        ([START, START | {"replica": "replica-1", "at_s": 20}], "would have no server before"),
        ([START, START | {"action": "stop", "at_s": 5, "for_s": 1}], "replica-2 is not started before; raise at_s"),
        ([START | {"for_s": 5}], "it has no end; leave out for_s"),
        ([START | {"end": ["serve"]}], "it has no end; leave out end"),
        ([START, START | {"at_s": 20}], "a replica of engine 'a' is started twice; leave one of them out"),
        ([START | {"at_s": 70}], "it begins after the window of 60 s; lower at_s, or raise trial.duration_s"),
    ],
)
def test_starts_that_cannot_be_are_refused(tmp_path: Path, faults: list[dict[str, Any]], message: str):
    with pytest.raises(BadExperiment, match=message):
        run_of(tmp_path, *faults)
