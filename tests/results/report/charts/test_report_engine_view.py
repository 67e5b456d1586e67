"""The engine view in a report: the split as bars, figures beside the client's, and a line in the terminal."""

import io
import re

import pytest
from rich.console import Console

from bakeoff import results
from bakeoff.results.report import print_summary, render_html
from bakeoff.results.report.charts.stacks import Group, Segment, Stack, stacks
from bakeoff.results.report.sections.engine_view import engine_view
from bakeoff.results.report.terminal import engine_lines
from bakeoff.results.server_view import ENGINE_FIGURES
from tests.results.builders import LOADS, SLOW, Sheet, build_run


@pytest.fixture(scope="module")
def page(demo: results.Run) -> str:
    return render_html(demo)


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> results.Run:
    """A run of an engine without any metrics."""
    sheet = Sheet(engines={"quiet": SLOW}, loads=LOADS[:1], repeats=1, invalid=())
    return results.load(build_run(tmp_path_factory.mktemp("silent"), sheet))


def section(page: str) -> str:
    match = re.search(r'<div class="body" id="attribution">.*?</section>', page, re.DOTALL)
    assert match is not None
    return match[0]


def rects(svg: str) -> list[tuple[str, float, float]]:
    """Kind, left end and width of each part."""
    matches = re.findall(r'<rect class="part (\w+)" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', svg)
    return [(kind, float(left), float(width)) for kind, left, width in matches]


def test_parts_of_a_bar_follow_each_other_on_one_scale_from_zero():
    slow = Stack("slow", 0, [Segment("queue", "queue", 0.4), Segment("decode", "decode", 1.6)])
    fast = Stack("fast", 1, [Segment("decode", "decode", 0.5)])
    svg = stacks("t", [Group("c=1", [slow, fast]), Group("empty", [])], "mean")
    (queue, decode, other) = rects(svg)
    assert [part[0] for part in (queue, decode, other)] == ["queue", "decode", "decode"]
    assert decode[1] == pytest.approx(queue[1] + queue[2], abs=0.2)
    assert decode[2] == pytest.approx(4 * queue[2], abs=0.5)
    assert other[1] == queue[1]
    assert other[2] == pytest.approx((queue[2] + decode[2]) / 4, abs=0.5)
    assert ">2.00 s</text>" in svg
    assert "queue: 400 ms, 20 %" in svg
    assert "empty" not in svg


def test_a_number_stands_inside_a_part_only_where_it_fits():
    stack = Stack("e", 0, [Segment("queue", "queue", 0.01), Segment("decode", "decode", 1.0)])
    svg = stacks("t", [Group("c=1", [stack])], "mean")
    assert re.findall(r'class="inside (\w+)"', svg) == ["decode"]


def test_no_bars_are_no_chart():
    assert stacks("t", [Group("c=1", [])], "mean") == ""


@pytest.mark.slow
def test_every_engine_at_every_level_has_a_bar(demo: results.Run, page: str):
    drawn = rects(section(page))
    assert sum(kind == "queue" for kind, _, _ in drawn) == 4  # the engine that reports its phases, at each level
    assert sum(kind == "rest" for kind, _, _ in drawn) == 4  # the other engine, as one bar
    for cell in demo.cells:
        if cell.engine == "reference":
            parts = [
                cell.server.intervals[f"split_{name}_s"].centre for name in ("queue", "prefill", "decode", "outside")
            ]
            assert sum(parts) == pytest.approx(cell.server.intervals["client_e2e_mean_s"].centre, rel=0.01)


def test_the_engines_figures_stand_beside_the_clients(demo: results.Run):
    table = engine_view(demo).table
    titles = [f"{column.group} {column.title}".strip() for column in table.columns]
    counts = ["running, max", "waiting, max", "KV cache, max", "preemptions"]
    assert titles == [
        *("load", "engine", *counts),
        *("TTFT mean engine", "TTFT mean client", "ITL mean engine", "ITL mean client"),
    ]
    rows = {
        (row[1].text, row[0].text): dict(zip(titles, (cell.text for cell in row), strict=True)) for row in table.rows
    }
    reporting, quiet = rows["reference", "c=8"], rows["transformers", "c=8"]
    assert [reporting[title] for title in counts[:3]] == ["4", "4", "100 %"]
    engine, client = (float(reporting[f"TTFT mean {whose}"].split()[0]) for whose in ("engine", "client"))
    assert engine == pytest.approx(0.9 * client, rel=0.01)
    assert all(quiet[title].startswith("– (") for title in counts)
    assert quiet["TTFT mean client"].endswith("ms")
    assert "transformers: the engine's metrics were not read" in " | ".join(table.notes)
    assert table.notes[-1] == "No engine here reports: prefix hits."


def test_what_the_engine_does_over_time_stands_below_the_timeline(page: str):
    assert page.count(">engine, running</text>") == page.count(">KV cache</text>") == 12  # of the reporting engine
    assert page.count(">engine, waiting</text>") == 12


def test_every_figure_is_defined_on_the_page(page: str):
    definitions = page[page.index('id="definitions"') :]
    for name in ENGINE_FIGURES:
        assert f"<code>{name}</code>" in definitions


def test_a_run_of_engines_that_tell_nothing_has_no_such_section(silent: results.Run):
    assert 'id="attribution"' not in render_html(silent)
    assert engine_lines(silent) == []


def test_the_terminal_names_what_stands_out_and_no_more(demo: results.Run):
    lines = engine_lines(demo)
    (crowded,) = [line for line in lines if line.startswith("c=8, reference: ")]
    assert re.search(r"[\d.]+ % of the mean E2E \([\d.]+ ms of [\d.]+ ms\) in the engine's queue", crowded)
    assert crowded.endswith("KV cache up to 100 % full; 6 preemptions in a trial")
    assert not any("transformers" in line for line in lines)
    printed = io.StringIO()
    print_summary(demo, Console(file=printed, width=100))
    assert "Where the time went, by the engines' own metrics:" in printed.getvalue()


def test_frames_and_summary_hold_the_view(demo: results.Run):
    assert set(ENGINE_FIGURES) <= set(demo.trials.columns)
    reporting = demo.trials[demo.trials.engine == "reference"]
    assert (reporting.server_output_tokens == 24 * 24).all()
    assert demo.trials[demo.trials.engine == "transformers"].server_output_tokens.isna().all()


def test_logs_from_before_the_engine_view_are_read(silent: results.Run):
    (trial,) = silent.finished
    assert {value.reason for name, value in trial.server.items() if name.startswith("server_")} == {
        "the engine's metrics were not read"
    }
