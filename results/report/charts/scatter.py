"""Scatter plots of a latency against a quantity: a faint dot per observation, and binned medians as a line.

If there are too many observations for dots, each median is drawn with its interquartile range instead.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from markupsafe import Markup

from bakeoff.results.metrics import Unit
from bakeoff.results.report.charts.axes import heading, tick_text, x_axis_at, y_axis
from bakeoff.results.report.charts.labels import Box, Labels, around
from bakeoff.results.report.charts.scales import LOG_FROM, Axis, Scale, fitted_axis
from bakeoff.results.report.charts.svg import chart, engine_class, label, line, mark, num, polyline, tag
from bakeoff.results.text.format import short_text, value_text

WIDTH, HEIGHT = 540, 290
MAX_DOTS = 300
"""Maximum number of dots per engine; of more observations, every n-th is drawn."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 530, 34, 244
_NAME_SIZE, _DODGE = 13.0, 5.0
_RING = 2.0
_CIRCLE = f"a{_RING:g} {_RING:g} 0 1 0 {2 * _RING:g} 0a{_RING:g} {_RING:g} 0 1 0 {-2 * _RING:g} 0"


Numbers = Sequence[float] | np.ndarray
_NOTHING = np.empty((0, 2))


class Middle(msgspec.Struct, frozen=True):
    """Quartiles of the observations in one bin; ``x`` is the median of the x values."""

    x: float
    low: float
    median: float
    high: float
    count: int


class Cloud(msgspec.Struct, frozen=True):
    """One engine.

    Attributes:
        engine: label.
        position: chooses the colour.
        dots: float64 [dots, 2], x and seconds of each; empty if only quartiles are drawn.
        middles: quartiles.
        rings: dots of another kind.
    """

    engine: str
    position: int
    dots: np.ndarray
    middles: list[Middle]
    rings: np.ndarray = _NOTHING

    @property
    def has_dots(self) -> bool:
        """Whether observations are drawn one by one."""
        return len(self.dots) + len(self.rings) > 0


class Axes(msgspec.Struct, frozen=True):
    """Titles and x scale of a chart.

    Attributes:
        title: of the chart, for screen readers.
        x: scale of the independent quantity.
        y_title: name of the latency.
        noun: unit of count of the observations: ``requests``.
        head: heading in bold above the plot.
    """

    title: str
    x: Scale
    y_title: str
    noun: str
    head: str = ""


def middles(x: Numbers, y: Numbers, edges: Sequence[float], needs: int) -> list[Middle]:
    """Quartiles of ``y`` in each bin of ``x`` with at least ``needs`` observations.

    Args:
        x: independent values.
        y: observations, same length.
        edges: ascending bin edges; bins include their left edge.
        needs: minimum number of observations.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    bins = np.searchsorted(edges, xs, side="right")
    quartiles: list[Middle] = []
    for i in range(1, len(edges)):
        inside = ys[bins == i]
        if len(inside) >= needs:
            low, median, high = np.quantile(inside, (0.25, 0.5, 0.75)).tolist()
            quartiles.append(Middle(float(np.median(xs[bins == i])), low, median, high, len(inside)))
    return quartiles


def spread(values: Numbers, title: str) -> Scale:
    """X scale from the smallest to the largest value with a margin; logarithmic if they span more than LOG_FROM."""
    low, high = float(np.min(values)), float(np.max(values))
    log = low > 0 and high / low > LOG_FROM
    margin = (high - low) * 0.04 or max(1.0, high * 0.05)
    ends = (low / 1.1, high * 1.1) if log else (low - margin, high + margin)
    ticks = [tick for tick in Axis(*ends, 0, 1, log).ticks() if tick >= 0]
    return Scale(*ends, [(tick, short_text(tick)) for tick in ticks], title, log)


def scatter(axes: Axes, clouds: Sequence[Cloud]) -> Markup:
    """Draw all engines; empty without medians."""
    drawn = [cloud for cloud in clouds if cloud.middles]
    if not drawn:
        return Markup("")
    axis, y = axes.x.axis(_LEFT, _RIGHT), fitted_axis(_values(drawn), _BOTTOM, _TOP)
    ticks = [(value, tick_text(Unit.SECONDS, value, y)) for value in y.ticks()]
    paths = [_path(cloud, i, len(drawn), axis, y) for i, cloud in enumerate(drawn)]
    labels = Labels(Box(_LEFT, _TOP - 10, WIDTH + 8, _BOTTOM), paths)
    parts = [
        x_axis_at(axis, axes.x.ticks, _TOP, _BOTTOM, axes.x.title),
        y_axis(y, ticks, _LEFT, _RIGHT, axes.y_title),
        heading(_TOP, _RIGHT, axes.head),
        *(_dots(cloud, axis, y) for cloud in drawn),
        *(_line(cloud, path, y, axes) for cloud, path in zip(drawn, paths, strict=True)),
        *(_name(cloud, path, labels) for cloud, path in zip(drawn, paths, strict=True)),
    ]
    return chart(axes.title, _description(drawn, axes.noun), WIDTH, HEIGHT, *parts, class_="scatter")


def _values(clouds: Sequence[Cloud]) -> list[float]:
    """Values that the y axis covers: 99.6 % of the dots and all quartiles."""
    dots = np.concatenate([kind[:, 1] for cloud in clouds for kind in (cloud.dots, cloud.rings)])
    ends = np.quantile(dots, (0.002, 0.998)).tolist() if len(dots) else []
    return ends + [value for cloud in clouds for middle in cloud.middles for value in (middle.low, middle.high)]


def _dots(cloud: Cloud, x: Axis, y: Axis) -> Markup:
    every = max(1, -(-(len(cloud.dots) + len(cloud.rings)) // MAX_DOTS))
    dots = "".join(f"M{num(x.at(at))} {num(y.at(value))}h0" for at, value in cloud.dots[::every].tolist())
    rings = "".join(
        f"M{num(x.at(at) - _RING)} {num(y.at(value))}{_CIRCLE}" for at, value in cloud.rings[::every].tolist()
    )
    kinds = (("dots", dots), ("rings", rings))
    return Markup("").join(
        tag("path", d=drawn, class_=f"{kind} {engine_class(cloud.position)}") for kind, drawn in kinds if drawn
    )


def _path(cloud: Cloud, i: int, engines: int, x: Axis, y: Axis) -> list[tuple[float, float]]:
    """Positions of the medians; without dots, engines are shifted sideways so that their bars do not overlap."""
    shift = 0.0 if cloud.has_dots else (i - (engines - 1) / 2) * _DODGE
    return [(x.at(middle.x) + shift, y.at(middle.median)) for middle in cloud.middles]


def _line(cloud: Cloud, path: Sequence[tuple[float, float]], y: Axis, axes: Axes) -> Markup:
    parts = [polyline(path, "curve")]
    for middle, (px, py) in zip(cloud.middles, path, strict=True):
        low, median, high = (value_text(Unit.SECONDS, value) for value in (middle.low, middle.median, middle.high))
        rest = f"half of {middle.count:,} {axes.noun} in {low} … {high}"
        hint = f"{cloud.engine} at {short_text(middle.x)} {axes.x.title}: median {median}, {rest}"
        if not cloud.has_dots:
            parts.append(line(px, y.at(middle.low), px, y.at(middle.high), "error"))
        parts.append(mark(px, py, cloud.position, 3.6, hint))
    return tag("g", *parts, class_=engine_class(cloud.position))


def _name(cloud: Cloud, path: Sequence[tuple[float, float]], labels: Labels) -> Markup:
    spots = [spot for px, py in reversed(path) for spot in around(px, py, 10)]
    spot = labels.place(cloud.engine, _NAME_SIZE, spots) or spots[0]
    return label(spot.x, spot.y, cloud.engine, f"name {engine_class(cloud.position)}", spot.anchor)


def _description(clouds: Sequence[Cloud], noun: str) -> str:
    def at(middle: Middle) -> str:
        return f"{value_text(Unit.SECONDS, middle.median)} at {short_text(middle.x)}"

    return " ".join(
        f"{cloud.engine}: median {at(cloud.middles[0])}, {at(cloud.middles[-1])}, "
        f"of {sum(middle.count for middle in cloud.middles):,} {noun}."
        for cloud in clouds
    )
