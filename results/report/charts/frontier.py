"""Throughput against interactivity: what one more user costs all the others.

x is what one user feels (1 / TPOT p50, tokens per second), y what the machine delivers; up and right is better.
"""

from collections.abc import Iterable, Sequence

import msgspec
from markupsafe import Markup

from results.metrics import Unit
from results.report.charts.axes import rates, x_axis, y_axis
from results.report.charts.labels import Box, Labels, around
from results.report.charts.scales import Axis, fitted_axis
from results.report.charts.svg import chart, engine_class, label, line, mark, polyline, tag
from results.statistics.interval import Interval
from results.text.format import bounds_text, scale_for

WIDTH, HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 600, 44, 350
_NAME_SIZE, _LEVEL_SIZE = 14.0, 11.5
Path = list[tuple[float, float]]


class Point(msgspec.Struct, frozen=True):
    """One closed-loop level of one engine; both intervals in tokens per second."""

    level: str
    x: Interval
    y: Interval


class Series(msgspec.Struct, frozen=True):
    """One engine's levels by rising concurrency; ``position`` chooses its colour and mark."""

    engine: str
    position: int
    points: list[Point]


def frontier(title: str, series: Sequence[Series]) -> Markup:
    """Draw the frontier of one workload; empty when no engine has a closed-loop level."""
    drawn = [one for one in series if one.points]
    if not drawn:
        return Markup("")
    x = fitted_axis(_values(point.x for one in drawn for point in one.points), _LEFT, _RIGHT)
    y = fitted_axis(_values(point.y for one in drawn for point in one.points), _BOTTOM, _TOP)
    parts = [
        x_axis(x, Unit.COUNT, _TOP, _BOTTOM, "interactivity: tokens/s for each user (1 / TPOT p50) →"),
        y_axis(y, rates(y), _LEFT, _RIGHT, "↑ throughput: output tokens/s, all users"),
    ]
    paths = {one.engine: [(x.at(p.x.centre), y.at(p.y.centre)) for p in one.points] for one in drawn}
    labels = Labels(Box(_LEFT, _TOP - 22, WIDTH, _BOTTOM), paths.values())
    names = {one.engine: _name(one, paths[one.engine], labels) for one in drawn}
    parts += [_draw(one, paths[one.engine], x, y) for one in drawn]
    # Texts last, so that no line crosses them: all names find their place before any level does.
    parts += names.values()
    parts += [_levels(one, paths[one.engine], labels) for one in drawn]
    return chart(title, _describe(drawn), WIDTH, HEIGHT, *parts, class_="frontier")


def _values(intervals: Iterable[Interval]) -> list[float]:
    """What the axis must hold: all centres, and their bounds as far as twice beyond; wider bars end at the frame."""
    known = list(intervals)
    low = min(interval.centre for interval in known) / 2
    high = max(interval.centre for interval in known) * 2
    bounds = [bound for one in known for bound in (one.low, one.high) if bound is not None]
    return [one.centre for one in known] + [min(high, max(low, bound)) for bound in bounds]


def _draw(one: Series, path: Path, x: Axis, y: Axis) -> Markup:
    parts = [polyline(path, "curve")]
    for point, (px, py) in zip(one.points, path, strict=True):
        parts += _error_bars(point, x, y)
        parts.append(mark(px, py, one.position, 4.5, f"{one.engine} at {point.level}: {_words(point)}"))
    return tag("g", *parts, class_=engine_class(one.position))


def _name(one: Series, path: Path, labels: Labels) -> Markup:
    """The engine's name beside the line, at its heaviest load if there is room, else at the next lighter one."""
    spots = [spot for px, py in reversed(path) for spot in around(px, py, 11)]
    spot = labels.place(one.engine, _NAME_SIZE, spots) or spots[0]
    return label(spot.x, spot.y, one.engine, f"name {engine_class(one.position)}", spot.anchor)


def _levels(one: Series, path: Path, labels: Labels) -> Markup:
    """The load at each mark, where there is room; the mark's tooltip has it in any case."""
    parts: list[Markup] = []
    for point, (px, py) in zip(one.points, path, strict=True):
        spot = labels.place(point.level, _LEVEL_SIZE, around(px, py))
        if spot is not None:
            parts.append(label(spot.x, spot.y, point.level, "level", spot.anchor))
    return tag("g", *parts)


def _error_bars(point: Point, x: Axis, y: Axis) -> list[Markup]:
    cx, cy = x.at(point.x.centre), y.at(point.y.centre)
    bars: list[Markup] = []
    if point.x.low is not None and point.x.high is not None:
        bars.append(line(x.at(point.x.low), cy, x.at(point.x.high), cy, "error"))
    if point.y.low is not None and point.y.high is not None:
        bars.append(line(cx, y.at(point.y.low), cx, y.at(point.y.high), "error"))
    return bars


def _words(point: Point) -> str:
    x, y = scale_for(Unit.COUNT, point.x.centre), scale_for(Unit.COUNT, point.y.centre)
    felt = f"{x.number(point.x.centre)} {bounds_text(point.x, x)}".rstrip()
    made = f"{y.number(point.y.centre)} {bounds_text(point.y, y)}".rstrip()
    return f"{felt} tokens/s for each user, {made} tokens/s in all"


def _describe(series: Sequence[Series]) -> str:
    return " ".join(f"{one.engine}: {'; '.join(f'{p.level} {_words(p)}' for p in one.points)}." for one in series)
