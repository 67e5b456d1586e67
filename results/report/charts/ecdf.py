"""Empirical distribution functions (ECDF): for each value, the share of observations at or below it.

One thin line per repeat shows the spread between runs; the bold line pools them. Lines are thinned to at most
:data:`MAX_POINTS` points at equal steps of the share, with both extremes, so the error is at most one step.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from markupsafe import Markup

from bakeoff.results.metrics import Unit
from bakeoff.results.report.charts.axes import heading, x_axis, y_axis
from bakeoff.results.report.charts.labels import Box, Labels, Spot
from bakeoff.results.report.charts.paths import joined, stairs
from bakeoff.results.report.charts.scales import Axis, fitted_axis
from bakeoff.results.report.charts.svg import chart, engine_class, label, tag
from bakeoff.results.requests import Floats
from bakeoff.results.text.format import value_text

WIDTH, HEIGHT = 540, 270
MAX_POINTS = 240
_THIN_POINTS = 80
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 530, 34, 226
_NAME_AT = (0.62, 0.5, 0.38, 0.74, 0.26, 0.86, 0.14, 0.95, 0.05)
_NAME_SIZE = 13.0
_SHARES = ((0.0, "0"), (0.25, "25 %"), (0.5, "50 %"), (0.75, "75 %"), (0.9, "90 %"), (1.0, "100 %"))


class Sample(msgspec.Struct, frozen=True):
    """Observations of one engine in seconds, one list per valid repeat; ``position`` chooses the colour."""

    engine: str
    position: int
    repeats: list[Floats]


def thinned(values: Floats, points: int) -> list[tuple[float, float]]:
    """At most ``points`` pairs (value, share at or below it), smallest and largest value included."""
    ordered = np.sort(values)
    n = len(ordered)
    if n == 0:
        return []
    picks = np.unique(np.linspace(0, n - 1, min(n, points)).round().astype(int))
    return [(float(ordered[i]), (int(i) + 1) / n) for i in picks]


def ecdf(title: str, samples: Sequence[Sample]) -> Markup:
    """Draw one metric at one level; empty without observations."""
    drawn = [sample for sample in samples if any(len(repeat) for repeat in sample.repeats)]
    if not drawn:
        return Markup("")
    values = np.concatenate([_pooled(sample) for sample in drawn])
    # The largest 0.1 % do not set the scale; they are clipped to the edge.
    x = fitted_axis(np.quantile(values, (0.0, 0.5, 0.999)).tolist(), _LEFT, _RIGHT)
    y = Axis(0.0, 1.0, _BOTTOM, _TOP)
    parts = [
        x_axis(x, Unit.SECONDS, _TOP, _BOTTOM, "logarithmic" if x.log else "linear, from zero"),
        y_axis(y, _SHARES, _LEFT, _RIGHT, "↑ share at or below"),
        heading(_TOP, _RIGHT, title),
    ]
    parts += [_curves(sample, x, y) for sample in drawn]
    curves = [[(x.at(v), y.at(share)) for v, share in thinned(_pooled(sample), 60)] for sample in drawn]
    labels = Labels(Box(_LEFT, _TOP - 2, WIDTH, _BOTTOM - 2), curves)
    parts += [_name(sample, labels, x, y) for sample in drawn]
    description = "; ".join(f"{sample.engine} median {_median_text(sample)}" for sample in drawn)
    return chart(title, description, WIDTH, HEIGHT, *parts, class_="ecdf", **_script_data(x))


def _pooled(sample: Sample) -> Floats:
    return np.concatenate(sample.repeats)


def _curves(sample: Sample, x: Axis, y: Axis) -> Markup:
    thin = [_path(repeat, _THIN_POINTS, x, y, class_="thin") for repeat in sample.repeats if len(repeat)]
    bold = _path(_pooled(sample), MAX_POINTS, x, y, class_="pooled", data_engine=sample.engine)
    median = tag("circle", cx=x.at(float(np.median(_pooled(sample)))), cy=y.at(0.5), r=3.5, class_="mark")
    return tag("g", *thin, bold, median, class_=engine_class(sample.position))


def _path(values: Floats, points: int, x: Axis, y: Axis, **attributes: str) -> Markup:
    """A step function if every observation is drawn, a polyline if thinned."""
    steps = thinned(values, points)
    places = [(x.at(value), y.at(share)) for value, share in steps]
    drawn = stairs([(places[0][0], _BOTTOM), *places]) if len(values) <= points else joined(places)
    return tag("path", d=drawn, **attributes)


def _name(sample: Sample, labels: Labels, x: Axis, y: Axis) -> Markup:
    """The engine's name beside its curve, at the first height where it crosses no other curve."""
    text = f"{sample.engine} · p50 {_median_text(sample)}"
    spots: list[Spot] = []
    for share, quantile in zip(_NAME_AT, np.quantile(_pooled(sample), _NAME_AT), strict=True):
        at, height = x.at(float(quantile)), y.at(share) + 4
        spots += [Spot(at + 9, height), Spot(at - 9, height, "end")]
    for candidate in (text, sample.engine):
        spot = labels.place(candidate, _NAME_SIZE, spots)
        if spot is not None:
            return label(spot.x, spot.y, candidate, _name_class(sample), spot.anchor)
    # Crowded: place it over the curves; its halo keeps it readable.
    spot = labels.place(sample.engine, _NAME_SIZE, spots, over_lines=True) or spots[0]
    return label(spot.x, spot.y, sample.engine, _name_class(sample), spot.anchor)


def _name_class(sample: Sample) -> str:
    return f"name {engine_class(sample.position)}"


def _median_text(sample: Sample) -> str:
    return value_text(Unit.SECONDS, float(np.median(_pooled(sample))))


def _script_data(x: Axis) -> dict[str, str | None]:
    """Attributes from which the script converts pixels to values."""
    return {
        "data_low": repr(x.low),
        "data_high": repr(x.high),
        "data_log": "1" if x.log else None,
        "data_box": f"{_LEFT} {_RIGHT} {_TOP} {_BOTTOM}",
    }
