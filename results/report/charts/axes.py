"""Axes of a chart: grid lines, ticks in the metric's unit, and titles."""

from collections.abc import Sequence

from markupsafe import Markup

from bakeoff.results.metrics import Unit
from bakeoff.results.report.charts.scales import Axis
from bakeoff.results.report.charts.svg import label, line, tag
from bakeoff.results.text.format import scale_for


def tick_text(unit: Unit, value: float, axis: Axis) -> str:
    """Tick label: ``50``, ``0.5 s``; on a logarithmic axis ``500 ms``, ``1 s``.

    Linear axes use the unit of their upper end for all ticks; logarithmic axes choose a unit per tick.
    """
    scale = scale_for(unit, value if axis.log else axis.high)
    digits = f"{value / scale.factor:,.3f}".rstrip("0").rstrip(".")
    return f"{digits}{scale.unit}"


def x_axis(axis: Axis, unit: Unit, top: float, bottom: float, title: str) -> Markup:
    """X axis with default ticks: labels below the plot, vertical grid lines, title under the labels."""
    return x_axis_at(axis, [(value, tick_text(unit, value, axis)) for value in axis.ticks()], top, bottom, title)


def x_axis_at(axis: Axis, ticks: Sequence[tuple[float, str]], top: float, bottom: float, title: str) -> Markup:
    """X axis with the given ticks."""
    parts: list[Markup] = []
    for value, text in ticks:
        x = axis.at(value)
        parts.append(line(x, top, x, bottom, "grid"))
        parts.append(label(x, bottom + 16, text, "tick", "middle"))
    parts.append(label(axis.end, bottom + 34, title, "axis", "end"))
    return tag("g", *parts)


def y_axis(axis: Axis, ticks: Sequence[tuple[float, str]], left: float, right: float, title: str) -> Markup:
    """Y axis: labels left of the plot, horizontal grid lines, title above."""
    parts: list[Markup] = []
    for value, text in ticks:
        y = axis.at(value)
        parts.append(line(left, y, right, y, "grid"))
        parts.append(label(left - 6, y + 4, text, "tick", "end"))
    parts.append(label(0, axis.end - 14, title, "axis", "start"))
    return tag("g", *parts)


def heading(y: float, right: float, text: str) -> Markup:
    """Heading of the plot, in bold above its right end."""
    return label(right, y - 14, text, "heading", "end")


def rates(axis: Axis) -> list[tuple[float, str]]:
    """Ticks of a rate axis: digits only, the unit is in the title."""
    return [(value, tick_text(Unit.COUNT, value, axis)) for value in axis.ticks()]
