"""Sets of rules fill experiments, and name what breaks them."""

from pathlib import Path
from typing import Any

import pytest

from bakeoff.harness.errors import BadExperiment
from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.harness.rules.rule_set import Start, broken, rule_sets, rules_named

AGENTX = "agentx-harness-1.0"


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.json"
    path.write_text('{"id": "s", "block_size": 64, "requests": [{"t": 0.0, "type": "n", "in": 8, "out": 2}]}')
    return str(path)


def experiment(trace: str, **changes: Any) -> Experiment:
    data = {
        "name": "rules",
        "engines": [{"adapter": "openai", "url": "http://127.0.0.1:1", "served_model_name": "m"}],
        "loads": [{"concurrency": 2}],
        "workload": {"name": "trace", "options": {"path": trace, "format": "claude-code"}},
        "rules": AGENTX,
    }
    return experiment_from(data | changes, "test")


def reasons(of: Experiment) -> list[str]:
    return list(broken(of, of.rules_of_play))


def test_the_default_comes_first_and_changes_nothing(trace: str):
    assert [rules.name for rules in rule_sets()] == ["steady", AGENTX, "aiperf-0.13", "mlperf-endpoints", "together"]
    plain = experiment(trace, rules="steady")
    assert (plain.trial.duration_s, plain.request.omit, reasons(plain)) == (30.0, [], [])
    assert plain.rules_of_play.start is Start.LONG_RUN


def test_rules_set_what_the_experiment_leaves_out(trace: str):
    filled = experiment(trace, trial={"ramp_s": 1.0})
    assert (filled.trial.duration_s, filled.trial.max_failure_share, filled.trial.ramp_s) == (3600.0, 0.1, 1.0)
    assert filled.workload.options == {"path": trace, "format": "claude-code", "salt": True, "repeat": True}
    assert filled.request.omit == ["temperature"]
    assert not reasons(filled)


def test_what_the_experiment_says_wins_and_is_named(trace: str):
    options = {"path": trace, "format": "claude-code", "scale": 0.5, "salt": False}
    changed = experiment(
        trace,
        trial={"duration_s": 60.0, "max_failure_share": 0.5},
        workload={"name": "trace", "options": options},
        client={"workers": 2},
        request={"temperature": 0.6},
    )
    assert changed.request.temperature == 0.6
    assert reasons(changed) == [
        "trial.max_failure_share is 0.5, not 0.1",
        "request.omit is [], not ['temperature']",
        "workload.options.salt is false, not true",
        "workload.options.scale is 0.5, not unset",
        "trial.duration_s is 60, less than 900",
        "client.workers is 2: each worker caps the idle time of its own sessions",
    ]


def test_a_longer_duration_than_the_least_is_by_the_rules(trace: str):
    assert not reasons(experiment(trace, trial={"duration_s": 900.0}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rules": "agentx-harness-1.1"}, "unknown rules 'agentx-harness-1.1'; did you mean"),
        ({"loads": [{"rate_per_s": 1.0, "arrival": "poisson"}]}, "give each load concurrency"),
        ({"trial": {"cache": "warm"}}, "leave out trial.cache"),
        ({"rules": "missing.toml"}, "rules missing.toml cannot be read"),
    ],
)
def test_mistakes_are_named(trace: str, changes: dict[str, Any], message: str):
    with pytest.raises(BadExperiment, match=message):
        experiment(trace, **changes)


def test_a_file_of_ones_own_is_a_set_of_rules(tmp_path: Path, trace: str):
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine-1"\nsummary = "ours"\nsource = "us"\nstart = "first-call"\nby_count = true\n')
    assert experiment(trace, rules=str(path)).rules_of_play.name == "mine-1"
    for text, message in (
        ('name = "mine"\nstart = "somewhere"', "mine.toml"),
        ('name = "a"\nsummary = "b"\nsource = "c"\nstart = "long-run"\nwarm_up_calls = 3', "no warm-up"),
        ('name = "a"\nsummary = "b"\nsource = "c"\nstart = "mid-session"\nstart_share = [0.9, 0.1]', "lower first"),
        ("name = ", "not TOML"),
    ):
        path.write_text(text)
        with pytest.raises(BadExperiment, match=message):
            rules_named(str(path))
