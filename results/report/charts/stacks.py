"""Stacked bars: components of a mean, one bar per engine and level, on one scale from zero."""

from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from bakeoff.results.metrics import Unit
from bakeoff.results.report.charts.axes import tick_text
from bakeoff.results.report.charts.scales import Axis, zero_axis
from bakeoff.results.report.charts.svg import chart, engine_class, label, line, tag
from bakeoff.results.text.format import share_text, value_text

WIDTH = 1000
_LEFT, _RIGHT, _TOP = 170, 920, 12
_ROW, _HEADING, _BAR = 24, 28, 15
_LETTER = 6.6
"""Width in pixels of a letter inside a bar."""


class Segment(msgspec.Struct, frozen=True):
    """One component of a bar; ``kind`` is its CSS class."""

    kind: str
    title: str
    seconds: float


class Stack(msgspec.Struct, frozen=True):
    """One bar; ``position`` chooses its colour."""

    engine: str
    position: int
    segments: list[Segment]

    @property
    def total(self) -> float:
        """Sum of the components, in seconds."""
        return sum(segment.seconds for segment in self.segments)


class Group(msgspec.Struct, frozen=True):
    """Bars of one level."""

    title: str
    stacks: list[Stack]


def stacks(title: str, groups: Sequence[Group], axis_title: str) -> Markup:
    """Draw groups of bars one below the other; empty without bars.

    Args:
        title: of the chart.
        groups: from top to bottom; groups without bars are omitted.
        axis_title: quantity that the length of a bar shows.
    """
    drawn = [group for group in groups if group.stacks]
    if not drawn:
        return Markup("")
    x = zero_axis((stack.total for group in drawn for stack in group.stacks), _LEFT, _RIGHT)
    bottom = _TOP + sum(_HEADING + _ROW * len(group.stacks) for group in drawn) + 4
    parts = [_ticks(x, bottom, axis_title)]
    y = float(_TOP)
    for group in drawn:
        parts.append(label(0, y + 18, group.title, "heading"))
        y += _HEADING
        for stack in group.stacks:
            parts.append(_bar(stack, x, y))
            y += _ROW
    return chart(title, _description(drawn), WIDTH, bottom + 38, *parts, class_="stacks")


def _ticks(x: Axis, bottom: float, title: str) -> Markup:
    parts: list[Markup] = []
    for value in x.ticks(6):
        parts.append(line(x.at(value), _TOP, x.at(value), bottom, "grid"))
        parts.append(label(x.at(value), bottom + 16, tick_text(Unit.SECONDS, value, x), "tick", "middle"))
    parts.append(label(_RIGHT, bottom + 34, title, "axis", "end"))
    return tag("g", *parts)


def _bar(stack: Stack, x: Axis, y: float) -> Markup:
    parts = [label(0, y + 12, stack.engine, "name")]
    start_s = 0.0
    for segment in stack.segments:
        left, right = x.at(start_s), x.at(start_s + segment.seconds)
        parts += _segment(segment, stack.total, left, right, y)
        start_s += segment.seconds
    parts.append(label(x.at(start_s) + 7, y + 12, value_text(Unit.SECONDS, stack.total), "total"))
    return tag("g", *parts, class_=engine_class(stack.position))


def _segment(segment: Segment, total: float, left: float, right: float, y: float) -> list[Markup]:
    text = value_text(Unit.SECONDS, segment.seconds)
    hint = tag("title", f"{segment.title}: {text}, {share_text(segment.seconds, total)}")
    area = {"x": left, "y": y, "width": max(0.5, right - left), "height": _BAR}
    drawn = [tag("rect", hint, class_=f"part {segment.kind}", **area)]
    if segment.seconds < total and right - left > len(text) * _LETTER + 8:
        drawn.append(label((left + right) / 2, y + 11.5, text, f"inside {segment.kind}", "middle"))
    return drawn


def _description(groups: Sequence[Group]) -> str:
    return " ".join(
        f"{group.title}, {stack.engine}: "
        + ", ".join(f"{part.title} {value_text(Unit.SECONDS, part.seconds)}" for part in stack.segments)
        + "."
        for group in groups
        for stack in group.stacks
    )
