"""A run takes over what an earlier one has finished, if it would be the same measurement, and nothing else."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

import results
from engines import Model
from engines.registry import engine
from harness.experiment import Experiment, experiment_from
from harness.fingerprint import fingerprint
from harness.observer import PlainObserver
from harness.run import create_run, run_experiment
from results.errors import RunNotFound
from results.records import Load, RunStatus, TrialPlan
from results.store import RunFolder, earlier_run
from tests.harness.test_run import experiment, truth

MACHINE = {"cpu": "c", "cores": 2, "gpus": None}
BASE: dict[str, Any] = {
    "name": "t",
    "engines": [{"adapter": "reference", "options": {"block_size": 16}, "env": {"API_KEY": "sk-secret-1"}}],
    "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 5}},
    "loads": [{"concurrency": 1}],
}


def run(made: Experiment, out: Path, earlier: RunFolder | None = None) -> results.Run:
    async def scene() -> RunFolder:
        folder = create_run(made, out, earlier)
        await run_experiment(made, folder, PlainObserver(Console(quiet=True), made), earlier)
        return folder

    return results.load(asyncio.run(scene()).path)


def adopted(found: results.Run) -> dict[str, str | None]:
    return {trial.record.id: trial.record.adopted_from for trial in found.finished}


def test_finished_trials_are_taken_over_whole_and_the_rest_is_measured(tmp_path: Path):
    async def scene() -> None:
        async with truth() as url:
            made = experiment(tmp_path, url, repeats=1)
            first_folder = create_run(made, tmp_path / "runs")
            await run_experiment(made, first_folder, PlainObserver(Console(quiet=True), made))
            more = experiment(tmp_path, url, repeats=2)
            folder = create_run(more, tmp_path / "runs", first_folder)
            await run_experiment(more, folder, PlainObserver(Console(quiet=True), more), first_folder)
            first, second = results.load(first_folder.path), results.load(folder.path)
            assert second.status is RunStatus.COMPLETE
            assert second.manifest.resumed_from == first.manifest.run_id
            origin = first.manifest.run_id
            assert adopted(second) == {
                "r1-reference-1": origin, "r1-reference-2": origin, "r2-reference-1": None, "r2-reference-2": None
            }  # fmt: skip
            for old, new in zip(first.finished, second.finished, strict=False):
                assert new.requests == old.requests
                assert new.telemetry == old.telemetry
            third_folder = create_run(more, tmp_path / "runs", folder)
            await run_experiment(more, third_folder, PlainObserver(Console(quiet=True), more), folder)
            again = adopted(results.load(third_folder.path))
            assert again["r1-reference-1"] == origin
            assert again["r2-reference-1"] == second.manifest.run_id

    asyncio.run(scene())


def of(changes: dict[str, Any], **other: Any) -> str:
    made = experiment_from(msgspec.json.decode(msgspec.json.encode({**BASE, **changes})), "t")
    side = made.engines[0]
    model = Model("m", "/m", other.pop("sha256", "0" * 64))
    plan = TrialPlan("r1", side.shown, "random", other.pop("load", made.loads[0]), other.pop("repeat", 1))
    facts = {"traffic_sha256": "1" * 64, "machine": MACHINE, **other}
    return fingerprint(made, engine(side.adapter, model, side.options, made.spec_of(side), side), model, plan, **facts)


def side(**changes: Any) -> dict[str, Any]:
    return {"engines": [{**BASE["engines"][0], **changes}]}


@pytest.mark.parametrize(
    "changes",
    [
        side(options={"block_size": 32}),
        side(args=["--threads", "1"]),
        side(env={"OMP_NUM_THREADS": "1"}),
        side(spec={"dtype": "float32"}),
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
    assert of(changes) != of({})


@pytest.mark.parametrize(
    "facts",
    [
        {"sha256": "2" * 64},
        {"traffic_sha256": "2" * 64},
        {"machine": {**MACHINE, "cores": 4}},
        {"load": Load(concurrency=2)},
        {"repeat": 2},
    ],
)
def test_so_does_another_model_machine_traffic_load_or_repeat(facts: dict[str, Any]):
    assert of({}, **facts) != of({})


@pytest.mark.parametrize(
    "changes",
    [side(label="other"), side(port=9000), {"slo": {"ttft_s": 1.0}}, {"name": "u"}, {"repeats": 9},
     {"quality": {"samples": 9}}, {"engines": [*BASE["engines"], {"adapter": "reference", "label": "b"}]}],
)  # fmt: skip
def test_what_does_not_touch_the_figures_does_not(changes: dict[str, Any]):
    assert of(changes) == of({})


def test_the_fingerprint_does_not_depend_on_a_secrets_value():
    assert of(side(env={"API_KEY": "sk-secret-2"})) == of({})


def test_latest_is_the_newest_of_that_name(tmp_path: Path):
    made = experiment_from(BASE, "t")
    folders = [create_run(made, tmp_path) for _ in range(2)]
    other = create_run(experiment_from({**BASE, "name": "other"}, "t"), tmp_path)
    newest = max(folders, key=lambda folder: folder.path.name)
    assert earlier_run(tmp_path, "t", "latest").path == newest.path
    assert earlier_run(tmp_path, "other", "latest").path == other.path
    assert earlier_run(tmp_path, "t", str(other.path)).path == other.path
    with pytest.raises(RunNotFound, match="no run of 'absent'"):
        earlier_run(tmp_path, "absent", "latest")
    with pytest.raises(RunNotFound, match="is not a run folder"):
        earlier_run(tmp_path, "t", str(tmp_path / "nothing"))
