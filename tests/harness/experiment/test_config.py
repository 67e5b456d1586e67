import math
from pathlib import Path
from typing import Any

import pytest

from bakeoff.engines.errors import BadOption as BadEngineOption
from bakeoff.engines.errors import UnknownEngine
from bakeoff.harness.conduct.run import create_run
from bakeoff.harness.errors import BadExperiment
from bakeoff.harness.experiment.config import ClientConfig, Experiment, QualityConfig, TrialConfig
from bakeoff.harness.experiment.reading import experiment_from, load_experiment, with_client
from bakeoff.results import ResultsError
from bakeoff.results.records import Cache, Load, Slo
from bakeoff.workloads import BadOption, UnknownWorkload

ROOT = Path(__file__).parents[3]
GOOD: dict[str, Any] = {
    "name": "x",
    "engines": [{"adapter": "reference"}, {"adapter": "transformers"}],
    "loads": [{"concurrency": 1}, {"rate_per_s": 2.0, "arrival": "poisson"}],
    "workload": {"name": "chat"},
}


def build(**changes: Any) -> Experiment:
    return experiment_from({**GOOD, **changes}, "x.toml")


def test_the_demo_experiment_is_good():
    experiment = load_experiment(Path("harness/demo.toml"))
    assert [engine.name for engine in experiment.engines] == ["reference", "transformers"]
    assert [load.label for load in experiment.loads] == ["c=4"]
    assert experiment.repeats == 3


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("benchmarks/*/*.toml")) + sorted(ROOT.glob("docs/**/*.toml")), ids=lambda path: path.stem
)
def test_experiments_of_the_repository_are_good(path: Path):
    assert load_experiment(path).plan()


def test_every_second_repeat_has_the_reverse_order():
    plan = build(repeats=3).plan()
    a, b = ("reference", "c=1"), ("reference", "poisson 2/s")
    c, d = ("transformers", "c=1"), ("transformers", "poisson 2/s")
    assert [(p.engine, p.load.label) for p in plan] == [a, b, c, d, d, c, b, a, a, b, c, d]
    assert [p.repeat for p in plan] == [1] * 4 + [2] * 4 + [3] * 4
    assert len({p.id for p in plan}) == 12


def test_an_engine_is_measured_at_its_own_levels_only():
    engines = [{"adapter": "reference"}, {"adapter": "transformers", "loads": ["c=1"]}]
    plan = build(engines=engines, repeats=1).plan()
    assert [p.id for p in plan] == ["r1-reference-1", "r1-reference-2", "r1-transformers-1"]


def test_levels_have_seeds_of_their_own_and_engines_share_them():
    experiment = build(seed=7)
    assert experiment.traffic_seed(Load(concurrency=1)) == "7/c=1"
    assert experiment.traffic_seed(Load(concurrency=1)) != experiment.traffic_seed(Load(concurrency=4))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"repeat": 3}, BadExperiment, "x.toml has no option 'repeat'; did you mean 'repeats'?"),
        (
            {"trial": {"duration": 3}},
            BadExperiment,
            "x.toml: trial has no option 'duration'; did you mean 'duration_s'",
        ),
        ({"engines": [{"adaptor": "reference"}]}, BadExperiment, "engines[0] has no option 'adaptor'"),
        ({"engines": [{"adapter": "referense"}]}, UnknownEngine, "did you mean 'reference'?"),
        ({"engines": [{"adapter": "reference", "options": {"devise": 1}}]}, BadEngineOption, "did you mean 'device'?"),
        ({"workload": {"name": "chatt"}}, UnknownWorkload, "did you mean 'chat'?"),
        ({"repeats": "three"}, BadExperiment, "Expected `int`, got `str`"),
        ({"repeats": 0}, BadExperiment, "repeats must be at least 1"),
        ({"name": "a/b"}, BadExperiment, "name may only have letters"),
        ({"engines": []}, BadExperiment, "engines is empty"),
        ({"loads": []}, BadExperiment, "loads is empty"),
        ({"engines": [{"adapter": "reference"}] * 2}, BadExperiment, "share a label"),
        ({"loads": [{"concurrency": 1}] * 2}, BadExperiment, "two loads are equal"),
        (
            {"engines": [{"adapter": "reference", "loads": ["c=2"]}]},
            BadExperiment,
            "engine 'reference' has the load 'c=2', which is none of c=1, poisson 2/s",
        ),
        ({"trial": {"duration_s": 0}}, BadExperiment, "duration_s must be above 0"),
        ({"trial": {"max_requests": 0}}, BadExperiment, "trial.max_requests must be at least 1"),
        ({"trial": {"ramp_s": -1.0}}, BadExperiment, "trial.ramp_s must not be negative"),
        ({"trial": {"duration_s": 9, "max_window_s": 8}}, BadExperiment, "max_window_s must be at least trial.dur"),
        ({"trial": {"warmup_requests": 2}}, BadExperiment, "trial has no option 'warmup_requests'"),
        ({"loads": [{"concurrency": 1, "ramp_s": 1.0}]}, BadExperiment, "loads[0] has no option 'ramp_s'"),
        ({"trial": {"cache": "hot"}}, BadExperiment, "Invalid enum value 'hot' - at `$.trial.cache`"),
        ({"workload": {"name": "trace"}}, BadOption, "workload 'trace': Object missing required field `path`"),
        ({"workload": {"name": "rag", "options": {"scal": 1}}}, BadOption, "did you mean 'scale'?"),
    ],
)
def test_each_mistake_gets_one_line_that_names_the_remedy(
    changes: dict[str, Any], error: type[Exception], message: str
):
    with pytest.raises(error) as caught:
        build(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


POISSON = {"rate_per_s": 2.0, "arrival": "poisson"}


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ({}, "a load has either concurrency or rate_per_s with arrival"),
        ({"concurrency": 1, **POISSON}, "a load has either concurrency or rate_per_s with arrival"),
        ({"concurrency": 1, "arrival": "workload"}, "a load has either concurrency or rate_per_s with arrival"),
        ({"concurrency": 0}, "concurrency must be at least 1, not 0"),
        ({"concurrency": 10**9}, "concurrency must be at most 100000, not 1000000000"),
        ({**POISSON, "rate_per_s": 1e7}, "rate_per_s must be at most 100000, not 10000000.0"),
        ({**POISSON, "rate_per_s": math.nan}, "rate_per_s must be above 0, not nan"),
        ({**POISSON, "rate_per_s": 90_000.0}, "is a plan of more than 1,000,000 requests; lower rate_per_s"),
        ({"arrival": "workload", "time_warp": math.inf}, "time_warp must be at most 1e+06, not inf"),
        ({"arrival": "workload", "time_warp": math.nan}, "time_warp must be above 0, not nan"),
        ({"concurrency": 1, "rate_per_s": 2.0}, "rate_per_s belongs to a load with arrival"),
        ({"rate_per_s": 1.0}, "a load with rate_per_s needs arrival, such as 'poisson'"),
        ({**POISSON, "rate_per_s": -1.0}, "rate_per_s must be above 0, not -1.0"),
        ({"arrival": "poisson"}, "arrival 'poisson' needs rate_per_s"),
        ({**POISSON, "time_warp": 2.0}, "time_warp belongs to a load with arrival = 'workload'"),
        ({"concurrency": 1, "time_warp": 2.0}, "time_warp belongs to a load with arrival = 'workload'"),
        ({"arrival": "workload", "time_warp": 2.0, "rate_per_s": 1.0}, "a load has either time_warp or rate_per_s"),
        ({"arrival": "workload", "time_warp": 0.0}, "time_warp must be above 0, not 0.0"),
        (
            {"arrival": "workload", "arrival_options": {"burstiness": 1.0}},
            "arrival_options belong to a named arrival process",
        ),
        ({"concurrency": 1, "arrival_options": {"a": 1}}, "arrival_options belong to a named arrival process"),
        ({"concurrency": 1, "max_in_flight": 4}, "max_in_flight belongs to a load with arrival"),
        ({**POISSON, "max_in_flight": 0}, "max_in_flight must be at least 1, not 0"),
    ],
)
def test_a_contradictory_load_is_refused_with_the_remedy(load: dict[str, Any], message: str):
    with pytest.raises(BadExperiment) as caught:
        build(loads=[load])
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("load", "error", "message"),
    [
        (
            {**POISSON, "arrival": "posson"},
            UnknownWorkload,
            "unknown arrival process 'posson'; did you mean 'poisson'?",
        ),
        (
            {**POISSON, "arrival_options": {"burst": 1}},
            BadOption,
            "arrival process 'poisson' has no option 'burst'; it has none",
        ),
        (
            {"rate_per_s": 1.0, "arrival": "gamma", "arrival_options": {"burstines": 1}},
            BadOption,
            "has no option 'burstines'; did you mean 'burstiness'?",
        ),
    ],
)
def test_an_arrival_process_is_checked_before_anything_runs(load: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error) as caught:
        build(loads=[load])
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("load", "label"),
    [
        ({"concurrency": 8}, "c=8"),
        ({"rate_per_s": 0.8, "arrival": "poisson"}, "poisson 0.8/s"),
        ({"rate_per_s": 50, "arrival": "constant", "max_in_flight": 16}, "constant 50/s ≤16"),
        ({"arrival": "workload"}, "workload"),
        ({"arrival": "workload", "time_warp": 10.0}, "workload ×10"),
        ({"arrival": "workload", "rate_per_s": 2.5}, "workload 2.5/s"),
        (
            {"rate_per_s": 2.0, "arrival": "gamma", "arrival_options": {"burstiness": 0.5}},
            "gamma 2/s burstiness=0.5",
        ),
    ],
)
def test_every_load_has_a_label_of_its_own(load: dict[str, Any], label: str):
    (parsed,) = build(loads=[load]).loads
    assert parsed.label == label


def test_loads_that_differ_in_anything_are_different():
    gamma = {"rate_per_s": 2.0, "arrival": "gamma"}
    loads = [
        {"arrival": "workload"}, {"arrival": "workload", "time_warp": 2.0}, {"arrival": "workload", "rate_per_s": 2.0},
        POISSON, {**POISSON, "max_in_flight": 3}, gamma, {**gamma, "arrival_options": {"burstiness": 0.5}},
        {**gamma, "arrival_options": {"burstiness": 0.25}}, {"concurrency": 2},
    ]  # fmt: skip
    experiment = build(loads=loads)
    assert len({experiment.traffic_seed(load) for load in experiment.loads}) == len(loads)


def test_the_cache_is_cold_by_default():
    assert build().trial.cache is Cache.COLD
    assert build(trial={"cache": "primed"}).trial.cache is Cache.PRIMED
    assert build(trial={"cache": "warm"}).trial.cache is Cache.WARM


def test_missing_and_malformed_files(tmp_path: Path):
    with pytest.raises(BadExperiment, match="does not exist"):
        load_experiment(tmp_path / "none.toml")
    torn = tmp_path / "torn.toml"
    torn.write_text('name = "x', encoding="utf-8")
    with pytest.raises(BadExperiment, match="is not TOML"):
        load_experiment(torn)
    with pytest.raises(ResultsError, match="is not a run folder"):
        load_experiment(tmp_path)


def test_a_run_folder_is_its_experiment_unless_a_key_is_concealed(tmp_path: Path):
    known = build(loads=[{"concurrency": 3}], trial={"duration_s": 7.0})
    folder = create_run(known, tmp_path)
    assert load_experiment(folder.path) == known
    secret = build(engines=[{"adapter": "openai", "url": "http://127.0.0.1:9", "headers": {"x-api-key": "sk-123456"}}])
    with pytest.raises(BadExperiment, match="conceals a key of its experiment; give the experiment's file"):
        load_experiment(create_run(secret, tmp_path).path)


@pytest.mark.parametrize("address", ["auto", "head:6379", "10.0.0.1:6379", "[fd00::1]:6379", ""])
def test_a_cluster_is_auto_or_a_host_and_a_port(address: str):
    assert build(client={"ray": address}).client.ray == address


@pytest.mark.parametrize("address", ["head", ":6379", "head:", "ray://head:10001", "head:port"])
def test_anything_else_is_no_cluster(address: str):
    with pytest.raises(BadExperiment, match=r"client\.ray must be 'auto' or the host:port"):
        build(client={"ray": address})


def test_command_line_options_override_the_client():
    experiment = build(client={"workers": 2, "cores": [0, 1], "transport": "aiohttp"})
    assert with_client(experiment, None, None) == experiment
    changed = with_client(experiment, None, "head:6379")
    assert (changed.client.ray, changed.client.workers, changed.client.transport) == ("head:6379", 2, "aiohttp")
    with pytest.raises(BadExperiment, match=r"client\.cores must name one core"):
        with_client(experiment, 3, None)
    with pytest.raises(BadExperiment, match=r"client\.workers must be at least 1"):
        with_client(build(), 0, None)


def numbers() -> list[str]:
    """The keys of tables and fields whose default is a number that is no switch."""
    tables = {"trial": TrialConfig(), "client": ClientConfig(), "quality": QualityConfig()}
    return [
        f"{table}.{name}"
        for table, config in tables.items()
        for name in config.__struct_fields__
        if isinstance(default := getattr(config, name), int | float) and not isinstance(default, bool)
    ]


@pytest.mark.parametrize("key", numbers())
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1, 10**13, 10**19])
def test_a_number_out_of_range_is_refused_in_one_line_that_names_it(key: str, value: float):
    table, name = key.split(".")
    with pytest.raises(BadExperiment) as caught:
        build(**{table: {name: value}})
    assert name in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0])
@pytest.mark.parametrize("bound", Slo.__struct_fields__)
def test_a_bound_that_no_request_can_meet_or_miss_is_refused(bound: str, value: float):
    with pytest.raises(BadExperiment, match="each bound of slo must be a number of seconds above 0"):
        build(slo={bound: value})


def test_too_many_workers_are_refused_wherever_they_are_given():
    with pytest.raises(BadExperiment, match="workers"):
        build(client={"workers": 100_000})
    with pytest.raises(BadExperiment, match=r"client\.workers must be at most 1024"):
        with_client(build(), 100_000, None)
