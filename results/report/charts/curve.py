"""Line chart of a share against another quantity, with a limit."""

from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from bakeoff.results.metrics import Unit
from bakeoff.results.report.charts.axes import heading, tick_text, x_axis_at, y_axis
from bakeoff.results.report.charts.scales import Axis, Scale
from bakeoff.results.report.charts.svg import chart, engine_class, label, line, mark, polyline, tag

WIDTH, HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 626, 40, 252
_HEADROOM = 18
"""Pixels above the limit that its name needs to stay clear of the axis title."""


class Point(msgspec.Struct, frozen=True):
    """A point of the line; ``hint`` is its tooltip."""

    x: float
    share: float
    hint: str


def curve(
    title: str,
    description: str,
    points: Sequence[Point],
    x: Scale,
    y_title: str,
    *,
    limit: tuple[float, str],
    position: int = 0,
) -> Markup:
    """Draw shares against the x axis; empty without points.

    Args:
        title: of the chart.
        description: for screen readers.
        points: from left to right.
        x: scale below the plot.
        y_title: name of the share.
        limit: a share with its name.
        position: of the engine, chooses colour and marks.
    """
    if not points:
        return Markup("")
    top = max(limit[0], *(point.share for point in points))
    y = Axis(0.0, min(1.0, top * 1.15) or 1.0, _BOTTOM, _TOP)
    axis = x.axis(_LEFT, _RIGHT)
    places = [(axis.at(point.x), y.at(point.share)) for point in points]
    at = y.at(limit[0])
    parts = [
        x_axis_at(axis, x.ticks, _TOP, _BOTTOM, x.title),
        y_axis(y, [(value, tick_text(Unit.SHARE, value, y)) for value in y.ticks()], _LEFT, _RIGHT, y_title),
        heading(_TOP, _RIGHT, title),
        line(_LEFT, at, _RIGHT, at, "limit"),
        label(_LEFT + 6, at - 5 if at - _TOP > _HEADROOM else at + 14, limit[1], "level"),
        polyline(places, "curve"),
        *(mark(px, py, position, 4, point.hint) for (px, py), point in zip(places, points, strict=True)),
    ]
    return chart(title, description, WIDTH, HEIGHT, tag("g", *parts), class_=f"limited {engine_class(position)}")
