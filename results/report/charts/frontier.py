"""Engines as lines through points that trade one quantity for another, such as throughput for interactivity."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from markupsafe import Markup

from bakeoff.results.metrics import Unit
from bakeoff.results.report.charts.axes import tick_text, x_axis, y_axis
from bakeoff.results.report.charts.labels import Box, Labels, around
from bakeoff.results.report.charts.scales import Axis, fitted_axis, zero_axis
from bakeoff.results.report.charts.svg import chart, engine_class, label, line, mark, polyline, tag
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.text.format import bounds_text, scale_for

WIDTH, HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 600, 44, 350
_NAME_SIZE, _LEVEL_SIZE = 14.0, 11.5
Path = list[tuple[float, float]]


class Quantity(msgspec.Struct, frozen=True):
    """Quantity of an axis.

    Attributes:
        unit: of the values.
        noun: follows the values in texts.
        title: of the axis.
        from_zero: whether the axis is linear and begins at zero, whatever the values are.
    """

    unit: Unit
    noun: str
    title: str
    from_zero: bool = False

    def axis(self, values: Iterable[float], start: float, end: float) -> Axis:
        """The axis on pixels."""
        return (zero_axis if self.from_zero else fitted_axis)(values, start, end)


INTERACTIVITY = Quantity(
    Unit.COUNT, " tokens/s for each user", "interactivity: tokens/s for each user (1 / TPOT p50) →"
)
THROUGHPUT = Quantity(Unit.COUNT, " tokens/s in all", "↑ throughput: output tokens/s, all users")
ARRIVALS = Quantity(Unit.COUNT, " requests/s planned", "requests/s planned in the window →", from_zero=True)
GOODPUT = Quantity(Unit.COUNT, " requests/s within the SLO", "↑ goodput: requests/s within the SLO", from_zero=True)
MEMORY_GIB = Quantity(Unit.COUNT, " GiB at most", "← peak memory, GiB")
MISMATCH = Quantity(Unit.SHARE, " of the tokens differ", "↓ tokens that differ from the reference’s")


class Point(msgspec.Struct, frozen=True):
    """One level of one engine; without a name for the level, the mark has no label."""

    level: str
    x: Interval
    y: Interval


class Series(msgspec.Struct, frozen=True):
    """Levels of one engine in the order of the line; ``position`` chooses colour and mark."""

    engine: str
    position: int
    points: list[Point]


def frontier(
    title: str, series: Sequence[Series], across: Quantity = INTERACTIVITY, up: Quantity = THROUGHPUT
) -> Markup:
    """Draw engines by two quantities; empty if no engine has a point."""
    drawn = [curve for curve in series if curve.points]
    if not drawn:
        return Markup("")
    x = across.axis(_values(point.x for curve in drawn for point in curve.points), _LEFT, _RIGHT)
    y = up.axis(_values(point.y for curve in drawn for point in curve.points), _BOTTOM, _TOP)
    parts = [
        x_axis(x, across.unit, _TOP, _BOTTOM, across.title),
        y_axis(y, [(value, tick_text(up.unit, value, y)) for value in y.ticks()], _LEFT, _RIGHT, up.title),
    ]
    paths = {curve.engine: [(x.at(p.x.centre), y.at(p.y.centre)) for p in curve.points] for curve in drawn}
    labels = Labels(Box(_LEFT, _TOP - 22, WIDTH, _BOTTOM), paths.values())
    names = {curve.engine: _name(curve, paths[curve.engine], labels) for curve in drawn}
    texts = {curve.engine: [_point_text(point, across, up) for point in curve.points] for curve in drawn}
    parts += [_draw(curve, paths[curve.engine], texts[curve.engine], x, y) for curve in drawn]
    # Text last, so that no line crosses it. Names are placed before levels.
    parts += names.values()
    parts += [_levels(curve, paths[curve.engine], labels) for curve in drawn]
    return chart(title, _description(drawn, texts), WIDTH, HEIGHT, *parts, class_="frontier")


def _values(intervals: Iterable[Interval]) -> list[float]:
    """Values that the axis covers: all centres, and bounds up to a factor of 2 beyond them; wider bars are clipped."""
    all_intervals = list(intervals)
    low = min(interval.centre for interval in all_intervals) / 2
    high = max(interval.centre for interval in all_intervals) * 2
    bounds = [bound for interval in all_intervals for bound in (interval.low, interval.high) if bound is not None]
    return [interval.centre for interval in all_intervals] + [min(high, max(low, bound)) for bound in bounds]


def _draw(series: Series, path: Path, texts: Sequence[str], x: Axis, y: Axis) -> Markup:
    parts = [polyline(path, "curve")]
    for point, text, (px, py) in zip(series.points, texts, path, strict=True):
        parts += _error_bars(point, x, y)
        parts.append(mark(px, py, series.position, 4.5, f"{series.engine}{_at(point)}: {text}"))
    return tag("g", *parts, class_=engine_class(series.position))


def _name(series: Series, path: Path, labels: Labels) -> Markup:
    """The engine's name beside the line, at the highest load with room."""
    spots = [spot for px, py in reversed(path) for spot in around(px, py, 11)]
    spot = labels.place(series.engine, _NAME_SIZE, spots) or spots[0]
    return label(spot.x, spot.y, series.engine, f"name {engine_class(series.position)}", spot.anchor)


def _levels(series: Series, path: Path, labels: Labels) -> Markup:
    """The load at each mark with room; tooltips always have it."""
    parts: list[Markup] = []
    for point, (px, py) in zip(series.points, path, strict=True):
        spot = labels.place(point.level, _LEVEL_SIZE, around(px, py)) if point.level else None
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


def _at(point: Point) -> str:
    return f" at {point.level}" if point.level else ""


def _point_text(point: Point, across: Quantity, up: Quantity) -> str:
    return f"{_value_text(point.x, across)}, {_value_text(point.y, up)}"


def _value_text(interval: Interval, quantity: Quantity) -> str:
    scale = scale_for(quantity.unit, interval.centre)
    return f"{scale.number(interval.centre)}{scale.unit} {bounds_text(interval, scale)}".rstrip() + quantity.noun


def _description(series: Sequence[Series], texts: Mapping[str, Sequence[str]]) -> str:
    lines = {
        curve.engine: "; ".join(
            f"{point.level} {text}".lstrip() for point, text in zip(curve.points, texts[curve.engine], strict=True)
        )
        for curve in series
    }
    return " ".join(f"{engine}: {line}." for engine, line in lines.items())
