"""Columns: how much there is in each interval of time or of size.

Columns stand on zero, so their heights may be compared; their widths are those of their intervals.
"""

from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from results.report.charts.axes import heading, rates, x_axis_at, y_axis
from results.report.charts.labels import Box, Labels, Spot
from results.report.charts.scales import Axis, Scale
from results.report.charts.svg import chart, engine_class, label, line, num, tag

WIDTH, HEIGHT = 540, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 530, 34, 186
_MARK_SIZE, _MARK_ROWS = 11.5, 3
_HEADROOM = {False: 1.08, True: 1.3}
"""Of the plot above its highest column, without marks and with them."""


class Column(msgspec.Struct, frozen=True):
    """One column over ``low``…``high``; ``hint`` is what a pointer above it reads."""

    low: float
    high: float
    height: float
    hint: str


def columns(
    title: str,
    words: str,
    drawn: Sequence[Column],
    x: Scale,
    y_title: str,
    *,
    marks: Sequence[tuple[float, str]] = (),
    level: float | None = None,
    position: int = 0,
) -> Markup:
    """Draw columns; empty when there is none.

    Args:
        title: what they are of.
        words: what a screen reader says after it.
        drawn: from left to right.
        x: below them.
        y_title: what their height is, with its unit.
        marks: values of the x axis with their names, the most telling first: one without room has no name.
        level: a height to compare with, as a dashed line; the title says which.
        position: chooses the colour.
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
    return chart(title, words, WIDTH, HEIGHT, *parts, class_=f"columns {engine_class(position)}")


def _outline(column: Column, x: Axis, y: Axis) -> str:
    """A column with a hair of paper to its right, where it is wide enough to spare it."""
    left, right, top = x.at(column.low), x.at(column.high), y.at(column.height)
    right -= 0.8 if right - left > 3 else 0
    return f"M{num(left)} {_BOTTOM}V{num(top)}H{num(right)}V{_BOTTOM}z" if column.height else ""


def _sensor(column: Column, x: Axis) -> Markup:
    """The whole height above a column, so that a low one can be pointed at."""
    left, right = x.at(column.low), x.at(column.high)
    area = {"x": left, "y": _TOP, "width": right - left, "height": _BOTTOM - _TOP}
    return tag("rect", tag("title", column.hint), class_="sensor", **area)


def _marked(marks: Sequence[tuple[float, str]], x: Axis) -> list[Markup]:
    """Upright lines, their names in up to three rows below the plot's upper edge."""
    room = Labels(Box(_LEFT, _TOP - 4, WIDTH, _BOTTOM), [])
    lines, names = list[Markup](), list[Markup]()
    for value, name in marks:
        at = x.at(value)
        lines.append(line(at, _TOP, at, _BOTTOM, "limit"))
        rows = [_TOP + 9 + 14 * row for row in range(_MARK_ROWS)]
        spots = [Spot(*place) for row in rows for place in ((at + 4, row, "start"), (at - 4, row, "end"))]
        if spot := room.place(name, _MARK_SIZE, spots):
            names.append(label(spot.x, spot.y, name, "level", spot.anchor))
    return lines + names
