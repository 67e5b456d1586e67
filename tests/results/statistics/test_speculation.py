"""The paper's formulas, and the report's section on speculation."""

import dataclasses
import re
from pathlib import Path

import pytest

from bakeoff import results
from bakeoff.results.report import render_html
from bakeoff.results.report.charts.speed_up import Measured, speed_up_chart
from bakeoff.results.report.sections.speculation import SpeculationView, speculation_view
from bakeoff.results.statistics import Interval
from bakeoff.results.statistics.speculation import acceptance_of, expected_tokens, speed_up
from tests.results.builders import FAST, LOADS, SLOW, Sheet, Speed, build_run

PLAIN = dataclasses.replace(FAST, slots=4)
FOUR, TWO = (dataclasses.replace(PLAIN, itl_s=PLAIN.itl_s / 2, drafts=drafts) for drafts in (4, 2))


@pytest.mark.parametrize(
    ("acceptance", "drafts", "printed"), [(0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 2, 2.44), (0.8, 5, 3.69),
                                          (0.9, 2, 2.71), (0.9, 10, 6.86)]
)  # fmt: skip
def test_free_drafts_speed_up_as_in_the_papers_first_table(acceptance: float, drafts: int, printed: float):
    assert speed_up(acceptance, drafts) == pytest.approx(printed, abs=0.005)


def test_expected_tokens_are_the_sum_over_positions():
    assert expected_tokens(0.5, 3) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert (expected_tokens(0.0, 4), expected_tokens(1.0, 4)) == (1.0, 5.0)


def test_drafts_cost_a_share_of_a_step_each():
    assert speed_up(0.5, 3, cost=0.25) == pytest.approx(1.875 / 1.75)
    assert speed_up(0.0, 5, cost=0.1) == pytest.approx(1 / 1.5)


@pytest.mark.parametrize("drafts", [1, 3.4, 8])
@pytest.mark.parametrize("acceptance", [0.0, 0.2, 0.75, 1.0])
def test_the_acceptance_follows_from_the_tokens(acceptance: float, drafts: float):
    assert acceptance_of(expected_tokens(acceptance, drafts), drafts) == pytest.approx(acceptance, abs=1e-6)


def test_tokens_that_no_acceptance_can_give_count_as_the_nearer_end():
    assert acceptance_of(0.9, 4) == pytest.approx(0.0, abs=1e-6)
    assert acceptance_of(5.1, 4) == pytest.approx(1.0, abs=1e-6)


def section(folder: Path, **engines: Speed) -> SpeculationView:
    """The section of a run with one level; an engine with "ref" in its name has the adapter ``reference``."""
    sheet = Sheet(engines=engines, loads=LOADS[:1], invalid=())
    return speculation_view(results.load(build_run(folder, sheet)))


def test_a_row_tells_the_drafts_of_one_engine_up_to_its_last_position(tmp_path: Path):
    table = section(tmp_path, ref=PLAIN, ref_four=FOUR, ref_two=TWO).table
    assert table is not None
    assert [column.title for column in table.columns if column.group] == ["0", "1", "2", "3"]
    assert [[cell.text for cell in row[1:]] for row in table.rows] == [
        ["ref_four", "192", "96", "50.0 %", "48", "3", *["50.0 %"] * 4],
        ["ref_two", "96", "48", "50.0 %", "48", "2", *["50.0 %"] * 2, "", ""],
    ]
    assert table.notes == []


def test_the_chart_compares_with_the_engine_of_the_same_adapter_without_drafts(tmp_path: Path):
    (svg,) = section(tmp_path, ref=PLAIN, ref_four=FOUR).charts
    (ratio,) = re.findall(r"ref_four: ([\d.]+)×", svg.partition("<desc>")[2].partition("</desc>")[0])
    assert float(ratio) == pytest.approx(2.0, rel=0.1)
    a = acceptance_of(3.0, 4.0)
    assert f"{speed_up(a, 4.0):.2f}× expected at {100 * a:.1f} % acceptance with 4.0 drafts per verification" in svg


@pytest.mark.parametrize(
    "engines",
    [
        {"ref_four": FOUR, "ref_two": TWO},  # no engine without drafts
        {"ref_four": FOUR, "other": PLAIN},  # the other engine has another adapter
        {"ref_four": FOUR, "ref": SLOW},  # the other engine reports nothing, so it may use drafts
        {"ref_four": FOUR, "ref": PLAIN, "ref_again": PLAIN},  # ambiguous
    ],
)
def test_without_one_engine_to_compare_with_there_is_a_table_and_no_chart(engines: dict[str, Speed], tmp_path: Path):
    view = section(tmp_path, **engines)
    assert view.table is not None
    assert view.charts == []


def test_one_trial_has_a_speed_up_without_bounds_and_two_have_bounds(tmp_path: Path):
    drawn: dict[int, str] = {}
    for repeats in (1, 2):
        sheet = Sheet(engines={"ref": PLAIN, "ref_four": FOUR}, loads=LOADS[:1], repeats=repeats, invalid=())
        (drawn[repeats],) = speculation_view(results.load(build_run(tmp_path / str(repeats), sheet))).charts
    assert "× measured" in drawn[1]
    assert re.search(r"× \[[\d.]+, [\d.]+\] measured", drawn[2])


@pytest.mark.parametrize("name", ["label", "adapter"])
def test_an_engine_that_was_told_to_speculate_is_no_measure_even_if_it_never_did(name: str, tmp_path: Path):
    sheet = Sheet(engines={"ref": PLAIN, "ref_idle": PLAIN, "ref_four": FOUR}, loads=LOADS[:1], invalid=())
    run = results.load(build_run(tmp_path, sheet))
    assert speculation_view(run).charts == []
    run.manifest.experiment["engines"] = [{name: "ref_idle", "spec": {"speculation": {"method": "ngram"}}}]
    (svg,) = speculation_view(run).charts
    assert "ref_idle" not in svg


@pytest.mark.slow
def test_a_run_without_drafts_has_nothing_on_speculation(demo: results.Run):
    assert speculation_view(demo).table is None
    assert ">Speculation</h3>" not in render_html(demo)


def test_the_page_has_table_and_chart(tmp_path: Path):
    sheet = Sheet(engines={"ref": PLAIN, "ref_four": FOUR}, loads=LOADS[:1], invalid=())
    page = render_html(results.load(build_run(tmp_path, sheet)))
    assert page.count(">Speculation</h3>") == page.count(">Speed-up against acceptance</h3>") == 1
    assert 'href="#seen-server_accepted_at_3_share"' in page
    assert 'href="#seen-server_accepted_at_4_share"' not in page


def test_a_mark_lies_below_its_curve_by_what_is_missing():
    mark = Measured("e", 0, 0.8, 5.0, Interval(1.845, 1.8, 1.9, 3))
    svg = speed_up_chart("t", "c=1", [mark])
    (expected,) = re.findall(r'<circle cx="[\d.]+" cy="([\d.]+)" r="3.2" class="hollow"', svg)
    (measured,) = re.findall(r'<circle cx="[\d.]+" cy="([\d.]+)" r="4.5" class="mark"', svg)
    (bottom,) = re.findall(r'y1="([\d.]+)" x2="[\d.]+" y2="\1" class="grid"', svg)[:1]
    assert (float(bottom) - float(measured)) / (float(bottom) - float(expected)) == pytest.approx(0.5, abs=0.01)
    assert svg.count('class="error"') == 1
    assert 'class="error"' not in speed_up_chart("t", "c=1", [Measured("e", 0, 0.8, 5.0, Interval(1.8, None, None, 1))])
    assert speed_up_chart("t", "c=1", []) == ""
