"""Profiled trials: planned beside the plain ones, recorded, and left out of every result."""

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bakeoff import results
from bakeoff.engines import Deployment, Model, attached, engine
from bakeoff.engines.adapters.reference import ReferenceEngine
from bakeoff.engines.errors import StepLogMissing
from bakeoff.engines.server import Server
from bakeoff.harness.cli import make_app
from bakeoff.harness.cli.guarded import guarded
from bakeoff.harness.conduct import conductor
from bakeoff.harness.conduct.kernels import record_kernels
from bakeoff.harness.conduct.world import inside
from bakeoff.harness.errors import BadExperiment
from bakeoff.harness.experiment.fingerprint import fingerprint
from bakeoff.harness.experiment.reading import profiling
from bakeoff.harness.virtual import VirtualEngine, VirtualWorld, run_in, virtual_experiment
from bakeoff.results.attribution import Latency, Part
from bakeoff.results.attribution.roofline import Roofline
from bakeoff.results.export.tables import Format, Table, table
from bakeoff.results.files.frames import FrameAppender
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding, Severity
from bakeoff.results.log.run_log import TrialFinished
from bakeoff.results.log.step_costs import StepCost, TrialCosts
from bakeoff.results.log.step_log import RequestQueued, StepRecord
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.machine.ceilings import Ceilings, store_ceilings
from bakeoff.results.records import TrialRecord, Verdict
from bakeoff.results.report import render_html
from bakeoff.results.report.attribution import profiled_trials
from bakeoff.results.trace import write_traces
from bakeoff.results.trace.kernels import read_kernels
from tests.results.amending import amend_trial

TRIAL: dict[str, Any] = {"warm_up_s": 0.0, "duration_s": 0.5, "ramp_s": 0.1, "min_requests": 2}


def experiment(**changes: Any):
    loads = [{"concurrency": 1}, {"concurrency": 2}]
    return profiling(virtual_experiment(["a", "b"], loads, trial=TRIAL, **{"repeats": 2, **changes}))


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the engine write a log of one step per trial; returns its folder."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()

    async def start(self: ReferenceEngine, server: Server) -> None:
        assert self.setup.options.step_log_dir == "{file:step-log}"

    async def stop(self: ReferenceEngine, server: Server) -> list[str]:
        number = len(list(folder.iterdir()))
        steps, front_end = folder / f"steps-9-{number}.frames", folder / f"front-end-9-{number}.frames"
        with FrameAppender(steps) as log:
            log.append(RequestQueued(0, "other-0", 4, 1, 2))
            log.append(StepRecord(0, 1, 2, 3, [], [], 1, 0, 1))
        front_end.touch()
        return [str(steps), str(front_end)]

    monkeypatch.setattr(ReferenceEngine, "start_step_log", start)
    monkeypatch.setattr(ReferenceEngine, "stop_step_log", stop)
    return folder


def test_the_first_trial_of_each_engine_and_level_is_followed_by_a_profiled_one():
    plan = experiment().plan()
    assert [p.id for p in plan][:8] == [
        "r1-a-1", "r1-a-1-profiled", "r1-a-2", "r1-a-2-profiled",
        "r1-b-1", "r1-b-1-profiled", "r1-b-2", "r1-b-2-profiled",
    ]  # fmt: skip
    assert [p.profiled for p in plan] == [False, True] * 4 + [False] * 4


def test_engines_that_record_nothing_are_named():
    other = virtual_experiment(["a"], [{"concurrency": 1}], engines=[{"adapter": "transformers"}])
    with pytest.raises(BadExperiment, match=r"no engine can be profiled \(transformers\)"):
        profiling(other)
    mixed = msgspec.structs.replace(other, engines=[*other.engines, *experiment().engines])
    assert [p.id for p in profiling(mixed).plan() if p.profiled] == ["r1-a-1-profiled", "r1-b-1-profiled"]


def test_no_metric_counts_a_profiled_trial(tmp_path: Path, recording: Path):
    engines = {"a": VirtualEngine(), "b": VirtualEngine()}
    profiled = run_in(VirtualWorld(engines), experiment(), tmp_path / "profiled")
    plain = run_in(VirtualWorld(engines), msgspec.structs.replace(experiment(), profile=False), tmp_path / "plain")
    assert profiled.status == "complete"
    assert [trial.record.id for trial in profiled.finished] == [trial.record.id for trial in plain.finished]
    assert len(profiled.profiled) == 4
    assert [cell.valid for cell in profiled.cells] == [2] * 4
    assert [(cell.planned, set(cell.intervals)) for cell in profiled.cells] == [
        (cell.planned, set(cell.intervals)) for cell in plain.cells
    ]
    assert set(profiled.requests.trial) == set(plain.requests.trial)


def test_the_record_of_steps_is_moved_into_the_trial_and_read(tmp_path: Path, recording: Path):
    run = run_in(VirtualWorld({"a": VirtualEngine(), "b": VirtualEngine()}), experiment(repeats=1), tmp_path / "runs")
    assert list(recording.iterdir()) == []
    for trial in run.profiled:
        folder = run.folder.trial(trial.record.id).path
        assert (folder / "steps-0.frames").exists()
        assert (folder / "front-end-0.frames").exists()
        assert trial.record.profiled
        assert trial.record.step_log_missing is None
    assert not any(run.folder.trial(trial.record.id).read_steps() for trial in run.finished)
    attribution = run.attributions[0]
    assert len(attribution.steps[0].records) == 1
    parts_s = attribution.requests[0].parts[Latency.E2E]  # the record has none of these requests
    assert {part for part, seconds in parts_s.items() if seconds} == {Part.UNATTRIBUTED}
    assert "the server recorded only 0 of" in str(attribution.unknown)
    frame = run.attribution
    sums = frame[frame.latency == "e2e"].groupby(["trial", "request"]).seconds.sum()
    assert sums.min() > 0
    assert table(run, Table.ATTRIBUTION, Format.CSV).startswith(b'"trial","engine","load","request","latency","part"')
    assert "does not say which model" in str(attribution.roofline)  # a virtual engine has no settings
    assert "Where the latency comes from" in render_html(run)
    assert [path.parent.name for path in write_traces(run)] == [trial.record.id for trial in run.profiled]


def test_invalid_trials_are_marked_and_tell_no_overhead(
    tmp_path: Path, recording: Path, capsys: pytest.CaptureFixture[str]
):
    run = run_in(VirtualWorld({"a": VirtualEngine(), "b": VirtualEngine()}), experiment(repeats=1), tmp_path / "runs")
    finding = Finding(FindingCode.NOT_STEADY, Severity.INVALID, {"change_share": 0.2})
    for trial in ("r1-a-1-profiled", "r1-a-2"):
        amend_trial(run.path, trial, verdict=Verdict.INVALID.value, findings=[msgspec.to_builtins(finding)])
    run = results.load(run.path)
    profiled, beside_invalid, valid, _ = profiled_trials(run)
    reason = "throughput changed by 20 % across the window; raise trial.duration_s (--duration of bench)"
    assert profiled.sentence.startswith(f"INVALID: {reason}. nothing to attribute: ")
    assert profiled.notes[-1] == f"overhead: unknown, because the profiled trial is INVALID: {reason}"
    assert not beside_invalid.sentence.startswith("INVALID")
    assert beside_invalid.notes[-1] == f"overhead: unknown, because the plain trial is INVALID: {reason}"
    assert valid.notes[-1].startswith("overhead of the record, one trial each: ")
    assert f"<p>INVALID: {reason}. nothing to attribute: " in render_html(run)
    capsys.readouterr()
    assert guarded(make_app(), ["report", str(run.path), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["invalid"]) == {"r1-a-1-profiled", "r1-a-2"}


def test_ceilings_and_costs_of_steps_are_kept_with_the_run(tmp_path: Path, recording: Path):
    world = VirtualWorld({"a": VirtualEngine(), "b": VirtualEngine()})
    here = world.provenance().environment
    device = Ceilings("cpu", "CPU", 1 << 30, 30e9, 30e9, {"bfloat16": 2e11})
    store_ceilings(tmp_path / "runs", here, [device])
    run = run_in(world, experiment(repeats=1), tmp_path / "runs")
    assert run.manifest.ceilings == [device]
    (tmp_path / "runs" / "ceilings.json").unlink()
    assert results.load(run.path).ceilings == [device]
    for trial in run.profiled:
        costs = run.folder.trial(trial.record.id).read_step_costs()
        assert costs is not None
        assert costs.missing is not None


def test_a_damaged_step_log_costs_no_measurement(tmp_path: Path, recording: Path, monkeypatch: pytest.MonkeyPatch):
    stop = ReferenceEngine.stop_step_log

    def damage(path: str) -> None:
        Path(path).write_bytes(b"\x00\x00\x00\x01\xc1")  # c1 begins no value of msgpack

    async def damaged(self: ReferenceEngine, server: Server) -> list[str]:
        paths = await stop(self, server)
        damage(paths[0])
        return paths

    monkeypatch.setattr(ReferenceEngine, "stop_step_log", damaged)
    run = run_in(VirtualWorld({"a": VirtualEngine(), "b": VirtualEngine()}), experiment(repeats=1), tmp_path)
    assert run.status == "complete"
    assert len(run.profiled) == 4
    costs = run.folder.trial(run.profiled[0].record.id).read_step_costs()
    assert costs is not None
    assert "steps-0.frames: the frame at byte 4 is damaged" in str(costs.missing)
    assert str(run.attributions[0].missing) == costs.missing


def test_damaged_ceilings_stop_neither_a_run_nor_its_attribution(tmp_path: Path, recording: Path):
    root = tmp_path / "runs"
    store_ceilings(root, {}, []).write_text("{", encoding="utf-8")
    run = run_in(VirtualWorld({"a": VirtualEngine(), "b": VirtualEngine()}), experiment(repeats=1), root)
    for trial in run.profiled:
        run.folder.trial(trial.record.id).write_step_costs(TrialCosts(device="cpu", steps=[[StepCost(1.0, 2.0)]]))
    undescribed = [
        msgspec.structs.replace(event, record=msgspec.structs.replace(event.record, files={}))
        if isinstance(event, TrialFinished)
        else event
        for event in run.folder.read_log().events
    ]
    run.folder.write_log(undescribed)
    for attribution in results.load(run.path).attributions:
        assert attribution.missing is None
        assert isinstance(attribution.roofline, Roofline)
        assert "ceilings.json is damaged" in str(attribution.roofline.ceiling)


def test_damaged_costs_of_steps_leave_the_rest_of_the_attribution(tmp_path: Path, recording: Path):
    run = run_in(VirtualWorld({"a": VirtualEngine(), "b": VirtualEngine()}), experiment(repeats=1), tmp_path)
    trial = run.profiled[0].record.id
    (run.folder.trial(trial).path / "step-costs.json").write_text("{", encoding="utf-8")
    attribution = results.load(run.path).attributions[0]
    assert attribution.missing is None
    assert len(attribution.steps[0].records) == 1
    assert "step-costs.json" in str(attribution.roofline)


def test_plain_runs_do_not_read_ceilings(tmp_path: Path):
    world = VirtualWorld({"a": VirtualEngine(), "b": VirtualEngine()})
    device = Ceilings("cpu", "CPU", 1 << 30, 30e9, 30e9, {"bfloat16": 2e11})
    store_ceilings(tmp_path, world.provenance().environment, [device])
    run = run_in(world, msgspec.structs.replace(experiment(repeats=1), profile=False), tmp_path)
    assert run.manifest.ceilings == []


def test_ceilings_that_are_measured_after_the_run_count_too(tmp_path: Path, recording: Path):
    world = VirtualWorld({"a": VirtualEngine(), "b": VirtualEngine()})
    run = run_in(world, experiment(repeats=1), tmp_path / "runs")
    assert run.ceilings == []
    device = Ceilings("cpu", "CPU", 1 << 30, 30e9, 30e9, {"bfloat16": 2e11})
    store_ceilings(tmp_path / "runs", run.manifest.environment, [device])
    assert results.load(run.path).ceilings == [device]


def test_a_server_that_does_not_record_is_measured_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def refuse(self: ReferenceEngine, server: Server) -> None:
        raise StepLogMissing("HTTP 400: start the server with --step-log-dir")

    monkeypatch.setattr(ReferenceEngine, "start_step_log", refuse)
    run = run_in(VirtualWorld({"a": VirtualEngine(), "b": VirtualEngine()}), experiment(repeats=1), tmp_path)
    assert {trial.record.step_log_missing for trial in run.profiled} == {
        "HTTP 400: start the server with --step-log-dir"
    }
    assert run.attributions[0].missing == "HTTP 400: start the server with --step-log-dir"


def test_a_damaged_record_does_not_spoil_the_rest(tmp_path: Path, recording: Path):
    run = run_in(VirtualWorld({"a": VirtualEngine(), "b": VirtualEngine()}), experiment(repeats=1), tmp_path / "runs")
    broken = run.folder.trial("r1-a-1-profiled").path / "steps-0.frames"
    broken.write_bytes(b"\0\0\0\1x")
    again = results.load(run.path)
    assert "damaged" in (again.attributions[0].missing or "")
    assert again.attributions[1].missing is None


def test_a_profiled_trial_is_another_measurement_than_a_plain_one():
    plain = experiment()
    plan = plain.plan()
    prints = {fingerprint(plain, Model("m"), p, build={}, traffic_sha256="", machine={}) for p in plan[:2]}
    assert len(prints) == 2


def test_profile_prints_the_parts_and_writes_a_trace(
    tmp_path: Path, recording: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "experiment.toml"
    file.write_text(
        'name = "p"\nworkload = { name = "random", options = { input_tokens = 8, output_tokens = 5 } }\n'
        '[[engines]]\nadapter = "reference"\n[[loads]]\nconcurrency = 1\n[trial]\nduration_s = 5\nramp_s = 0.5\n'
        "warm_up_s = 0\n",
        encoding="utf-8",
    )
    with inside(VirtualWorld({"reference": VirtualEngine()})):
        assert guarded(make_app(), ["profile", str(file), "--out", str(tmp_path / "runs"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    (attribution,) = summary["attribution"]
    assert attribution["trial"] == "r1-reference-1-profiled"
    assert Path(summary["traces"][0]).name == "trace.perfetto-trace"
    assert guarded(make_app(), ["report", summary["run"]]) == 0
    text = capsys.readouterr().out
    assert "Where the time goes, c=1, reference" in text
    assert "trace: " in text


def test_kernels_are_recorded_behind_the_profiled_trial(
    tmp_path: Path, recording: Path, monkeypatch: pytest.MonkeyPatch
):
    async def begin(self: ReferenceEngine, server: Server) -> None:
        pass

    async def end(self: ReferenceEngine, server: Server) -> list[str]:
        path = recording.parent / "step-loop.json.gz"
        path.write_bytes(gzip.compress(b'{"traceEvents": [], "baseTimeNanoseconds": 0}'))
        return [str(path)]

    monkeypatch.setattr(ReferenceEngine, "start_kernels", begin)
    monkeypatch.setattr(ReferenceEngine, "stop_kernels", end)
    chosen = msgspec.structs.replace(experiment(repeats=1), kernels=True)
    run = run_in(VirtualWorld({"a": VirtualEngine(), "b": VirtualEngine()}), chosen, tmp_path / "runs")
    trial = run.profiled[0]
    assert trial.record.kernels_missing is None
    inner = run.folder.trial(trial.record.id).kernels
    assert [path.name for path in inner.kernel_logs()] == ["kernels-0.json.gz"]
    sent = [stream for log in inner.stream_logs() for stream in log]
    assert len({stream.session for stream in sent}) > 1
    assert len(trial.requests) == len(list(run.folder.trial(trial.record.id).read_streams()))  # none of them counts
    assert [len(record.kernels) for record in read_kernels(run.folder.trial(trial.record.id))] == [0]

    async def refuse(self: ReferenceEngine, server: Server) -> None:
        raise StepLogMissing("HTTP 400: there is no place for a profile")

    monkeypatch.setattr(ReferenceEngine, "start_kernels", refuse)
    run = run_in(VirtualWorld({"a": VirtualEngine(), "b": VirtualEngine()}), chosen, tmp_path / "refused")
    assert run.profiled[0].record.kernels_missing == "HTTP 400: there is no place for a profile"
    with pytest.raises(BadExperiment, match="kernels belong to profiled trials"):
        virtual_experiment(["a"], [{"concurrency": 1}], kernels=True)


def test_an_engine_that_cannot_record_kernels_is_named(tmp_path: Path):
    async def load(_: TrialFolder) -> None:
        raise AssertionError

    async def why() -> str | None:
        tgi = engine("tgi", Model("m"), {}, deployment=Deployment(url="http://a"))
        return await record_kernels(tgi, attached("http://a"), TrialFolder(tmp_path), load)

    assert asyncio.run(why()) == "the adapter 'tgi' cannot record them"


def test_answers_of_profiled_trials_are_not_compared(tmp_path: Path, recording: Path, monkeypatch: pytest.MonkeyPatch):
    compared: list[str] = []

    async def compare(records: list[TrialRecord], *_: object, **__: object) -> None:
        compared.extend(record.id for record in records)

    monkeypatch.setattr(conductor, "check_quality", compare)
    monkeypatch.setattr(VirtualWorld, "has_reference", True)
    run_in(VirtualWorld({"a": VirtualEngine(), "b": VirtualEngine()}), experiment(repeats=1), tmp_path / "runs")
    assert compared == ["r1-a-1", "r1-a-2", "r1-b-1", "r1-b-2"]
