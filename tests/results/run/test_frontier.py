"""Throughput against interactivity: the levels that no other level beats in both."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bakeoff import results
from bakeoff.results.records import Load, Slo
from bakeoff.results.report import print_frontier, write_html
from bakeoff.results.report.sections.curves import goodputs
from bakeoff.results.run.frontier import FrontierPoint, frontier
from bakeoff.results.run.run import Run
from tests.results.amending import taking_gpus
from tests.results.builders import FAST, SLOW, Sheet, build_run

CLOSED = tuple(Load(concurrency=n) for n in (1, 4, 8))


def fast_and_slow(tmp_path: Path, **changes: object) -> Run:
    sheet = Sheet(engines={"fast": FAST, "slow": SLOW}, loads=CLOSED, invalid=(), **changes)  # type: ignore[arg-type]
    return results.load(build_run(tmp_path, sheet))


def points_of(points: list[FrontierPoint], engine: str) -> list[FrontierPoint]:
    return [point for point in points if point.engine == engine]


def test_a_point_is_one_over_tpot_and_the_output_of_all(tmp_path: Path) -> None:
    run = fast_and_slow(tmp_path)
    points = frontier([run])
    assert len(points) == 6
    for point in points:
        (cell,) = [cell for cell in run.cells if (cell.engine, cell.load) == (point.engine, point.load)]
        assert point.interactivity.centre == pytest.approx(1 / cell.intervals["tpot_p50_s"].centre)
        assert point.throughput == cell.intervals["output_tokens_per_s"]
        assert (point.gpus, point.per_gpu) == (None, None)
    interactivities = [point.interactivity.centre for point in points_of(points, "fast")]
    assert interactivities == sorted(interactivities, reverse=True)


def test_more_users_cost_each_of_them_and_the_slow_engine_is_beaten_everywhere(tmp_path: Path) -> None:
    points = frontier([fast_and_slow(tmp_path)])
    assert [point.load for point in points_of(points, "fast")] == ["c=1", "c=4", "c=8"]
    assert all(point.own and point.joint for point in points_of(points, "fast"))
    slow = points_of(points, "slow")
    assert slow[0].own, "alone it is beaten by none of its own"
    assert not any(point.joint for point in slow)


def test_a_level_that_is_worse_in_both_is_on_no_frontier(tmp_path: Path) -> None:
    """Crowding above 1: eight users get less in total than four, and each of them gets less."""
    sheet = Sheet(engines={"a": replace(FAST, crowding=2.0)}, loads=CLOSED, invalid=())
    points = frontier([results.load(build_run(tmp_path, sheet))])
    assert [point.load for point in points if point.own] == ["c=1"]


def test_engines_of_several_runs_are_set_side_by_side(tmp_path: Path) -> None:
    first = fast_and_slow(tmp_path, run_id="one")
    second = fast_and_slow(tmp_path, run_id="two")
    points = frontier([first, second])
    assert {point.engine for point in points} == {"fast (one)", "fast (two)", "slow (one)", "slow (two)"}
    assert any(point.joint for point in points_of(points, "fast (one)"))


@pytest.mark.slow
def test_per_gpu_where_the_start_shows_how_many_it_took(tmp_path: Path) -> None:
    on_one, on_four = fast_and_slow(tmp_path / "1", run_id="one"), fast_and_slow(tmp_path / "4", run_id="four")
    points = frontier([taking_gpus(on_one, 1), taking_gpus(on_four, 4)])
    assert {point.engine: point.gpus for point in points if "fast" in point.engine} == {
        "fast (one)": 1,
        "fast (four)": 4,
    }
    for point in points:
        assert point.per_gpu == pytest.approx(point.throughput.centre / (point.gpus or 0))
    assert not any(point.joint for point in points_of(points, "fast (four)")), "four GPUs for the same"


def test_the_table_shows_frontiers_only(tmp_path: Path) -> None:
    sheet = Sheet(engines={"a": replace(FAST, crowding=2.0), "b": FAST}, loads=CLOSED, invalid=())
    out = io.StringIO()
    print_frontier(frontier([results.load(build_run(tmp_path, sheet))]), Console(file=out, width=100))
    rows = [line.split()[:3] for line in out.getvalue().splitlines() if "c=" in line]
    assert rows == [["●", "a", "c=1"], ["●", "b", "c=1"], ["●", "b", "c=4"], ["●", "b", "c=8"]]


@pytest.mark.slow
def test_an_engine_whose_tokens_all_come_at_once_has_no_pace_and_breaks_no_page(tmp_path: Path) -> None:
    sheet = Sheet(engines={"a": replace(FAST, itl_s=0.0), "b": FAST}, loads=CLOSED, invalid=())
    run = results.load(build_run(tmp_path, sheet))
    assert not any("tpot_p50_s" in cell.intervals for cell in run.cells if cell.engine == "a")
    assert {point.engine for point in frontier([run])} == {"b"}
    assert "b at c=8" in write_html(run).read_text(encoding="utf-8")


def test_goodput_is_drawn_against_the_planned_arrivals(tmp_path: Path) -> None:
    rates = tuple(Load(rate_per_s=rate, arrival="poisson") for rate in (4.0, 1.0, 2.0))
    sheet = Sheet(engines={"a": FAST}, loads=rates, invalid=())
    run = results.load(build_run(tmp_path, sheet))
    (chart,) = goodputs(run)
    marks = re.findall(r"<title>a: ([\d.]+) requests/s planned, ([\d.]+) .*? within the SLO</title>", chart.svg)
    cells = [next(cell for cell in run.cells if cell.load == f"poisson {rate}/s") for rate in (1, 2, 4)]
    goodput = [cell.intervals["goodput_per_s"].centre for cell in cells]
    assert [float(met) for _, met in marks] == pytest.approx(goodput, rel=0.01)
    assert [float(rate) for rate, _ in marks] == pytest.approx(goodput, rel=0.01), "all of them met the SLO"
    assert chart.svg in write_html(run, tmp_path / "report.html").read_text()


def test_one_rate_or_no_slo_draws_no_goodput(tmp_path: Path) -> None:
    rates = tuple(Load(rate_per_s=rate, arrival="poisson") for rate in (1.0, 2.0))
    single = Sheet(engines={"a": FAST}, loads=rates[:1], invalid=())
    free = Sheet(engines={"a": FAST}, loads=rates, invalid=(), slo=Slo())
    assert goodputs(results.load(build_run(tmp_path / "single", single))) == []
    assert goodputs(results.load(build_run(tmp_path / "free", free))) == []
