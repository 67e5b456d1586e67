"""A gate judges every class of the traffic by its own requests and SLO: the whole hides a class that got worse."""

import io
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import numpy as np
import pytest
from rich.console import Console

from bakeoff import results
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.harness.virtual import Batched, VirtualEngine, virtual_run
from bakeoff.results.compare.comparison import EngineComparison
from bakeoff.results.compare.config import ComparisonConfig
from bakeoff.results.compare.gate import GateVerdict, Outcome, RegressionKind, judge
from bakeoff.results.compare.sides import Side, side_of
from bakeoff.results.export.benchmark_json import benchmark_json, read_benchmark_json
from bakeoff.results.report.gate import doubt_texts, gate_markdown, junit_xml, print_gate, regression_texts
from bakeoff.results.requests import Requests
from bakeoff.results.statistics import Judgement
from bakeoff.results.statistics.comparison import Comparison, Reason

SLO = {"short": 0.3, "long": 0.15}


def class_of(name: str, input_tokens: int, weight: float) -> dict[str, object]:
    options = {"input_tokens": input_tokens, "output_tokens": 5, "spread": 0.0}
    return {
        "name": name, "weight": weight, "workload": {"name": "random", "options": options},
        "slo": {"ttft_s": SLO[name]},
    }  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> results.Run:
    """Nine of ten requests are short; engine b needs 40 % more for a prompt token."""
    experiment = experiment_from({
        "name": "c", "engines": [{"adapter": "reference", "label": label} for label in "ab"],
        "classes": [class_of("short", 8, 9), class_of("long", 600, 1)],
        "loads": [{"rate_per_s": 2, "arrival": "poisson"}], "repeats": 4,
        "trial": {"warm_up_s": 0.0, "duration_s": 200}, "quality": {"samples": 0},
    }, "c")  # fmt: skip
    engines = {label: VirtualEngine(service=Batched(0.05, 0.001, s)) for label, s in (("a", 1e-4), ("b", 1.4e-4))}
    return virtual_run(experiment, engines, tmp_path_factory.mktemp("classes"))


def sides(run: results.Run) -> tuple[Side, Side]:
    return side_of(run, "a"), side_of(run, "b")


@pytest.fixture(scope="module")
def verdict(run: results.Run) -> GateVerdict:
    return judge(*sides(run))


def comparison(compared: EngineComparison, metric: str, traffic_class: str | None) -> Comparison:
    return next(c for c in compared.comparisons if (c.metric, c.traffic_class) == (metric, traffic_class))


def test_a_class_that_got_worse_is_a_regression(verdict: GateVerdict):
    assert verdict.compared.primary.judgement is not Judgement.WORSE, "the median request is a short one"
    assert verdict.outcome is Outcome.REGRESSION
    worse = {(each.kind, each.metric, each.traffic_class) for each in verdict.regressions}
    assert (RegressionKind.METRIC, "ttft_p50_s", "long") in worse
    assert all(traffic_class != "short" for _, _, traffic_class in worse)


def test_the_figures_of_a_class_are_those_of_its_requests_by_its_slo(run: results.Run, verdict: GateVerdict):
    ttft_s: dict[str, list[float]] = {"a": [], "b": []}
    attained: dict[str, list[float]] = {"a": [], "b": []}
    for trial in run.finished:
        own = [each for each in trial.inside if each.traffic_class == "long"]
        ttfts_s = [(each.chunk_ns[0] - each.planned_ns) / 1e9 for each in own]
        ttft_s[trial.record.engine].append(float(np.median(ttfts_s)))
        attained[trial.record.engine].append(float(np.mean([ttft <= SLO["long"] for ttft in ttfts_s])))
    ratio = comparison(verdict.compared, "ttft_p50_s", "long").ratio
    assert ratio is not None
    assert ratio.centre == pytest.approx(np.exp(np.mean(np.log(ttft_s["b"])) - np.mean(np.log(ttft_s["a"]))), rel=1e-6)
    difference = comparison(verdict.compared, "attainment", "long").difference
    assert difference is not None
    assert difference.centre == pytest.approx(np.mean(attained["b"]) - np.mean(attained["a"]))
    assert -0.9 < difference.centre < -0.1


def test_every_output_names_the_class(verdict: GateVerdict):
    at = "poisson 2/s, class long"
    assert any(line.startswith(f"TTFT p50 at {at}: b has 1.") for line in regression_texts(verdict))
    assert f"| {at} | TTFT p50 ↓ |" in gate_markdown(verdict)
    failed = ET.fromstring(junit_xml(verdict)).findall("testsuite/testcase[failure]")
    assert f"bakeoff.{at}" in {case.get("classname") for case in failed}
    console = Console(file=io.StringIO(), width=120)
    print_gate(verdict, console, every_metric=True)
    assert isinstance(console.file, io.StringIO)
    lines = [line.strip() for line in console.file.getvalue().splitlines()]
    assert [line for line in lines if line.startswith("poisson")] == ["poisson 2/s", "poisson 2/s, class short", at]


def test_a_class_has_only_the_metrics_of_single_requests(run: results.Run):
    compared = judge(*sides(run), ComparisonConfig(metrics=("ttft_p99_s", "output_tokens_per_s"))).compared
    assert [(each.metric, each.traffic_class) for each in compared.guardrails] == [
        ("ttft_p99_s", None), ("output_tokens_per_s", None), ("ttft_p99_s", "short"), ("ttft_p99_s", "long"),
    ]  # fmt: skip


def test_a_class_that_only_the_candidate_lacks_is_a_doubt(run: results.Run):
    a, b = sides(run)
    lacking = [
        msgspec.structs.replace(
            trial, requests=Requests(each for each in trial.requests if each.traffic_class == "short")
        )
        for trial in b.trials
    ]
    verdict = judge(a, msgspec.structs.replace(b, sessions={next(iter(b.sessions)): lacking}))
    assert comparison(verdict.compared, "ttft_p50_s", "long").reason is Reason.ABSENT
    assert ("ttft_p50_s", "long") in {(doubt.metric, doubt.traffic_class) for doubt in verdict.doubts}


def test_a_class_is_gated_from_a_file_as_from_its_folder(run: results.Run, tmp_path: Path):
    file = tmp_path / "runs.json"
    file.write_bytes(benchmark_json({"classes": run}))
    (stored,) = read_benchmark_json(file)
    verdict = judge(side_of(stored, "a"), side_of(stored, "b"))
    assert ("ttft_p50_s", "long") in {(worse.metric, worse.traffic_class) for worse in verdict.regressions}
    bare = msgspec.structs.replace(
        stored, finished=[msgspec.structs.replace(trial, requests=[]) for trial in stored.finished]
    )
    verdict = judge(side_of(bare, "a"), side_of(bare, "b"))
    assert ("ttft_p50_s", "long") in {(doubt.metric, doubt.traffic_class) for doubt in verdict.doubts}
    assert any("the file does not hold the requests of a class" in line for line in doubt_texts(verdict))
