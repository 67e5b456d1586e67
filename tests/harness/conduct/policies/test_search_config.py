"""The configuration of a search: defaults, mistakes, and warnings before it starts."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bakeoff.harness.conduct.policies.search_config import search_config, search_warnings
from bakeoff.harness.conduct.run import create_run
from bakeoff.harness.errors import BadExperiment
from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.results.errors import NotComparable, RunNotFound
from bakeoff.results.log.run_log import LevelJudged
from bakeoff.results.log.search import Attempt, Over, SearchConfig
from bakeoff.results.log.store import RunFolder
from bakeoff.results.records import Load
from tests.results.amending import amend, append
from tests.results.builders import build_run

RATES = [
    {"rate_per_s": 4.0, "arrival": "gamma", "arrival_options": {"burstiness": 2.0}},
    {"rate_per_s": 30.0, "arrival": "poisson"},
]
SLO = "ttft_p50<100ms"


def experiment(*loads: dict[str, Any], **changes: Any) -> Experiment:
    data = {
        "name": "t",
        "engines": [{"adapter": "openai", "url": "http://127.0.0.1:1", "label": label} for label in "ab"],
        "workload": {"name": "random"},
        "loads": list(loads) or RATES,
        **changes,
    }
    return experiment_from(data, "t")


def ends(config: SearchConfig) -> tuple[float, float]:
    return config.levels[0], config.levels[-1]


def test_several_loads_bound_the_range_and_the_first_gives_the_rest():
    config = search_config(experiment(), SLO)
    assert (config.over, config.start, ends(config)) == (Over.RATE, None, (4.0, 30.0))
    load = config.load_at(7.5)
    assert (load.rate_per_s, load.arrival, load.arrival_options) == (7.5, "gamma", {"burstiness": 2.0})


def test_one_load_is_where_it_starts():
    config = search_config(experiment({"concurrency": 8}), SLO)
    assert (config.over, config.start, ends(config)) == (Over.CONCURRENCY, 8.0, (1.0, 256.0))
    assert config.load_at(3.0).concurrency == 3
    assert all(level == round(level) for level in config.levels)


def test_options_override_the_file():
    config = search_config(experiment(), SLO, low=1, high=100, resolution=0.1, alpha=0.1, trials=9, minutes=5)
    assert ends(config) == (1.0, 100.0)
    assert (config.resolution, config.alpha, config.trials, config.minutes) == (0.1, 0.1, 9, 5)
    slots = search_config(experiment(), SLO, over=Over.CONCURRENCY, low=1, high=16)
    assert (slots.load_at(4.0).concurrency, slots.load_at(4.0).arrival) == (4, None)
    rates = search_config(experiment({"concurrency": 8}), SLO, over=Over.RATE, low=1, high=16)
    assert (rates.load_at(4.0).rate_per_s, rates.load_at(4.0).arrival) == (4.0, "poisson")


def test_a_guess_is_a_number_for_all_or_an_earlier_search_for_those_it_had(tmp_path: Path):
    assert search_config(experiment(), SLO, around="12").guesses == {"a": 12.0, "b": 12.0}
    alone = search_config(experiment({"concurrency": 8}), SLO, over=Over.RATE, around="25")
    assert (alone.guesses["a"], ends(alone)) == (25.0, (25 / 32, 800.0))
    path = build_run(tmp_path)
    with pytest.raises(NotComparable, match="holds no search over the rate; give a number"):
        search_config(experiment(), SLO, around=str(path))
    earlier = SearchConfig(
        engines=["b", "gone", "a"], over=Over.RATE, slo=SLO, low=1, high=64, template=Load(arrival="poisson")
    )
    amend(path, search=earlier)
    for engine, level in (("b", 12.0), ("gone", 3.0)):
        for met in (True, False):
            attempt = Attempt("t", level if met else 1.1 * level, met=met, margin=None)
            append(RunFolder(path), LevelJudged(engine=engine, attempt=attempt))
    guesses = search_config(experiment(), SLO, around=str(path)).guesses
    assert guesses == {"b": pytest.approx(12.0, rel=0.1)}
    with pytest.raises(NotComparable, match="holds no search over the concurrency"):
        search_config(experiment(), SLO, over=Over.CONCURRENCY, low=1, high=9, around=str(path))
    with pytest.raises(RunNotFound):
        search_config(experiment(), SLO, around="/no/such/run")


@pytest.mark.parametrize(
    ("slo", "options", "message"),
    [
        ("output_tokens>100", {}, "is met at high loads, not at low ones"),
        ("sessions_per_hour>100", {}, "is met at high loads, not at low ones"),
        ("attainment>=0.9", {}, r"of requests that meet bounds of their own"),
        (SLO, {"low": 50.0}, "the range from 50 to 30 is empty; give --low and --high"),
        (SLO, {"high": float("inf")}, "the range from 4 to inf is empty"),
        (SLO, {"low": -1.0}, "the range from -1 to 30 is empty"),
        (SLO, {"around": "99"}, "99 is not between 4 and 30; change --low, --high or --around"),
        (SLO, {"over": Over.CONCURRENCY}, "no load with concurrency; give --low and --high, or --around"),
        (SLO, {"over": Over.CONCURRENCY, "low": 0.0, "high": 8.0}, "--low 0 is no number of sessions"),
        (SLO, {"over": Over.CONCURRENCY, "low": 1.5, "high": 8.0}, r"--low 1\.5 is no number of sessions"),
        (SLO, {"over": Over.CONCURRENCY, "low": 1.0, "high": float("inf")}, "--high inf is no number of sessions"),
        (SLO, {"resolution": 0.0}, "resolution must be between"),
        (SLO, {"alpha": 1.0}, "alpha must be between 0 and 1"),
        (SLO, {"trials": 0}, "trials must be at least 1"),
        (SLO, {"minutes": 0.0}, "minutes must be above 0"),
    ],
)
def test_mistakes_are_one_line(slo: str, options: dict[str, Any], message: str):
    with pytest.raises(BadExperiment, match=message):
        search_config(experiment(), slo, **options)


def test_rates_that_one_request_or_session_gets_are_objectives():
    """They fall with the load, unlike those of the whole server."""
    config = search_config(experiment({"concurrency": 8}), "interactivity_p90>20,tokens_per_s_per_session>2")
    assert config.slo == "interactivity_p90>20,tokens_per_s_per_session>2"
    with pytest.raises(BadExperiment, match="'output_tokens_per_s>2' is met at high loads"):
        search_config(experiment({"concurrency": 8}), "output_tokens_per_s>2")


def test_attainment_is_an_objective_where_requests_have_bounds():
    assert search_config(experiment(slo={"ttft_s": 0.5}), "attainment>=0.99").objectives[""][0].metric == "attainment"


def test_the_rate_that_an_agent_sees_is_an_objective_and_tiers_keep_their_order():
    config = search_config(experiment(), {"fast": "interactivity_p90>60", "basic": "interactivity_p90>20,ttft_p90<5s"})
    assert list(config.objectives) == ["fast", "basic"]
    assert [objective.bound for objective in config.objectives["basic"]] == [20.0, 5.0]
    assert msgspec.json.decode(msgspec.json.encode(config), type=SearchConfig) == config


def warnings(slo: str, *loads: dict[str, Any], trial: dict[str, Any] | None = None, **options: Any) -> list[str]:
    searched = experiment(*loads, trial=trial or {})
    return search_warnings(searched, search_config(searched, slo, **options))


def test_warns_that_trials_are_too_short_for_a_percentile():
    assert warnings(SLO) == []
    (few,) = warnings("ttft_p99<1s")
    assert few == (
        "trials below 11/s are skipped, because an objective needs 331 requests (sessions may have several); raise "
        "trial.min_requests to 331, or bound p95, which needs 65"
    )
    assert "or bound p50, which needs 3" in warnings("ttft_p90<1s", low=1.0)[0]
    assert warnings("ttft_p99<1s", trial={"min_requests": 331}) == [], "then windows are as long as that takes"
    assert warnings("ttft_p99<1s", trial={"duration_s": 200, "max_requests": 10_000}) == []
    (capped,) = warnings("ttft_p99<1s", {"concurrency": 8}, trial={"max_requests": 300})
    assert capped.startswith("trial.max_requests is 300, but an objective needs 331 requests; raise it, or bound p95")
    (closed,) = warnings("e2e_p90<9s", {"concurrency": 8})
    assert closed.startswith("trials may have fewer than the 32 requests that an objective needs; raise trial.min_req")
    assert warnings("e2e_p90<9s", {"concurrency": 8}, trial={"min_requests": 64}) == []
    assert warnings("itl_p99<30ms") == warnings("ttft_p99<1s"), "the tokens of an answer share its pace"


def test_warns_that_the_cap_on_requests_shortens_windows():
    assert warnings(SLO, high=200) == []
    (cut,) = warnings(SLO, high=200, trial={"max_requests": 1000})
    assert cut == "above 33.3/s windows are shorter than trial.duration_s: trial.max_requests is 1000"


def test_the_folder_of_a_search_has_a_name_of_its_own_and_an_empty_plan(tmp_path: Path):
    config = search_config(experiment(), SLO)
    manifest = create_run(experiment(), tmp_path, search=config).read_manifest()
    assert (manifest.name, manifest.trials) == ("t-search", [])
    assert experiment_from(manifest.experiment, "t") == msgspec.structs.replace(experiment(), name="t-search")
