"""Columns and limited curves: heights and positions follow the data."""

import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.results.report.charts import columns, curve
from bakeoff.results.report.charts.columns import Column
from bakeoff.results.report.charts.curve import Point
from bakeoff.results.report.charts.scales import Scale

SCALE = Scale(0.0, 4.0, [(0.0, "0"), (4.0, "4")], "time")


def drawn(
    heights: list[float], *, level: float | None = None, marks: list[tuple[float, str]] | None = None
) -> ET.Element:
    bars = [Column(float(i), i + 1.0, height, f"bar {i}") for i, height in enumerate(heights)]
    scale = Scale(0.0, float(len(heights)), [], "time")
    return ET.fromstring(columns.columns("t", "words", bars, scale, "↑ n", level=level, marks=marks or ()))


def outlines(svg: ET.Element) -> list[tuple[float, float, float, float]]:
    """Left, bottom, top and right of each column."""
    (path,) = [path for path in svg.iter("path") if path.get("class") == "column"]
    number = r"([\d.]+)"
    corners = re.findall(rf"M{number} {number}V{number}H{number}V", path.get("d", ""))
    return [(float(left), float(bottom), float(top), float(right)) for left, bottom, top, right in corners]


@given(st.lists(st.floats(0.5, 1e4), min_size=1, max_size=120))
def test_heights_are_in_proportion_and_columns_in_order(heights: list[float]) -> None:
    edges = outlines(drawn(heights))
    assert len(edges) == len(heights)
    tallest = max(bottom - top for _, bottom, top, _ in edges)
    for (_, bottom, top, _), height in zip(edges, heights, strict=True):
        assert (bottom - top) / tallest == pytest.approx(height / max(heights), abs=0.01)
    assert [left for left, *_ in edges] == sorted(left for left, *_ in edges)


def test_nothing_of_no_height_is_drawn_but_it_can_be_pointed_at() -> None:
    svg = drawn([1.0, 0.0, 2.0])
    assert len(outlines(svg)) == 2
    assert [rect.findtext("title") for rect in svg.iter("rect")] == ["bar 0", "bar 1", "bar 2"]


def test_a_level_above_all_columns_is_inside_the_plot() -> None:
    (level,) = [line for line in drawn([1.0, 2.0], level=3.0).iter("line") if line.get("class") == "limit"]
    highest = min(top for _, _, top, _ in outlines(drawn([1.0, 2.0], level=3.0)))
    assert 34 < float(level.get("y1", "0")) < highest


def test_every_mark_has_a_line_and_a_name_where_there_is_room() -> None:
    marks = [(1.0 + i / 1000, f"mark {i}") for i in range(9)]
    svg = drawn([1.0] * 3, marks=marks)
    names = [text for label in svg.iter("text") if (text := label.text or "").startswith("mark")]
    assert sum(line.get("class") == "limit" for line in svg.iter("line")) == 9
    assert names[0] == "mark 0"
    assert 2 <= len(names) < 9


def test_a_curve_stays_below_its_limit() -> None:
    points = [Point(1.0, 0.1, "a"), Point(2.0, 0.3, "b"), Point(4.0, 0.4, "c")]
    svg = ET.fromstring(curve.curve("hits", "words", points, SCALE, "share", limit=(0.4, "bound 40 %")))
    (limit,) = [float(line.get("y1", "0")) for line in svg.iter("line") if line.get("class") == "limit"]
    places = [float(circle.get("cy", "0")) for circle in svg.iter("circle")]
    assert places == sorted(places, reverse=True)
    assert places[-1] == limit
    assert [circle.findtext("title") for circle in svg.iter("circle")] == ["a", "b", "c"]


@pytest.mark.parametrize("share", [0.02, 0.5, 0.97, 1.0])
def test_the_limits_name_does_not_meet_the_axis_title(share: float) -> None:
    svg = ET.fromstring(
        curve.curve("hits", "w", [Point(1.0, share, "a")], SCALE, "share of it", limit=(share, "bound"))
    )
    places = {label.text: float(label.get("y", "0")) for label in svg.iter("text")}
    assert places["bound"] - places["share of it"] > 12


def test_nothing_to_draw() -> None:
    assert columns.columns("t", "w", [], SCALE, "n") == ""
    assert curve.curve("t", "w", [], SCALE, "n", limit=(1.0, "all")) == ""
    assert outlines(drawn([0.0, 0.0])) == []
