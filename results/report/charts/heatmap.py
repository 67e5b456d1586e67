"""Heatmaps of latency over time: counts of observations per interval of time and of log latency.

They show drift, stalls and multiple modes, which a distribution hides. For a small file, cells are run-length encoded
into one path per shade, on an integer grid that one transform scales.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from markupsafe import Markup

from bakeoff.results.metrics import Unit
from bakeoff.results.report.charts.axes import tick_text, x_axis
from bakeoff.results.report.charts.scales import Axis
from bakeoff.results.report.charts.svg import chart, engine_class, label, line, num, polyline, tag
from bakeoff.results.requests import Floats
from bakeoff.results.text.format import value_text

WIDTH, HEIGHT = 540, 206
SLICES, BINS, SHADES = 72, 24, 5
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 522, 26, 164
_RAMP, _MEDIAN_NEEDS = 13, 5


class Heat(msgspec.Struct, frozen=True):
    """Observations of one engine.

    Attributes:
        engine: label.
        position: chooses the colour.
        metric: name of the latency: ``TTFT``.
        noun: unit of count for the legend: ``tokens``.
        times_s: arrival times from the start of the load.
        values_s: latencies, same length.
    """

    engine: str
    position: int
    metric: str
    noun: str
    times_s: Floats
    values_s: Floats


def shared_axis(heats: Sequence[Heat]) -> Axis:
    """Common y axis of charts to compare; the extreme 0.1 % at both ends are clipped."""
    values = np.concatenate([heat.values_s for heat in heats])
    positive = values[values > 0]
    low, high = np.quantile(positive, (0.001, 0.999)).tolist() if len(positive) else (1e-3, 1.0)
    return Axis(low / 1.1, high * 1.1, _BOTTOM, _TOP, log=True)


def counted(heat: Heat, x: Axis, y: Axis) -> np.ndarray:
    """Observations per cell, shape (SLICES, BINS); each observation is in exactly one."""
    position = np.log(np.clip(heat.values_s, y.low, y.high) / y.low) / np.log(y.high / y.low)
    columns = np.clip(np.asarray(heat.times_s) / x.high * SLICES, 0, SLICES - 1).astype(int)
    rows = np.clip(position * BINS, 0, BINS - 1).astype(int)
    cells = np.zeros((SLICES, BINS), dtype=int)
    np.add.at(cells, (columns, rows), 1)
    return cells


def shades_of(cells: np.ndarray, most: int) -> np.ndarray:
    """Shade of each cell: 0 if empty, then 1 to :data:`SHADES` by the log of the count."""
    if most < 2:
        return cells * SHADES
    fraction = np.log(np.maximum(cells, 1)) / np.log(most)
    return np.where(cells > 0, 1 + np.round((SHADES - 1) * fraction), 0).astype(int)


def heatmap(title: str, heat: Heat, y: Axis) -> Markup:
    """Draw one engine; empty without observations.

    Args:
        title: of the chart.
        heat: the observations.
        y: from :func:`shared_axis`.
    """
    if not len(heat.values_s):
        return Markup("")
    x = Axis(0.0, max(float(heat.times_s.max()), 1e-3), _LEFT, _RIGHT)
    cells = counted(heat, x, y)
    most = int(cells.max())
    parts = [
        x_axis(x, Unit.SECONDS, _TOP, _BOTTOM, "since the load was put on"),
        *_ticks(y),
        _shaded(cells, most),
        *(polyline(points, "median") for points in _medians(heat, x, y)),
        tag("text", tag("tspan", heat.engine, class_="name"), f" {heat.metric}", x=0, y=12, class_="heading"),
        _legend(most, heat.noun),
    ]
    return chart(title, _description(heat), WIDTH, HEIGHT, *parts, class_=f"heat {engine_class(heat.position)}")


def _shaded(cells: np.ndarray, most: int) -> Markup:
    """All cells, one path per shade."""
    shades = shades_of(cells, most)
    paths: dict[int, list[str]] = {}
    for row, line_of_cells in enumerate(shades.T):
        for shade, start, length in _runs(line_of_cells):
            paths.setdefault(shade, []).append(f"M{start} {row}h{length}")
    width, height = (_RIGHT - _LEFT) / SLICES, (_BOTTOM - _TOP) / BINS
    place = f"matrix({width:.4f} 0 0 {-height:.4f} {_LEFT} {num(_BOTTOM - height / 2)})"
    drawn = [tag("path", d="".join(pieces), class_=f"h{shade}") for shade, pieces in sorted(paths.items())]
    return tag("g", *drawn, transform=place, class_="cells")


def _runs(shades: np.ndarray) -> list[tuple[int, int, int]]:
    """Run-length encoding of non-empty cells: (shade, start, length)."""
    edges = np.flatnonzero(np.diff(shades)) + 1
    starts, ends = [0, *edges.tolist()], [*edges.tolist(), len(shades)]
    return [(int(shades[a]), a, b - a) for a, b in zip(starts, ends, strict=True) if shades[a]]


def _medians(heat: Heat, x: Axis, y: Axis) -> list[list[tuple[float, float]]]:
    """Median per pair of slices, as polylines that break where there are too few observations."""
    values, half = np.asarray(heat.values_s), SLICES // 2
    slices = np.clip(np.asarray(heat.times_s) / x.high * half, 0, half - 1).astype(int)
    lines: list[list[tuple[float, float]]] = [[]]
    for i in range(half):
        inside = values[slices == i]
        if len(inside) >= _MEDIAN_NEEDS:
            lines[-1].append((x.at((i + 0.5) / half * x.high), y.at(float(np.median(inside)))))
        elif lines[-1]:
            lines.append([])
    return [points for points in lines if len(points) > 1]


def _ticks(y: Axis) -> list[Markup]:
    parts: list[Markup] = []
    for value in y.ticks(4):
        parts.append(line(_LEFT, y.at(value), _RIGHT, y.at(value), "grid"))
        parts.append(label(_LEFT - 6, y.at(value) + 4, tick_text(Unit.SECONDS, value, y), "tick", "end"))
    return parts


def _legend(most: int, noun: str) -> Markup:
    """Shades from one observation to the highest count of any cell."""
    text = f"{most:,} {noun if most > 1 else noun.removesuffix('s')}"
    right = _RIGHT - len(text) * 6.2
    shades = range(1, SHADES + 1) if most > 1 else [SHADES]
    left = right - 6 - len(shades) * _RAMP
    squares = [
        tag("rect", x=left + i * _RAMP, y=3, width=_RAMP, height=9, class_=f"h{shade}")
        for i, shade in enumerate(shades)
    ]
    least = label(left - 5, 12, "1", "tick", "end") if most > 1 else Markup("")
    return tag("g", least, *squares, label(right, 12, text, "tick"), class_="ramp")


def _description(heat: Heat) -> str:
    times, values = np.asarray(heat.times_s), np.asarray(heat.values_s)
    quarter = times.max() / 4
    first, last = values[times <= quarter], values[times >= 3 * quarter]
    trend = [value_text(Unit.SECONDS, float(np.median(part))) if len(part) else "none" for part in (first, last)]
    return f"{len(values):,} {heat.noun}; median {trend[0]} in the first quarter of the time, {trend[1]} in the last."
