"""Whole runs, searches and gates in virtual time, through the harness's real code."""

import itertools
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from bakeoff import results
from bakeoff.harness.conduct.policies.search_config import search_config
from bakeoff.harness.traffic import beginning
from bakeoff.harness.verdict.evidence import Evidence
from bakeoff.harness.verdict.judge import judge
from bakeoff.harness.virtual import (
    Batched,
    Death,
    Ending,
    Exponential,
    Fault,
    Fixed,
    Lognormal,
    PerToken,
    Served,
    VirtualEngine,
    VirtualWorld,
    Whole,
    run_in,
    virtual_experiment,
    virtual_gate,
    virtual_run,
    virtual_search,
)
from bakeoff.results.compare.config import ComparisonConfig
from bakeoff.results.compare.gate import Outcome as Gate
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding, invalid
from bakeoff.results.log.run_log import EngineStarting
from bakeoff.results.log.search import Over
from bakeoff.results.records import Outcome, Phase, RunStatus, Verdict

TRIAL: dict[str, Any] = {"warm_up_s": 0.0, "duration_s": 5.0, "ramp_s": 0.5}
LOADS = [{"concurrency": 2}, {"rate_per_s": 20.0, "arrival": "poisson"}]
FOREIGN = invalid(FindingCode.FOREIGN_LOAD, foreign_share=0.5, foreign_cores=1.0, max_foreign_share=0.2)
NOISY = VirtualEngine(trial_noise=0.004, start_noise=0.002)


def files(run: results.Run) -> dict[str, bytes]:
    return {str(path.relative_to(run.path)): path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def served_run(tmp_path: Path, engine: VirtualEngine, **changes: Any) -> tuple[results.Run, list[Served]]:
    """A run of one engine, and the true timings of what it served."""
    options: dict[str, Any] = {"loads": LOADS[:1], "repeats": 1, "trial": TRIAL, **changes}
    experiment = virtual_experiment(["a"], **options)
    world = VirtualWorld({"a": engine})
    return run_in(world, experiment, tmp_path), world.sites["a"].served


def test_equal_seeds_give_equal_bytes_and_others_do_not(tmp_path: Path):
    experiment = virtual_experiment(["a", "b"], LOADS, trial=TRIAL)
    engines = {"a": NOISY, "b": msgspec.structs.replace(NOISY, service=PerToken(Exponential(0.05), Fixed(0.01)))}
    runs = [virtual_run(experiment, engines, tmp_path / str(i), seed=seed) for i, seed in enumerate((1, 1, 2))]
    assert [trial.record.verdict for trial in runs[0].finished] == [Verdict.VALID] * 12
    assert files(runs[0]) == files(runs[1])
    assert files(runs[0]) != files(runs[2])


@pytest.mark.parametrize("workload", [{"name": "multi-turn", "options": {"scale": 0.02}}, {"name": "random"}])
def test_no_session_is_sent_twice_before_the_window(tmp_path: Path, workload: dict[str, Any]):
    """An engine would find it, whole, in its cache; so it would after a load that begins again at the measured pace."""
    engine = VirtualEngine(service=PerToken(Fixed(0.1), Fixed(0.005)))
    run, _ = served_run(tmp_path, engine, loads=[{"concurrency": 12}], workload=workload, trial={"ramp_s": 30.0})
    (trial,) = run.finished
    assert trial.record.verdict is Verdict.VALID
    before = [request for request in trial.requests if request.phase is Phase.RAMP]
    assert len(before) > 20
    assert {request.cycle for request in before} == {0}


def test_a_window_is_the_same_however_far_its_sessions_in_progress_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Where that is not far enough, the load begins again with more of them."""
    engine = VirtualEngine(service=PerToken(Fixed(0.2), Fixed(0.01)))
    talk = {"name": "multi-turn", "options": {"scale": 0.02}}
    windows, sent = [], []
    for spare in (1.5, 0.05):
        monkeypatch.setattr(beginning, "_SPARE", spare)
        changes = {"loads": [{"concurrency": 12}], "workload": talk, "trial": {}}
        run, _ = served_run(tmp_path / str(spare), engine, **changes)
        (trial,) = run.finished
        assert trial.record.verdict is Verdict.VALID
        inside = [request for request in trial.requests if request.phase is Phase.MEASURED]
        start_ns = trial.record.window.start_ns
        windows.append(sorted((request.planned_ns - start_ns, request.output_tokens) for request in inside))
        sent.append(len(trial.requests))
    assert windows[0] == windows[1]
    assert sent[1] > sent[0]


def test_what_the_client_measures_is_what_the_engine_did(tmp_path: Path):
    engine = VirtualEngine(service=PerToken(Exponential(0.05), Exponential(0.01)), slots=3, tokens_per_chunk=2)
    run, served = served_run(tmp_path, engine, loads=LOADS[1:])
    (trial,) = run.finished
    requests = sorted(trial.requests, key=lambda request: request.sent_ns or 0)
    assert [(r.sent_ns, r.chunk_ns, r.chunk_tokens, r.ended_ns) for r in requests] == [
        (request.arrived_ns, request.chunk_ns, request.chunk_tokens, request.ended_ns) for request in served
    ]
    assert {(r.prompt_tokens, r.output_tokens, r.outcome) for r in requests} == {(8, 5, Outcome.OK)}
    inside = [request for request in served if trial.record.window.holds(request.arrived_ns)]
    assert 60 < len(inside) < len(served)
    waits_s = [(request.chunk_ns[0] - request.arrived_ns) / 1e9 for request in inside]
    assert trial.metrics["ttft_p50_s"].value == pytest.approx(np.quantile(waits_s, 0.5))
    assert any(request.begun_ns != request.arrived_ns for request in served), "some waited for a slot"


def test_virtual_time_passes_as_in_a_real_run_and_continues_in_the_next(tmp_path: Path):
    world = VirtualWorld({"a": VirtualEngine(start_s=7.0)})
    experiment = virtual_experiment(["a"], LOADS[:1], repeats=1, trial=TRIAL)
    first, second = (run_in(world, experiment, tmp_path).manifest for _ in range(2))
    assert (first.created_utc, first.ended_utc) == ("2026-01-01T00:00:00+00:00", "2026-01-01T00:00:12+00:00")
    assert second.created_utc == first.ended_utc
    assert second.run_id > first.run_id


def test_a_search_finds_the_capacity_of_an_m_d_c_server(tmp_path: Path):
    """Two slots and answers of 0.1 s: 20 requests per second."""
    loads = [{"rate_per_s": rate, "arrival": "poisson"} for rate in (5.0, 80.0)]
    workload = {"name": "random", "options": {"input_tokens": 8, "output_tokens": 1}}
    trial = TRIAL | {"duration_s": 30.0}
    experiment = virtual_experiment(["a"], loads, workload=workload, trial=trial)
    config = search_config(experiment, "ttft_p50<1s", over=Over.RATE, trials=8)
    run = virtual_search(experiment, {"a": VirtualEngine(service=Whole(Fixed(0.1)), slots=2)}, tmp_path, config)
    assert run.status is RunStatus.COMPLETE
    assert run.search is not None
    (search,) = run.search.engines
    assert search.level == pytest.approx(20.0, rel=0.1)


def test_answers_that_take_long_because_they_are_long_are_waited_for(tmp_path: Path):
    """One in ten takes 4 s instead of 0.2 s, so that most of those in flight when the window ends are long ones."""
    rng, path = Random(1), tmp_path / "sessions.jsonl"
    lengths = [400 if rng.random() < 0.1 else 10 for _ in range(1500)]
    lines = [
        msgspec.json.encode({"id": str(n), "turns": [{"input_tokens": 1, "output_tokens": length, "prompt": "word"}]})
        for n, length in enumerate(lengths)
    ]
    path.write_bytes(b"\n".join(lines))
    experiment = virtual_experiment(
        ["a"], [{"rate_per_s": 60, "arrival": "poisson"}], repeats=1,
        workload={"name": "sessions", "options": {"path": str(path)}},
        trial={"warm_up_s": 0.0, "duration_s": 6.0, "ramp_s": 1.0},
    )  # fmt: skip
    engine = VirtualEngine(service=PerToken(Fixed(0.1), Fixed(0.01)), tokens_per_chunk=10)
    (trial,) = virtual_run(experiment, {"a": engine}, tmp_path / "runs").finished
    assert {request.outcome for request in trial.requests if trial.window.holds(request.planned_ns)} == {Outcome.OK}


def test_a_cap_that_holds_more_and_more_back_is_the_experiments(tmp_path: Path):
    """Sessions of three turns at 3/s are 9 requests/s of 1 s each, on a server with room for all; 5 may be sent."""
    turn = {"input_tokens": 4, "output_tokens": 4, "prompt": "word word word word"}
    path = tmp_path / "sessions.jsonl"
    path.write_bytes(b"\n".join(msgspec.json.encode({"id": f"s{i}", "turns": [turn] * 3}) for i in range(300)))
    load = {"rate_per_s": 3.0, "arrival": "poisson", "max_in_flight": 5}
    workload = {"name": "sessions", "options": {"path": str(path)}}
    engine = VirtualEngine(service=Whole(Fixed(1.0)))
    run, _ = served_run(tmp_path, engine, loads=[load], trial=TRIAL | {"duration_s": 20.0}, workload=workload)
    (trial,) = run.finished
    assert FindingCode.HELD_BACK in {finding.code for finding in trial.record.invalidating}
    under_load = [request for request in trial.requests if request.phase is not Phase.WARMUP]
    spans = [(request.sent_ns, request.ended_ns) for request in under_load if request.sent_ns is not None]
    edges = sorted([(sent_ns, 1) for sent_ns, _ in spans] + [(ended_ns, -1) for _, ended_ns in spans])
    assert max(itertools.accumulate(step for _, step in edges)) == 5


def test_an_overload_does_not_prolong_its_ramp(tmp_path: Path):
    """Waits that grow for ever are no service times, of which ten are enough."""
    load = {"rate_per_s": 15.0, "arrival": "poisson"}
    engine = VirtualEngine(service=Whole(Fixed(0.4)), slots=4)
    run, _ = served_run(tmp_path, engine, loads=[load], trial=TRIAL | {"duration_s": 20.0})
    (trial,) = run.finished
    assert {finding.code for finding in trial.record.findings} == {FindingCode.SATURATED}
    begun_ns = min(request.planned_ns for request in trial.requests)
    assert (trial.record.window.start_ns - begun_ns) / 1e9 < 15


@pytest.mark.parametrize(("slowdown", "outcome"), [(1.0, Gate.NO_REGRESSION), (1.2, Gate.REGRESSION)])
def test_a_gate_tells_equal_engines_from_a_slower_one(tmp_path: Path, slowdown: float, outcome: Gate):
    experiment = virtual_experiment(["main", "branch"], LOADS[:1], repeats=6, trial=TRIAL)
    engines = {"main": NOISY, "branch": msgspec.structs.replace(NOISY, slowdown=slowdown)}
    verdict = virtual_gate(
        experiment, engines, tmp_path, baseline="main", candidate="branch", config=ComparisonConfig()
    )
    assert verdict.outcome is outcome


@pytest.mark.parametrize(
    ("fault", "outcome", "chunks"),
    [
        (Fault.REFUSED, Outcome.REFUSED, 0),
        (Fault.HTTP_429, Outcome.HTTP_ERROR, 0),
        (Fault.HTTP_500, Outcome.HTTP_ERROR, 0),
        (Fault.HTTP_503, Outcome.HTTP_ERROR, 0),
        (Fault.RESET, Outcome.STREAM_ERROR, 2),
        (Fault.ERROR_EVENT, Outcome.STREAM_ERROR, 2),
        (Fault.TRUNCATED, Outcome.TRUNCATED, 5),
        (Fault.STALL, Outcome.TIMEOUT, 2),
        (Fault.SILENT, Outcome.TIMEOUT, 0),
    ],
)
def test_each_fault_is_seen_as_what_it_is(tmp_path: Path, fault: Fault, outcome: Outcome, chunks: int):
    run, served = served_run(tmp_path, VirtualEngine(faults={fault: 0.3}, slots=2), trial=TRIAL | {"timeout_s": 1.0})
    requests = [request for request in run.finished[0].requests if request.outcome is not Outcome.OK]
    assert {(request.outcome, len(request.chunk_ns)) for request in requests} == {(outcome, chunks)}
    assert 0.1 < len(requests) / len(run.finished[0].requests) < 0.6
    if fault is not Fault.REFUSED:
        befallen = [request for request in served if request.fault is fault]
        ending = Ending.DROPPED if outcome is Outcome.TIMEOUT else Ending.FAULT
        assert {(request.ending, len(request.chunk_ns)) for request in befallen} == {(ending, chunks)}
        assert len(befallen) == len(requests)


def test_an_empty_answer_has_a_finish_reason_and_no_token(tmp_path: Path):
    run, _ = served_run(tmp_path, VirtualEngine(faults={Fault.EMPTY: 1.0}))
    answers = {(r.finish_reason, r.output_tokens, len(r.chunk_ns), r.status) for r in run.finished[0].requests}
    assert answers == {("length", 0, 0, 200)}


def test_short_answers_have_the_configured_length(tmp_path: Path):
    run, served = served_run(tmp_path, VirtualEngine(short_share=0.5, short_length=0.4))
    lengths = [request.output_tokens for request in run.finished[0].requests]
    whole = {request.output_tokens for request in run.finished[0].requests if request.part == 1}
    assert whole == {2, 5}, "the rest of an answer that was in progress is shorter"
    assert sorted(lengths, key=str) == sorted((request.tokens for request in served), key=str)


def test_an_engine_that_dies_in_its_first_start_is_started_again(tmp_path: Path):
    engine = VirtualEngine(deaths=(Death(at_s=2.0, starts=(1,)),))
    run, served = served_run(tmp_path, engine, loads=[{"concurrency": 2}, {"concurrency": 3}])
    assert [trial.record.verdict for trial in run.finished] == [Verdict.INVALID, Verdict.VALID]
    assert run.status is RunStatus.FAILED
    assert run.manifest.failure == "a, repeat 1: the engine's process ended by itself (exit status 1)"
    assert {request.start for request in served} == {1, 2}
    died = [request for request in served if request.ending is Ending.DIED]
    assert [(request.ended_ns - died[0].arrived_ns) // 10**9 for request in died if request.ended_ns] == [0, 0]
    assert run.finished[0].record.ended_ns - run.finished[0].record.started_ns == pytest.approx(2e9, rel=0.01)


def test_an_engine_that_dies_of_its_nth_request_or_never_starts(tmp_path: Path):
    engines = {
        "fragile": VirtualEngine(deaths=(Death(after_requests=10),)),
        "broken": VirtualEngine(deaths=(Death(after_requests=0, exit_status=3),)),
        "sound": VirtualEngine(),
    }
    run = virtual_run(virtual_experiment(engines, LOADS[:1], repeats=1, trial=TRIAL), engines, tmp_path)
    trials = {trial.record.engine: trial for trial in run.finished}
    assert {label: trial.record.verdict for label, trial in trials.items()} == {
        "fragile": Verdict.INVALID, "sound": Verdict.VALID
    }  # fmt: skip
    assert sum(request.outcome is Outcome.OK for request in trials["fragile"].requests) == 8
    assert "broken, repeat 1: it did not start (exit status 3)" in (run.manifest.failure or "")


def test_connecting_costs_time_unless_connections_were_opened_ahead(tmp_path: Path):
    """An open loop opens 16 connections ahead; 30 before the first answer has ended need 14 more."""
    loads = [{"rate_per_s": 30.0, "arrival": "constant"}]
    engine = VirtualEngine(service=PerToken(Fixed(1.0), Fixed(0.1)), dial_s=0.2)
    run, _ = served_run(tmp_path, engine, loads=loads, trial=TRIAL | {"duration_s": 0.1})
    first = sorted(run.finished[0].requests, key=lambda request: request.planned_ns)[:30]
    assert [round(((r.sent_ns or 0) - r.planned_ns) / 1e9, 6) for r in first] == [0.0] * 16 + [0.2] * 14


@pytest.mark.parametrize(("aborts", "served_s"), [(True, 1.0), (False, 3.0)])
def test_a_request_that_is_given_up_frees_its_slot_or_is_served_to_its_end(
    tmp_path: Path, aborts: bool, served_s: float
):
    engine = VirtualEngine(service=Whole(Fixed(3.0)), slots=1, aborts=aborts)
    trial = TRIAL | {"timeout_s": 1.0, "ramp_s": 5.0}
    _, served = served_run(tmp_path, engine, loads=[{"concurrency": 1}], trial=trial)
    begun = [request.begun_ns for request in served if request.begun_ns is not None]
    assert (begun[1] - begun[0]) / 1e9 == pytest.approx(served_s)
    assert {request.ending for request in served} == {Ending.DROPPED}


def test_speed_varies_between_starts_and_trials(tmp_path: Path):
    engine = VirtualEngine(service=Whole(Fixed(0.1)), start_noise=0.1, trial_noise=0.1)
    _, served = served_run(tmp_path, engine, loads=LOADS[:1], repeats=2, trial=TRIAL | {"cache": "warm"})
    paces = {
        (request.trial, request.start): round((request.chunk_ns[-1] - (request.begun_ns or 0)) / 1e9, 4)
        for request in served
    }
    assert len(served) > 20
    assert len(set(paces.values())) == len(paces) == 2
    assert {request.phase for request in served} == {Phase.WARMUP, Phase.MEASURED}


def test_answers_in_a_batch_share_its_steps(tmp_path: Path):
    """A step takes 10 ms, 5 ms per answer, and 1 ms per prompt token: two slots need 28 ms to begin one answer."""
    engine = VirtualEngine(service=Batched(0.01, 0.005, 0.001), slots=2, short_share=0.5, short_length=0.6)
    run, served = served_run(tmp_path, engine, loads=[{"concurrency": 4}])
    (trial,) = run.finished
    assert trial.record.verdict is Verdict.VALID
    inside = [request for request in served if trial.record.window.holds(request.arrived_ns)]
    gaps_ms = {round(gap / 1e6, 3) for request in inside for gap in np.diff(request.chunk_ns)}
    assert gaps_ms <= {15.0, 20.0, 28.0, 36.0}
    assert 28.0 in gaps_ms, "the other answer began"
    assert {len(request.chunk_ns) for request in inside} == {3, 5}
    assert any(request.begun_ns != request.arrived_ns for request in inside), "some waited for a slot"
    sent = {(request.sent_ns, tuple(request.chunk_ns)) for request in trial.requests}
    assert sent == {(request.arrived_ns, tuple(request.chunk_ns)) for request in served}


@pytest.mark.parametrize(
    ("cached", "size", "step_ms"), [(None, None, 23.0), (4, None, 15.0), (4, 100_000, 15.0), (4, 8, 23.0)]
)
def test_a_batch_computes_only_what_its_cache_does_not_hold(
    tmp_path: Path, cached: int | None, size: int | None, step_ms: float
):
    engine = VirtualEngine(service=Batched(0.01, 0.005, 0.001), cache_block_tokens=cached, cache_tokens=size)
    _, served = served_run(tmp_path, engine, loads=[{"concurrency": 1}], trial=TRIAL | {"cache": "warm"})
    first = [request for request in served if request.phase is not Phase.WARMUP][:9]
    assert {round((request.chunk_ns[0] - request.arrived_ns) / 1e6, 3) for request in first} == {step_ms}


@pytest.mark.parametrize("aborts", [True, False])
@pytest.mark.parametrize("deaths", [(), (Death(at_s=3.0),)])
def test_whatever_ends_an_answer_its_blocks_can_be_evicted_again(
    tmp_path: Path, aborts: bool, deaths: tuple[Death, ...]
):
    faults = dict.fromkeys((Fault.RESET, Fault.STALL, Fault.SILENT, Fault.HTTP_500), 0.1)
    engine = VirtualEngine(
        cache_block_tokens=4, cache_tokens=400, slots=2, faults=faults, deaths=deaths, aborts=aborts
    )  # fmt: skip
    world = VirtualWorld({"a": engine})
    experiment = virtual_experiment(["a"], [{"concurrency": 4}], repeats=1, trial=TRIAL | {"timeout_s": 0.2})
    run_in(world, experiment, tmp_path)
    assert {served.ending for served in world.sites["a"].served} >= {Ending.COMPLETE, Ending.FAULT, Ending.DROPPED}
    (cache,) = world._caches.values()
    assert cache._blocks.pinned_blocks == 0
    assert 90 < len(cache._blocks) <= 100, "full but for the last blocks of answers"


@pytest.mark.parametrize("draw", [Fixed(2.0), Exponential(2.0), Lognormal(2.0, 0.5)])
def test_draws_have_their_mean_and_spread(draw: Fixed | Exponential | Lognormal):
    rng = Random(0)
    values = [draw.draw(rng) for _ in range(20_000)]
    cv = {Fixed: 0.0, Exponential: 1.0, Lognormal: 0.5}[type(draw)]
    assert (np.mean(values), np.std(values) / 2.0) == (pytest.approx(2.0, rel=0.02), pytest.approx(cv, abs=0.02))


@pytest.mark.parametrize("aborts", [True, False])
@pytest.mark.parametrize("fault", [Fault.RESET, Fault.STALL, Fault.SILENT, Fault.EMPTY, Fault.HTTP_500])
def test_faults_within_a_batch_leave_the_other_answers_alone(tmp_path: Path, fault: Fault, aborts: bool):
    engine = VirtualEngine(service=Batched(), slots=2, faults={fault: 0.3}, tokens_per_chunk=2, aborts=aborts)
    run, served = served_run(tmp_path, engine, trial=TRIAL | {"timeout_s": 1.0})
    requests = run.finished[0].requests
    answered = [request for request in requests if request.outcome is Outcome.OK and request.part == 1]
    assert {tuple(request.chunk_tokens) for request in answered} == {(2, 2, 1)}
    assert 0.1 < sum(request.outcome is not Outcome.OK for request in requests) / len(requests) < 0.6
    assert len(served) == len(requests)


@pytest.mark.parametrize(
    "wrong",
    [
        {"slots": 0},
        {"service": Batched(step_s=-1.0)},
        {"faults": {Fault.RESET: 1.5}},
        {"slowdown": 0.0},
        {"short_length": 0.0},
        {"cache_tokens": 8},
        {"cache_block_tokens": 4, "cache_tokens": 0},
    ],
)
def test_impossible_engines_are_refused(wrong: dict[str, Any]):
    with pytest.raises(ValueError, match="virtual engine"):
        VirtualEngine(**wrong)


def test_a_trial_that_the_machine_spoilt_is_measured_again_with_other_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The same lengths on the same start of the engine; the spoilt trial counts nowhere."""
    calls: list[int] = []

    def spoiling_first(evidence: Evidence) -> tuple[Verdict, list[Finding]]:
        calls.append(len(calls))
        verdict, findings = judge(evidence)
        return (verdict, findings) if len(calls) > 1 else (Verdict.INVALID, [*findings, FOREIGN])

    monkeypatch.setattr("bakeoff.harness.conduct.trial.judge", spoiling_first)
    run, _ = served_run(tmp_path, VirtualEngine(), repeats=2)
    first, again, second = run.finished
    assert [trial.record.id for trial in run.counted] == [again.record.id, second.record.id]
    assert again.record.replaces == first.record.id
    assert (again.record.repeat, first.record.workload_sha256) == (1, again.record.workload_sha256)
    assert first.record.traffic != again.record.traffic, "other words"
    starts = [event for event in run.log.events if isinstance(event, EngineStarting)]
    assert len(starts) == 2, "one for each repeat"
    assert (run.status, run.valid, run.planned) == (RunStatus.COMPLETE, 2, 2)
    (cell,) = run.cells
    assert (cell.valid, cell.planned, cell.intervals["ttft_p50_s"].n) == (2, 2, 2)
    assert results.load(run.path).log.plans == run.log.plans
