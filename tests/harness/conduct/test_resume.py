"""A run reuses exactly those finished trials of an earlier run that would be the same measurement."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bakeoff import results
from bakeoff.engines import Model
from bakeoff.engines.registry import engine
from bakeoff.engines.server_engine import ServerEngine
from bakeoff.harness.conduct.conductor import Conductor
from bakeoff.harness.conduct.policies.search_config import search_config
from bakeoff.harness.conduct.progress import trial_line
from bakeoff.harness.conduct.run import create_run
from bakeoff.harness.conduct.world import RealWorld
from bakeoff.harness.experiment.fingerprint import fingerprint
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.harness.virtual import VirtualEngine, VirtualWorld, run_in, virtual_experiment
from bakeoff.results.errors import RunNotFound
from bakeoff.results.log.run_log import TrialFinished
from bakeoff.results.log.store import RunFolder, earlier_run
from bakeoff.results.records import Load, RunStatus, TrialPlan
from tests.selection import sampled

MACHINE = {"cpu": "c", "cores": 2, "gpus": None}
BASE: dict[str, Any] = {
    "name": "t",
    "engines": [{"adapter": "reference", "options": {"block_size": 16}, "env": {"API_KEY": "sk-secret-1"}}],
    "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 5}},
    "loads": [{"concurrency": 1}],
}


def reused(run: results.Run) -> dict[str, str | None]:
    return {trial.record.id: trial.record.reused_from for trial in run.finished}


def test_engines_with_equal_settings_reuse_their_own_trials(tmp_path: Path):
    world = VirtualWorld(dict.fromkeys("ab", VirtualEngine(start_noise=0.1)))
    trial = {"ramp_s": 0.2, "duration_s": 1.2, "warm_up_s": 0.0}
    experiment = virtual_experiment(["a", "b"], [{"concurrency": 3}], repeats=2, trial=trial)
    first = run_in(world, experiment, tmp_path)
    second = run_in(world, experiment, tmp_path, earlier=RunFolder.open(first.path))
    assert None not in reused(second).values()
    values = [{trial.record.id: trial.metrics["itl_p50_s"].value for trial in run.finished} for run in (first, second)]
    assert values[0] == values[1]
    assert len(set(values[0].values())) == 4


def test_finished_trials_are_reused_and_the_rest_is_measured(tmp_path: Path):
    world = VirtualWorld({"a": VirtualEngine()})

    def run(repeats: int, earlier: results.Run | None = None) -> results.Run:
        loads = [{"concurrency": 3}, {"rate_per_s": 20.0, "arrival": "poisson"}]
        experiment = virtual_experiment(
            ["a"], loads, repeats=repeats, trial={"ramp_s": 0.2, "duration_s": 1.2, "warm_up_s": 0.0}
        )
        folder = RunFolder.open(earlier.path) if earlier else None
        return run_in(world, experiment, tmp_path, earlier=folder)

    first = run(repeats=1)
    second = run(repeats=2, earlier=first)
    origin = first.manifest.run_id
    assert second.status is RunStatus.COMPLETE
    assert second.manifest.resumed_from == origin
    assert reused(second) == {"r1-a-1": origin, "r1-a-2": origin, "r2-a-1": None, "r2-a-2": None}
    for old, new in zip(first.finished, second.finished, strict=False):
        assert new.requests == old.requests
        assert new.telemetry == old.telemetry
    again = reused(run(repeats=2, earlier=second))
    assert again["r1-a-1"] == origin
    assert again["r2-a-1"] == second.manifest.run_id
    assert trial_line(second.finished[0].record) == f"a c=3 r1: VALID, reused from {origin}"


def test_a_trial_without_its_partner_is_measured_again_with_it(tmp_path: Path):
    """Interrupted after A1 B1 B2: the pair is reused, and B2 is not. An engine that is added later leaves both."""
    trial, world = (
        {"ramp_s": 0.2, "duration_s": 1.2, "warm_up_s": 0.0},
        VirtualWorld(dict.fromkeys("abc", VirtualEngine())),
    )

    def run(*engines: str, earlier: results.Run | None = None) -> results.Run:
        experiment = virtual_experiment(engines, [{"concurrency": 3}], repeats=2, trial=trial)
        folder = RunFolder.open(earlier.path) if earlier else None
        return run_in(world, experiment, tmp_path, earlier=folder)

    first = run("a", "b")
    events = first.folder.read_log().events
    third = [number for number, event in enumerate(events) if isinstance(event, TrialFinished)][2]
    first.folder.write_log(events[: third + 1])
    second = run("a", "b", earlier=first)
    origin = first.manifest.run_id
    assert reused(second) == {"r1-a-1": origin, "r1-b-1": origin, "r2-b-1": None, "r2-a-1": None}
    added = reused(run("a", "b", "c", earlier=second))
    assert [name for name, source in added.items() if source is None] == ["r1-c-1", "r2-c-1"]


def test_a_resumed_run_that_reuses_nothing_says_so(tmp_path: Path):
    world = VirtualWorld({"a": VirtualEngine()})

    def run(min_requests: int, earlier: RunFolder | None = None) -> results.Run:
        trial = {"ramp_s": 0.2, "duration_s": 1.2, "warm_up_s": 0.0, "min_requests": min_requests}
        experiment = virtual_experiment(["a"], [{"concurrency": 3}], repeats=1, trial=trial)
        return run_in(world, experiment, tmp_path, earlier=earlier)

    first = run(5)
    assert not any("reused" in note for note in first.declared)
    second = run(6, RunFolder.open(first.path))
    assert second.declared[-1].startswith(f"no trial of {first.manifest.run_id} was reused: settings, code, ")


def test_another_build_of_the_same_version_is_another_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The fingerprint that ``--resume`` computes before anything starts, anew in each process."""

    def fingerprint_of_build(build: str) -> str:
        monkeypatch.setattr(ServerEngine, "build", lambda _: {"program_sha256": build})
        experiment = experiment_from(BASE, "t")
        model, config = Model("m", "/m", "0" * 64), experiment.engines[0]
        planner = SimpleNamespace(traffic=lambda *_, **__: SimpleNamespace(shape_sha256="1" * 64))
        prepared: Any = SimpleNamespace(
            experiment=experiment, model=model, engines={config.name: engine(config.adapter, model, config.options)},
            planner=planner, machine=MACHINE, world=RealWorld(),
        )  # fmt: skip
        unused: Any = None
        conductor = Conductor(prepared, RunFolder(tmp_path), unused, unused, runner=unused, warm_up=unused, reusable={})
        return conductor.fingerprint(experiment.plan()[0])

    assert fingerprint_of_build("1") == fingerprint_of_build("1")
    assert fingerprint_of_build("1") != fingerprint_of_build("2")


def fingerprint_of(changes: dict[str, Any], **other: Any) -> str:
    experiment = experiment_from(msgspec.json.decode(msgspec.json.encode({**BASE, **changes})), "t")
    config = experiment.engines[0]
    model = Model("m", "/m", other.pop("sha256", "0" * 64))
    plan = TrialPlan("r1", config.name, "random", other.pop("load", experiment.loads[0]), other.pop("repeat", 1))
    facts = {"build": {"program_sha256": "3" * 64}, "traffic_sha256": "1" * 64, "machine": MACHINE, **other}
    return fingerprint(experiment, model, plan, **facts)


def with_engine(**changes: Any) -> dict[str, Any]:
    return {"engines": [{**BASE["engines"][0], **changes}]}


@pytest.mark.parametrize(
    "changes",
    [
        with_engine(options={"block_size": 32}),
        with_engine(args=["--threads", "1"]),
        with_engine(env={"OMP_NUM_THREADS": "1"}),
        with_engine(spec={"dtype": "float32"}),
        {"spec": {"dtype": "float32"}},
        {"seed": 2},
        {"workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 6}}},
        {"trial": {"duration_s": 31}},
        {"trial": {"cache": "warm"}},
        {"client": {"workers": 2}},
        {"quality": {"logprobs": True}},
    ],
)
def test_whatever_may_change_a_figure_changes_the_fingerprint(changes: dict[str, Any]):
    assert fingerprint_of(changes) != fingerprint_of({})


@pytest.mark.parametrize(
    "facts",
    [
        {"sha256": "2" * 64},
        {"build": {"program_sha256": "4" * 64}},
        {"traffic_sha256": "2" * 64},
        {"machine": {**MACHINE, "cores": 4}},
        {"load": Load(concurrency=2)},
        {"repeat": 2},
    ],
)
def test_build_model_machine_traffic_load_and_repeat_change_the_fingerprint(facts: dict[str, Any]):
    assert fingerprint_of({}, **facts) != fingerprint_of({})


@pytest.mark.parametrize(
    "changes",
    [with_engine(label="other"), with_engine(port=9000), {"slo": {"ttft_s": 1.0}},
     with_engine(prices={"gpu_hour": 3.5}), {"prices": {"machine_hour": 1.0}}, {"api_prices": {"output": 10.0}},
     {"name": "u"}, {"repeats": 9},
     {"quality": {"samples": 9}}, {"engines": [*BASE["engines"], {"adapter": "reference", "label": "b"}]}],
)  # fmt: skip
def test_settings_that_cannot_change_a_figure_keep_the_fingerprint(changes: dict[str, Any]):
    assert fingerprint_of(changes) == fingerprint_of({})


def test_what_a_class_sends_is_part_of_the_fingerprint_and_its_slo_is_not():
    def classes(**changes: Any) -> dict[str, Any]:
        own = {"name": "a", "workload": {"name": "random", "options": {"output_tokens": 5}}, **changes}
        return {"workload": {"name": "classes"}, "classes": [own]}

    assert fingerprint_of(classes(slo={"ttft_s": 1.0})) == fingerprint_of(classes())
    assert fingerprint_of(classes(request={"top_k": 3})) != fingerprint_of(classes())
    assert fingerprint_of(classes(model="lora")) != fingerprint_of(classes())


def test_the_fingerprint_does_not_depend_on_a_secrets_value():
    assert fingerprint_of(with_engine(env={"API_KEY": "sk-secret-2"})) == fingerprint_of({})


def test_latest_is_the_newest_of_that_name(tmp_path: Path):
    experiment = experiment_from(BASE, "t")
    folders = [create_run(experiment, tmp_path) for _ in range(2)]
    other = create_run(experiment_from({**BASE, "name": "other"}, "t"), tmp_path)
    newest = max(folders, key=lambda folder: folder.path.name)
    assert earlier_run(tmp_path, "t", "latest").path == newest.path
    assert earlier_run(tmp_path, "other", "latest").path == other.path
    assert earlier_run(tmp_path, "t", str(other.path)).path == other.path
    with pytest.raises(RunNotFound, match="no run of 'absent'"):
        earlier_run(tmp_path, "absent", "latest")
    with pytest.raises(RunNotFound, match="is not a run folder"):
        earlier_run(tmp_path, "t", str(tmp_path / "nothing"))


@pytest.mark.parametrize("share", sampled([0.02, 0.3, 0.55, 0.8, 0.97], [0.02, 0.55]))
def test_a_cut_log_keeps_its_whole_events_and_the_run_can_be_resumed(tmp_path: Path, share: float):
    """``tests/acceptance/crash/log_cut.py`` cuts at 500 bytes."""
    engines = {"a": VirtualEngine()}
    experiment = virtual_experiment(["a"], [{"concurrency": 3}], repeats=3, trial={"duration_s": 1.2, "warm_up_s": 0.0})
    whole = run_in(VirtualWorld(engines), experiment, tmp_path / "whole")
    with whole.folder.log_path.open("r+b") as log:
        log.truncate(round(share * whole.folder.log_path.stat().st_size))
    left = list(whole.folder.read_log().finished)
    if share > 0.1:
        cut = results.load(whole.path)
        assert cut.status is RunStatus.INCOMPLETE
        assert [trial.metrics for trial in cut.finished] == [trial.metrics for trial in whole.finished[: len(left)]]
    resumed = run_in(VirtualWorld(engines), experiment, tmp_path / "resumed", earlier=whole.folder)
    assert resumed.status is RunStatus.COMPLETE
    origins = reused(resumed)
    assert [trial for trial, origin in origins.items() if origin] == left
    assert list(origins) == ["r1-a-1", "r2-a-1", "r3-a-1"]


def test_a_search_continues_an_interrupted_one(tmp_path: Path):
    engines = {"a": VirtualEngine(slots=4)}
    experiment = virtual_experiment(["a"], [{"concurrency": 2}], trial={"duration_s": 1.2, "warm_up_s": 0.0})
    config = search_config(experiment, "ttft_p50<100ms", trials=5)
    whole = run_in(VirtualWorld(engines), experiment, tmp_path / "whole", search=config)
    events = whole.folder.read_log().events
    third = [number for number, event in enumerate(events) if isinstance(event, TrialFinished)][2]
    whole.folder.write_log(events[: third + 1])
    resumed = run_in(VirtualWorld(engines), experiment, tmp_path / "resumed", search=config, earlier=whole.folder)
    assert list(reused(resumed).values()) == [whole.manifest.run_id] * 3 + [None] * 2
    assert resumed.search is not None
    assert whole.search is not None
    (again,), (once,) = resumed.search.engines, whole.search.engines
    assert (again.level, again.low, again.high, again.ended) == (once.level, once.low, once.high, once.ended)
    # the same trials at the same loads; a tie in a queue may be broken otherwise at another instant of virtual time
    tried = [[(attempt.trial, attempt.level, attempt.met) for attempt in search.attempts] for search in (again, once)]
    assert tried[0] == tried[1]
