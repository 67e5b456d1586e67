"""Column charts: an amount per interval of time or size.

Columns start at zero, so their heights can be compared; their widths are those of their intervals.
"""

from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from bakeoff.results.report.charts.axes import heading, rates, x_axis_at, y_axis
from bakeoff.results.report.charts.labels import Box, Labels, Spot
from bakeoff.results.report.charts.scales import Axis, Scale
from bakeoff.results.report.charts.svg import chart, engine_class, label, line, num, tag

WIDTH, HEIGHT = 540, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 530, 34, 186
_MARK_SIZE, _MARK_ROWS = 11.5, 3
_HEADROOM = {False: 1.08, True: 1.3}
"""Upper end of the y axis as a multiple of the highest column, without and with marks."""


class Column(msgspec.Struct, frozen=True):
    """One column over ``low``…``high``; ``hint`` is its tooltip."""

    low: float
    high: float
    height: float
    hint: str


def columns(
    title: str,
    description: str,
    drawn: Sequence[Column],
    x: Scale,
    y_title: str,
    *,
    marks: Sequence[tuple[float, str]] = (),
    level: float | None = None,
    position: int = 0,
) -> Markup:
    """Draw columns; empty without columns.

    Args:
        title: of the chart.
        description: for screen readers.
        drawn: from left to right.
        x: scale below the columns.
        y_title: quantity and unit of the height.
        marks: values on the x axis with their names, most important first; names without room are omitted.
        level: reference height, drawn as a dashed line; the title explains it.
        position: of the engine, chooses the colour.
    """
    if not drawn:
        return Markup("")
    highest = max(level or 0.0, *(column.height for column in drawn))
    y = Axis(0.0, highest * _HEADROOM[bool(marks)] or 1.0, _BOTTOM, _TOP)
    axis = x.axis(_LEFT, _RIGHT)
    parts = [
        x_axis_at(axis, x.ticks, _TOP, _BOTTOM, x.title),
        y_axis(y, rates(y), _LEFT, _RIGHT, y_title),
        heading(_TOP, _RIGHT, title),
        tag("path", d="".join(_outline(column, axis, y) for column in drawn), class_="column"),
        *([] if level is None else [line(_LEFT, y.at(level), _RIGHT, y.at(level), "limit")]),
        *_marked(marks, axis),
        *(_sensor(column, axis) for column in drawn),
    ]
    return chart(title, description, WIDTH, HEIGHT, *parts, class_=f"columns {engine_class(position)}")


def _outline(column: Column, x: Axis, y: Axis) -> str:
    """Outline of a column, with a gap to its right if it is wide enough."""
    left, right, top = x.at(column.low), x.at(column.high), y.at(column.height)
    right -= 0.8 if right - left > 3 else 0
    return f"M{num(left)} {_BOTTOM}V{num(top)}H{num(right)}V{_BOTTOM}z" if column.height else ""


def _sensor(column: Column, x: Axis) -> Markup:
    """Hover area over the full height, so that low columns can be hit."""
    left, right = x.at(column.low), x.at(column.high)
    area = {"x": left, "y": _TOP, "width": right - left, "height": _BOTTOM - _TOP}
    return tag("rect", tag("title", column.hint), class_="sensor", **area)


def _marked(marks: Sequence[tuple[float, str]], x: Axis) -> list[Markup]:
    """Vertical lines, with names in up to three rows below the plot's upper edge."""
    labels = Labels(Box(_LEFT, _TOP - 4, WIDTH, _BOTTOM), [])
    lines, names = list[Markup](), list[Markup]()
    for value, name in marks:
        at = x.at(value)
        lines.append(line(at, _TOP, at, _BOTTOM, "limit"))
        rows = [_TOP + 9 + 14 * row for row in range(_MARK_ROWS)]
        spots = [Spot(*place) for row in rows for place in ((at + 4, row, "start"), (at - 4, row, "end"))]
        if spot := labels.place(name, _MARK_SIZE, spots):
            names.append(label(spot.x, spot.y, name, "level", spot.anchor))
    return lines + names
