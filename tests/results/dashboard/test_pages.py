"""Content of the pages, without a server: what identifies a run, and what a comparison and a short history say."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bakeoff.results.dashboard.compare_page import compare_page
from bakeoff.results.dashboard.history_page import history_page
from bakeoff.results.dashboard.run_list import Line, list_page
from bakeoff.results.index import Index
from bakeoff.results.records import Load
from tests.results.amending import amend
from tests.results.builders import FAST, LOADS, SLOW, Sheet, Texts, build_run

BENCH = Sheet(
    engines={"vllm": FAST}, loads=LOADS[:1], repeats=1, requests=6, invalid=(), regret=None, texts=Texts(name="bench")
)
URL = "http://10.0.0.7:8000"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    """Three runs of bench, the second INVALID and the third of another server, and one of two engines."""
    root = tmp_path_factory.mktemp("runs")
    for number, (url, model, sheet) in enumerate(
        (
            (URL, "llama-8b", BENCH),
            (URL, "llama-8b", replace(BENCH, invalid=(0,))),
            ("http://b", "qwen", replace(BENCH, loads=[Load(concurrency=2), Load(rate_per_s=3.0)], repeats=2)),
        )
    ):
        path = build_run(root, replace(sheet, run_id=f"bench-{number}"))
        experiment = {"name": "bench", "model": {"name": model}, "engines": [{"adapter": "vllm", "url": url}]}
        amend(path, created_utc=f"2026-11-0{1 + number}T10:00:00+00:00", experiment=experiment)
    pair = Sheet(engines={"slow": SLOW, "fast": FAST}, loads=LOADS[:1], requests=12, repeats=4, regret=None)
    build_run(root, replace(pair, run_id="pair", invalid=(), texts=Texts(name="pair")))
    with Index(root) as index:
        index.refresh()
        yield index


def line(index: Index, run: str) -> Line:
    return next(line for line in list_page(index, {}).lines if line.id == run)


def test_runs_of_one_name_are_told_apart(index: Index) -> None:
    one = line(index, "bench-0")
    assert (one.engines, one.urls, one.models, one.levels, one.workloads) == (
        ["vllm"],
        [URL],
        "llama-8b",
        "c=1",
        "chat",
    )
    other = line(index, "bench-2")
    assert (other.urls, other.models, other.levels) == (["http://b"], "qwen", "c=2, poisson 3/s")


@pytest.mark.parametrize(
    ("query", "runs"),
    [
        ({"url": URL}, ["bench-1", "bench-0"]), ({"model": "qwen"}, ["bench-2"]), ({"model": "qw"}, []),
        ({"level": "c=2"}, ["bench-2"]), ({"workload": "chat", "engine": "fast"}, ["pair"]),
        ({"q": "10.0.0.7"}, ["bench-1", "bench-0"]),
    ],
)  # fmt: skip
def test_they_are_found_by_what_tells_them_apart(index: Index, query: dict[str, str], runs: list[str]) -> None:
    assert [line.id for line in list_page(index, query).lines] == runs


def test_filters_that_have_no_values_are_left_out(index: Index) -> None:
    filters = {one.name: one for one in list_page(index, {"model": "qwen"}).filters}
    assert filters.keys() == {"name", "engine", "model", "url", "level", "workload", "status"}
    assert (filters["model"].options, filters["model"].chosen) == (["llama-8b", "qwen"], "qwen")


def test_a_run_of_one_engine_has_its_figure_and_a_spoilt_one_is_marked(index: Index) -> None:
    good, spoilt, pair = (line(index, run) for run in ("bench-0", "bench-1", "pair"))
    assert good.verdict.startswith("vllm: output ")
    assert (good.values, good.trials, good.validity) == ([], "1 of 1 valid", "")
    assert spoilt.verdict == "No verdict: no engine has a valid trial at c=1."
    assert (spoilt.trials, spoilt.validity) == ("0 of 1 valid", "none")
    assert [engine for engine, _ in pair.values] == ["slow", "fast"]


def test_a_candidate_that_is_better_is_headlined_as_such(index: Index) -> None:
    better = compare_page(index.root, "pair@slow", "pair@fast", "")
    assert (better.headline, better.class_) == ("fast is better", "better")
    assert better.sentence.startswith("output at c=1: fast has 3.")
    assert better.sentence.endswith("] that of slow (95 % interval)")
    worse = compare_page(index.root, "pair@fast", "pair@slow", "")
    assert (worse.headline, worse.class_) == ("Regression", "regression")


def test_two_runs_have_a_history_of_points(tmp_path: Path) -> None:
    for number in (1, 2):
        path = build_run(tmp_path, replace(BENCH, run_id=f"run-{number}", seed=number))
        amend(path, created_utc=f"2026-11-0{number}T10:00:00+00:00")
        with Index(tmp_path) as index:
            index.refresh()
            page = history_page(index, {"metric": "itl_p50_s"})
        why = f"the longest series has {number} runs; detecting a step needs 3 runs before and 3 after it"
        assert (page.problem, len(page.charts)) == ((why, 0) if number == 1 else ("", 1))
        assert page.outcome == ("" if number == 1 else f"Cannot tell: {why}.")
    assert page.notes == []
    (chart,) = page.charts
    assert str(chart.svg).count("h0") == 2
