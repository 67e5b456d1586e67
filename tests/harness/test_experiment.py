from pathlib import Path
from typing import Any

import pytest

from engines.errors import BadOption as BadEngineOption
from engines.errors import UnknownEngine
from harness.errors import BadExperiment
from harness.experiment import Experiment, experiment_from, load_experiment, with_client
from results.records import Load
from workloads import UnknownWorkload

GOOD: dict[str, Any] = {
    "name": "x",
    "engines": [{"adapter": "reference"}, {"adapter": "transformers"}],
    "loads": [{"concurrency": 1}, {"rate_per_s": 2.0, "arrival": "poisson"}],
    "workload": {"name": "chat"},
}


def made(**changes: Any) -> Experiment:
    return experiment_from({**GOOD, **changes}, "x.toml")


def test_the_demo_experiment_is_good():
    experiment = load_experiment(Path("harness/demo.toml"))
    assert [side.shown for side in experiment.engines] == ["reference", "transformers"]
    assert [load.label for load in experiment.loads] == ["c=1", "c=4", "c=8", "poisson 0.6/s"]
    assert experiment.repeats == 3


def test_the_plan_interleaves_repeats_and_turns_the_order_round():
    plan = made(repeats=3).plan()
    assert [(p.repeat, p.engine) for p in plan][::2] == [
        (1, "reference"), (1, "transformers"),
        (2, "transformers"), (2, "reference"),
        (3, "reference"), (3, "transformers"),
    ]  # fmt: skip
    assert len({p.id for p in plan}) == len(plan) == 12


def test_levels_have_seeds_of_their_own_and_engines_share_them():
    experiment = made(seed=7)
    assert experiment.traffic_seed(Load(concurrency=1)) == "7/c=1"
    assert experiment.traffic_seed(Load(concurrency=1)) != experiment.traffic_seed(Load(concurrency=4))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"repeat": 3}, BadExperiment, "x.toml has no option 'repeat'; did you mean 'repeats'?"),
        (
            {"trial": {"duration": 3}},
            BadExperiment,
            "x.toml: trial has no option 'duration'; did you mean 'duration_s'",
        ),
        ({"engines": [{"adaptor": "reference"}]}, BadExperiment, "engines[0] has no option 'adaptor'"),
        ({"engines": [{"adapter": "referense"}]}, UnknownEngine, "did you mean 'reference'?"),
        ({"engines": [{"adapter": "reference", "options": {"dtyp": "x"}}]}, BadEngineOption, "did you mean 'dtype'?"),
        ({"workload": {"name": "chatt"}}, UnknownWorkload, "did you mean 'chat'?"),
        ({"repeats": "three"}, BadExperiment, "Expected `int`, got `str`"),
        ({"repeats": 0}, BadExperiment, "repeats must be at least 1"),
        ({"name": "a/b"}, BadExperiment, "name may hold"),
        ({"engines": []}, BadExperiment, "engines is empty"),
        ({"loads": []}, BadExperiment, "loads is empty"),
        ({"engines": [{"adapter": "reference"}] * 2}, BadExperiment, "share a label"),
        ({"loads": [{"concurrency": 1}] * 2}, BadExperiment, "two loads are the same"),
        ({"loads": [{}]}, BadExperiment, "either concurrency or rate_per_s"),
        ({"loads": [{"concurrency": 0}]}, BadExperiment, "concurrency must be at least 1"),
        ({"loads": [{"rate_per_s": 1.0}]}, BadExperiment, "needs arrival"),
        ({"loads": [{"rate_per_s": -1.0, "arrival": "poisson"}]}, BadExperiment, "rate_per_s must be above 0"),
        ({"loads": [{"rate_per_s": 1.0, "arrival": "bursty"}]}, UnknownWorkload, "unknown arrival process 'bursty'"),
        ({"trial": {"duration_s": 0}}, BadExperiment, "duration_s must be above 0"),
    ],
)
def test_each_mistake_gets_one_line_that_names_the_remedy(changes: dict[str, Any], error: type[Exception], words: str):
    with pytest.raises(error) as caught:
        made(**changes)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_torn_one(tmp_path: Path):
    with pytest.raises(BadExperiment, match="does not exist"):
        load_experiment(tmp_path / "none.toml")
    torn = tmp_path / "torn.toml"
    torn.write_text('name = "x', encoding="utf-8")
    with pytest.raises(BadExperiment, match="is not TOML"):
        load_experiment(torn)
    with pytest.raises(BadExperiment, match="cannot be read"):
        load_experiment(tmp_path)


@pytest.mark.parametrize("address", ["auto", "head:6379", "10.0.0.1:6379", "[fd00::1]:6379", ""])
def test_a_cluster_is_auto_or_a_host_and_a_port(address: str):
    assert made(client={"ray": address}).client.ray == address


@pytest.mark.parametrize("address", ["head", ":6379", "head:", "ray://head:10001", "head:port"])
def test_anything_else_is_no_cluster(address: str):
    with pytest.raises(BadExperiment, match=r"client\.ray must be 'auto' or the host:port"):
        made(client={"ray": address})


def test_the_client_of_the_command_line_stands_above_the_files():
    experiment = made(client={"workers": 2, "cores": [0, 1], "transport": "aiohttp"})
    assert with_client(experiment, None, None) == experiment
    changed = with_client(experiment, None, "head:6379")
    assert (changed.client.ray, changed.client.workers, changed.client.transport) == ("head:6379", 2, "aiohttp")
    with pytest.raises(BadExperiment, match=r"client\.cores must name one core"):
        with_client(experiment, 3, None)
    with pytest.raises(BadExperiment, match=r"client\.workers must be at least 1"):
        with_client(made(), 0, None)
