"""Whether engines meet the objectives of a run: states, the table, the page and the exit code of bench."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bakeoff.harness.cli.commands import bench
from bakeoff.harness.errors import BadExperiment
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.harness.virtual import VirtualEngine, VirtualWorld, run_in
from bakeoff.harness.virtual.runs import virtual_experiment
from bakeoff.results import Run
from bakeoff.results.records import Slo
from bakeoff.results.report import print_summary, render_html
from bakeoff.results.report.objective_table import objective_tables
from bakeoff.results.run.objectives import State, kept_objectives, state_of
from bakeoff.results.show.markdown import markdown


def measured(folder: Path, slo: Any, repeats: int = 3) -> Run:
    """A server whose first token takes about 50 ms, for one and four users."""
    made = virtual_experiment(["a"], [{"concurrency": 1}, {"concurrency": 4}], repeats=repeats, slo=slo)
    return run_in(VirtualWorld({"a": VirtualEngine()}), made, folder)


def test_bounds_of_requests_and_of_trials_are_told_apart_and_stored(tmp_path: Path):
    run = measured(tmp_path, ["ttft<20s", "ttft_p50<20s, attainment>=99%"], repeats=1)
    assert (run.manifest.slo, run.manifest.objectives) == (Slo(ttft_s=20.0), ["ttft_p50<20s", "attainment>=99%"])
    assert [kept.state for kept in kept_objectives(run)] == [State.MET] * 4
    again = experiment_from(run.manifest.experiment, "again")
    assert (again.slo, again.objectives) == (Slo(ttft_s=20.0), ["ttft_p50<20s", "attainment>=99%"])


@pytest.mark.parametrize(
    ("stored", "message"),
    [(["nonsense"], "objectives: 'nonsense' is not an objective"), (["ttft<1s"], "'ttft<1s' bounds each request")],
)
def test_objectives_that_a_file_states_itself_are_read_before_anything_is_measured(stored: list[str], message: str):
    with pytest.raises(BadExperiment, match=message):
        virtual_experiment(["a"], [{"concurrency": 1}], objectives=stored)


@pytest.mark.parametrize(
    ("slo", "changes", "message"),
    [
        (["ttft<1s", 3], {}, "has bounds that are no text"),
        ("goodput>1", {}, "of requests that meet bounds of their own; add one"),
        ("attainment>=99%", {}, "of requests that meet bounds of their own; add one"),
        ("ttft<1s, ttft<2s", {}, "'ttft<2s' bounds ttft a second time"),
        ("tpot<1s", {"request": {"stream": False}}, "answers that are not streamed have an e2e alone"),
        ("itl<1s", {}, "unknown metric 'itl'; did you mean itl_p50_s or itl_p90_s or itl_p95_s?"),
    ],
)
def test_a_bound_that_cannot_be_judged_is_refused(slo: Any, changes: dict[str, Any], message: str):
    with pytest.raises(BadExperiment, match=re.escape(message)):
        virtual_experiment(["a"], [{"concurrency": 1}], slo=slo, **changes)


def test_bounds_of_requests_alone_ask_that_every_request_meets_them(tmp_path: Path):
    run = measured(tmp_path, "ttft<20s", repeats=1)
    assert run.manifest.objectives == ["attainment>=100%"]
    (table,) = objective_tables(run)
    assert table.notes == ["attainment: the share of requests with ttft<20s", "1 user: met", "4 users: met"]
    first = table.entries()[0]
    assert (first["verdict"], first["value"].centre, first["objective"]) == (State.MET, 1.0, "attainment>=100%")


def test_each_load_is_judged_by_its_interval(tmp_path: Path):
    run = measured(tmp_path, "ttft_p50<20s,ttft_p50<1us,ttft_p99<20s", repeats=2)
    centre = run.cells[0].intervals["ttft_p50_s"].centre
    assert [kept.state for kept in kept_objectives(run)][:3] == [State.MET, State.NOT_MET, State.OPEN]
    assert state_of(run) is State.NOT_MET
    out = io.StringIO()
    print_summary(run, Console(file=out, width=120))
    assert "1 user: not met" in out.getvalue()
    assert f"{centre * 1e3:.3g}"[:3] in markdown(objective_tables(run)[0])
    page = render_html(run)
    assert '<td class="word worse">✗ not met</td>' in page
    assert "ttft_p50&lt;1us" in page


@pytest.mark.parametrize(
    ("slo", "code"),
    [("ttft_p50<20s", 0), ("ttft_p50<1us", 1), ("ttft_p99<20s", 2), ([], 0), ("ttft<20s", 0), ("ttft<1us", 1)],
)
def test_the_exit_code_of_bench_says_whether_it_is_met(tmp_path: Path, slo: Any, code: int):
    assert bench._exit_code(measured(tmp_path, slo, repeats=1)) == code
