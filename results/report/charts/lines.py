"""Lines of one quantity against another, with named limits."""

from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from bakeoff.results.metrics import Unit
from bakeoff.results.report.charts.axes import heading, tick_text, x_axis_at, y_axis
from bakeoff.results.report.charts.labels import Box, Labels, Spot, around
from bakeoff.results.report.charts.scales import Axis, Scale
from bakeoff.results.report.charts.svg import chart, engine_class, label, line, mark, polyline, tag
from bakeoff.results.text.format import value_text

WIDTH, HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 560, 40, 306
_NAME_SIZE, _LIMIT_SIZE = 13.0, 11.5
_MARGIN = 1.15


class Line(msgspec.Struct, frozen=True):
    """One line.

    Attributes:
        name: at its end.
        position: chooses the colour.
        points: x, and y in the chart's unit.
        has_marks: whether points are marked, and have tooltips.
    """

    name: str
    position: int
    points: Sequence[tuple[float, float]]
    has_marks: bool = True


class Frame(msgspec.Struct, frozen=True):
    """Titles and axes of a chart; y is logarithmic.

    Attributes:
        title: of the chart, for screen readers.
        head: heading in bold above the plot.
        x: scale below the plot.
        unit: of y.
        y_title: quantity of y.
    """

    title: str
    head: str
    x: Scale
    unit: Unit
    y_title: str


class Span(msgspec.Struct, frozen=True):
    """An interval of x on a limit.

    Attributes:
        y: of the limit.
        low: left end.
        middle: its estimate.
        high: right end.
        position: chooses the colour.
        hint: its tooltip.
    """

    y: float
    low: float
    middle: float
    high: float
    position: int
    hint: str


def lines_chart(
    frame: Frame, drawn: Sequence[Line], limits: Sequence[tuple[float, str]] = (), spans: Sequence[Span] = ()
) -> Markup:
    """Draw lines, and limits as dashed horizontals; empty without points.

    Args:
        frame: titles and axes.
        drawn: the lines.
        limits: values of y with their names.
        spans: intervals of x on limits.
    """
    values = [y for series in drawn for _, y in series.points] + [value for value, _ in limits]
    if not values:
        return Markup("")
    y = Axis(min(values) / _MARGIN, max(values) * _MARGIN, _BOTTOM, _TOP, log=True)
    ticks = [(value, tick_text(frame.unit, value, y)) for value in _ticks(y, frame.unit)]
    x = frame.x.axis(_LEFT, _RIGHT)
    paths = [[(x.at(px), y.at(py)) for px, py in series.points] for series in drawn]
    labels = Labels(Box(_LEFT, _TOP - 8, WIDTH, _BOTTOM), paths)
    parts = [
        x_axis_at(x, frame.x.ticks, _TOP, _BOTTOM, frame.x.title),
        y_axis(y, ticks, _LEFT, _RIGHT, frame.y_title),
        heading(_TOP, _RIGHT, frame.head),
        *(_limit(value, name, y, labels) for value, name in limits),
        *(_line(series, path, frame) for series, path in zip(drawn, paths, strict=True)),
        *(_span(span, x, y) for span in spans),
        *(_name(series, path, labels) for series, path in zip(drawn, paths, strict=True) if path),
    ]
    ends = [f"{series.name}: {_ends(series, frame)}" for series in drawn if series.points]
    description = "; ".join([*ends, *(span.hint for span in spans)])
    return chart(frame.title, description, WIDTH, HEIGHT, *parts, class_="limited")


def _ticks(y: Axis, unit: Unit) -> list[float]:
    """Round values; of bytes, powers of two."""
    if unit is not Unit.BYTES:
        return y.ticks()
    powers = [2.0**power for power in range(60) if y.low <= 2.0**power <= y.high]
    return powers[:: -(-len(powers) // 6) or 1]


def _line(drawn: Line, path: Sequence[tuple[float, float]], frame: Frame) -> Markup:
    marks = [
        mark(px, py, drawn.position, 3.6, f"{drawn.name}: {value_text(frame.unit, value)}")
        for (px, py), (_, value) in zip(path, drawn.points, strict=True)
    ]
    return tag("g", polyline(path, "curve"), *(marks if drawn.has_marks else []), class_=engine_class(drawn.position))


def _span(span: Span, x: Axis, y: Axis) -> Markup:
    """A bar with its estimate as a tick."""
    at, middle = y.at(span.y), x.at(span.middle)
    return tag(
        "g",
        tag("title", span.hint),
        line(x.at(span.low), at, x.at(span.high), at, "interval-bar"),
        line(middle, at - 8, middle, at + 8, "estimate"),
        class_=engine_class(span.position),
    )


def _name(drawn: Line, path: Sequence[tuple[float, float]], labels: Labels) -> Markup:
    end = path[-1]
    spots = [Spot(end[0] + 8, end[1] + 4), *(spot for px, py in reversed(path) for spot in around(px, py, 9))]
    spot = labels.place(drawn.name, _NAME_SIZE, spots) or spots[0]
    return label(spot.x, spot.y, drawn.name, f"name {engine_class(drawn.position)}", spot.anchor)


def _limit(value: float, name: str, y: Axis, labels: Labels) -> Markup:
    """The name right of the plot, or inside it where there is room."""
    at = y.at(value)
    spots = [
        Spot(_RIGHT + 6, at + 4),
        Spot(_LEFT + 6, at - 4),
        Spot(_RIGHT - 6, at - 4, "end"),
        Spot(_LEFT + 6, at + 13),
    ]
    spot = labels.place(name, _LIMIT_SIZE, spots)
    named = [label(spot.x, spot.y, name, "level", spot.anchor)] if spot else []
    return tag("g", line(_LEFT, at, _RIGHT, at, "limit"), *named)


def _ends(drawn: Line, frame: Frame) -> str:
    first, last = drawn.points[0][1], drawn.points[-1][1]
    return f"{value_text(frame.unit, first)} to {value_text(frame.unit, last)}"
