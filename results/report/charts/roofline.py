"""The roofline of a machine: arithmetic intensity against operations per second, a point for each phase of a trial.

Williams et al.: *Roofline: an insightful visual performance model for multicore architectures*. CACM 52 (2009).
"""

from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from bakeoff.results.attribution.roofline import Ceiling, PhaseWork, StepPhase
from bakeoff.results.report.charts.axes import x_axis_at, y_axis
from bakeoff.results.report.charts.labels import Box, Labels, Spot, around
from bakeoff.results.report.charts.scales import Axis
from bakeoff.results.report.charts.svg import chart, engine_class, label, line, mark, polyline, tag
from bakeoff.results.text.format import percent_text, rate_text
from bakeoff.results.text.roofline import ceiling_text

WIDTH, HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 740, 44, 362
_SIZE, _MARK = 12.0, 5.0
_FLOPS_UNITS = ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"), (1.0, "FLOP/s"))
_BEYOND = 2.5
"""Factor by which the axes reach beyond points and ridge."""
_Path = list[tuple[float, float]]


class Point(msgspec.Struct, frozen=True):
    """One phase of a trial; ``position`` of the engine chooses colour and mark."""

    engine: str
    position: int
    load: str
    phase: StepPhase
    work: PhaseWork


def roofline(title: str, ceiling: Ceiling, points: Sequence[Point], critical: str) -> Markup:
    """Draw one machine; empty without points.

    Args:
        title: of the chart.
        ceiling: the roof.
        points: phases of trials on that machine.
        critical: names the critical batch, at the ridge.
    """
    if not points:
        return Markup("")
    x, y = _axes(ceiling, points)
    unit = next(unit for unit in _FLOPS_UNITS if ceiling.flops_per_s >= unit[0])
    low, high = _roof(ceiling, 0), _roof(ceiling, 1)
    roof = _path(ceiling.bytes_per_s, ceiling.flops_per_s, x, y)
    ridge = x.at(ceiling.ridge)
    spots = [(x.at(point.work.intensity), y.at(point.work.flops_per_s)) for point in points]
    marks = [[(across - _MARK, up), (across + _MARK, up)] for across, up in spots]
    labels = Labels(Box(_LEFT, _TOP - 18, WIDTH, _BOTTOM), [roof, *marks])
    parts = [
        x_axis_at(x, [(value, f"{value:,g}") for value in x.ticks()], _TOP, _BOTTOM, "operations a byte →"),
        y_axis(y, [(value, f"{value / unit[0]:,g}") for value in y.ticks()], _LEFT, _RIGHT, f"↑ {unit[1]}"),
        polyline([*_path(*low, x, y), *reversed(_path(*high, x, y))], "roof-range"),
        polyline(roof, "roof"),
        line(ridge, y.at(ceiling.flops_per_s), ridge, _BOTTOM, "limit"),
        _placed(labels, critical, "level", [Spot(ridge + 6, _BOTTOM - 8), Spot(ridge - 6, _BOTTOM - 8, "end")]),
        *_roof_names(ceiling, roof, labels),
        *[_drop(point, ceiling, x, y) for point in points],
        *[_mark(point, ceiling, x, y) for point in points],
        *_names(points, spots, labels),
        *[
            _placed(labels, point.load, "level", around(across, up))
            for point, (across, up) in zip(points, spots, strict=True)
        ],
    ]
    description = " ".join(f"{_title(point)}: {_hint(point, ceiling)}." for point in points)
    roof_text = f"Roof of {ceiling_text(ceiling)}; {critical}."
    return chart(title, f"{roof_text} {description}", WIDTH, HEIGHT, *parts, class_="roofline")


def _axes(ceiling: Ceiling, points: Sequence[Point]) -> tuple[Axis, Axis]:
    across = [ceiling.ridge, *(point.work.intensity for point in points)]
    up = [ceiling.flops_per_s, *(point.work.flops_per_s for point in points)]
    return (
        Axis(min(across) / _BEYOND, max(across) * _BEYOND, _LEFT, _RIGHT, log=True),
        Axis(min(up) / _BEYOND, max([*up, *(ceiling.flops_range or ())]) * 1.6, _BOTTOM, _TOP, log=True),
    )


def _roof(ceiling: Ceiling, end: int) -> tuple[float, float]:
    """Bandwidth and products at one end of their spread."""
    bandwidth, flops = ceiling.bytes_range, ceiling.flops_range
    return (
        bandwidth[end] if bandwidth else ceiling.bytes_per_s,
        flops[end] if flops else ceiling.flops_per_s,
    )


def _path(bytes_per_s: float, flops_per_s: float, x: Axis, y: Axis) -> _Path:
    """The slope of the bandwidth within the axes, the ridge, and the level of the products."""
    start = max(x.low, y.low / bytes_per_s)
    corners = [
        (start, start * bytes_per_s),
        (flops_per_s / bytes_per_s, flops_per_s),
        (x.high, flops_per_s),
    ]
    return [(x.at(intensity), y.at(flops)) for intensity, flops in corners]


def _roof_names(ceiling: Ceiling, roof: _Path, labels: Labels) -> list[Markup]:
    """The bandwidth at the slope, the products above the level."""
    (x1, y1), (x2, y2), _ = roof
    middle = (x1 + x2) / 2, (y1 + y2) / 2
    flops = f"{rate_text(ceiling.flops_per_s, 'FLOP/s')} in {ceiling.dtype}"
    bandwidth = rate_text(ceiling.bytes_per_s, "B/s")
    return [
        _placed(labels, flops, "axis", [Spot(_RIGHT, y2 - 9, "end"), Spot(_RIGHT, y2 + 17, "end")]),
        _placed(labels, bandwidth, "axis", [Spot(middle[0] - 14, middle[1] - 8, "end")]),
    ]


def _drop(point: Point, ceiling: Ceiling, x: Axis, y: Axis) -> Markup:
    """From a point up to the roof above it."""
    work = point.work
    above = min(ceiling.flops_per_s, work.intensity * ceiling.bytes_per_s)
    across = x.at(work.intensity)
    drop = line(across, y.at(work.flops_per_s), across, y.at(above), "drop")
    return tag("g", drop, class_=engine_class(point.position))


def _mark(point: Point, ceiling: Ceiling, x: Axis, y: Axis) -> Markup:
    across, up = x.at(point.work.intensity), y.at(point.work.flops_per_s)
    drawn = mark(across, up, point.position, _MARK, f"{_title(point)}: {_hint(point, ceiling)}")
    return tag("g", drawn, class_=f"{engine_class(point.position)} {point.phase.value}")


def _names(points: Sequence[Point], spots: Sequence[tuple[float, float]], labels: Labels) -> list[Markup]:
    """Engine and phase beside the first point of each."""
    first: dict[tuple[str, StepPhase], tuple[Point, tuple[float, float]]] = {}
    for point, spot in zip(points, spots, strict=True):
        first.setdefault((point.engine, point.phase), (point, spot))
    return [
        _placed(labels, f"{engine}, {phase.value}", f"name {engine_class(point.position)}", around(*spot, 11))
        for (engine, phase), (point, spot) in first.items()
    ]


def _placed(labels: Labels, text: str, class_: str, spots: Sequence[Spot]) -> Markup:
    """A label if there is room for it; tooltips and the lines below the chart have the rest."""
    spot = labels.place(text, _SIZE, spots)
    return Markup("") if spot is None else label(spot.x, spot.y, text, class_, spot.anchor)


def _title(point: Point) -> str:
    return f"{point.engine}, {point.load}, {point.phase.value}"


def _hint(point: Point, ceiling: Ceiling) -> str:
    work = point.work
    return (
        f"{rate_text(work.flops_per_s, 'FLOP/s')} at {work.intensity:.3g} operations a byte, "
        f"MBU {percent_text(work.mbu(ceiling))}, MFU {percent_text(work.mfu(ceiling))}"
    )
