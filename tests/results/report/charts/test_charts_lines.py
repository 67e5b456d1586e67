"""Line charts with limits: points lie at their values, limits are named, and empty data give no drawing."""

from xml.etree import ElementTree as ET

from bakeoff.results.metrics import Unit
from bakeoff.results.report.charts.lines import Frame, Line, Span, lines_chart
from bakeoff.results.report.charts.scales import Scale

FRAME = Frame("t", "head", Scale(1.0, 100.0, [(1.0, "1"), (100.0, "100")], "batch", log=True), Unit.BYTES, "↑ memory")
GIB = 2.0**30


def drawn(lines: list[Line], limits: list[tuple[float, str]]) -> ET.Element:
    return ET.fromstring(lines_chart(FRAME, lines, limits))


def test_marks_lie_on_logarithmic_axes():
    svg = drawn([Line("a", 0, [(1.0, GIB), (10.0, 4 * GIB), (100.0, 16 * GIB)])], [])
    marks = [(float(mark.get("cx", 0)), float(mark.get("cy", 0))) for mark in svg.iter("circle")]
    assert len(marks) == 3
    (x0, y0), (x1, y1), (x2, y2) = marks
    assert abs((x2 - x1) - (x1 - x0)) < 0.2
    assert abs((y2 - y1) - (y1 - y0)) < 0.2
    assert y2 < y0


def test_lines_and_limits_are_named_and_tooltips_have_values():
    svg = drawn([Line("one", 0, [(1.0, GIB), (100.0, 2 * GIB)])], [(8 * GIB, "card")])
    texts = {text.text for text in svg.iter("text")}
    assert {"one", "card", "head", "↑ memory", "batch", "1", "100"} <= texts
    assert {title.text for title in svg.iter("title")} >= {"one: 1.00 GiB", "one: 2.00 GiB"}
    assert [line.get("class") for line in svg.iter("line")].count("limit") == 1


def test_bytes_have_ticks_at_powers_of_two():
    svg = drawn([Line("a", 0, [(1.0, GIB), (100.0, 3 * GIB)])], [])
    assert {text.text for text in svg.iter("text")} >= {"1 GiB", "2 GiB"}


def test_a_span_lies_on_its_limit_between_its_ends():
    spans = [Span(8 * GIB, 1.0, 10.0, 100.0, 1, "a: 10 [1, 100]")]
    svg = ET.fromstring(lines_chart(FRAME, [Line("a", 1, [(1.0, GIB), (100.0, GIB)])], [(8 * GIB, "card")], spans))
    lines = {
        line.get("class"): {k: float(line.get(k, "")) for k in ("x1", "y1", "x2", "y2")} for line in svg.iter("line")
    }
    span, tick, limit = lines["interval-bar"], lines["estimate"], lines["limit"]
    assert span == limit, "from end to end of the axis"
    assert tick["x1"] == tick["x2"] == (span["x1"] + span["x2"]) / 2
    assert "a: 10 [1, 100]" in (svg.get("aria-label") or "")


def test_empty_data_give_no_drawing():
    assert lines_chart(FRAME, [], []) == ""
