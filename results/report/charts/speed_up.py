"""Measured speed-up of speculation against the acceptance of drafts, with the expectation as a curve per engine."""

from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from bakeoff.results.metrics import Unit
from bakeoff.results.report.charts.axes import heading, rates, x_axis, y_axis
from bakeoff.results.report.charts.labels import Box, Labels, around
from bakeoff.results.report.charts.scales import Axis
from bakeoff.results.report.charts.svg import chart, engine_class, label, line, mark, polyline, tag
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.statistics.speculation import speed_up
from bakeoff.results.text.format import ratio_text, value_text

WIDTH, HEIGHT = 540, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 512, 44, 250
_STEPS = 50
_NAME_SIZE, _HEADROOM = 16.0, 1.15  # the size on narrow screens


class Measured(msgspec.Struct, frozen=True):
    """One engine with speculation.

    Attributes:
        engine: its label.
        position: selects colour and mark.
        acceptance: probability that a draft is accepted if those before it were.
        drafts: mean number of drafts per verification.
        ratio: time per output token without speculation over that with it.
    """

    engine: str
    position: int
    acceptance: float
    drafts: float
    ratio: Interval


def speed_up_chart(title: str, head: str, measured: Sequence[Measured]) -> Markup:
    """Draw all engines of one level; empty without engines.

    Args:
        title: of the chart, for screen readers.
        head: heading above the plot.
        measured: the engines.
    """
    if not measured:
        return Markup("")
    x = Axis(0.0, 1.0, _LEFT, _RIGHT)
    reached = [bound for point in measured for bound in (point.ratio.centre, point.ratio.high) if bound is not None]
    expected = [speed_up(point.acceptance, point.drafts) for point in measured]
    y = Axis(0.0, _HEADROOM * max(1.0, *reached, *expected), _BOTTOM, _TOP)
    curves = [_curve(point, x, y) for point in measured]
    marks = [(x.at(point.acceptance), y.at(point.ratio.centre)) for point in measured]
    labels = Labels(Box(_LEFT, _TOP - 10, _RIGHT, _BOTTOM), [*curves, *([place] for place in marks)])
    parts = [
        x_axis(x, Unit.SHARE, _TOP, _BOTTOM, "acceptance of a draft, a →"),
        y_axis(y, rates(y), _LEFT, _RIGHT, "↑ TPOT without speculation / with"),
        heading(_TOP, _RIGHT, head),
        line(_LEFT, y.at(1.0), _RIGHT, y.at(1.0), "limit"),
        *(
            tag("g", polyline(curve, "thin"), *_mark(point, place, y), class_=engine_class(point.position))
            for point, curve, place in zip(measured, curves, marks, strict=True)
        ),
        *(_name(point, place, labels) for place, point in sorted(zip(marks, measured, strict=True), key=_height)),
    ]
    return chart(title, " ".join(f"{_text(point)}." for point in measured), WIDTH, HEIGHT, *parts, class_="speed-up")


def _curve(point: Measured, x: Axis, y: Axis) -> list[tuple[float, float]]:
    """The expectation for the engine's drafts, as far as the y axis goes."""
    shares = [step / _STEPS for step in range(_STEPS + 1)]
    points = [(share, speed_up(share, point.drafts)) for share in shares]
    return [(x.at(share), y.at(value)) for share, value in points if value <= y.high]


def _mark(point: Measured, place: tuple[float, float], y: Axis) -> list[Markup]:
    px, py = place
    expected = y.at(speed_up(point.acceptance, point.drafts))
    drawn = [tag("circle", cx=px, cy=expected, r=3.2, class_="hollow"), mark(px, py, point.position, 4.5, _text(point))]
    if point.ratio.low is not None and point.ratio.high is not None:
        drawn.insert(0, line(px, y.at(point.ratio.low), px, y.at(point.ratio.high), "error"))
    return drawn


def _height(marked: tuple[tuple[float, float], Measured]) -> float:
    """Pixels from the top: of neighbours, the upper one gets the upper label."""
    (_, y), _ = marked
    return y


def _name(point: Measured, place: tuple[float, float], labels: Labels) -> Markup:
    spots = around(*place, 10)
    spot = labels.place(point.engine, _NAME_SIZE, spots) or spots[0]
    return label(spot.x, spot.y, point.engine, f"name {engine_class(point.position)}", spot.anchor)


def _text(point: Measured) -> str:
    expected = speed_up(point.acceptance, point.drafts)
    return (
        f"{point.engine}: {ratio_text(point.ratio)} measured, {expected:.2f}× expected at "
        f"{value_text(Unit.SHARE, point.acceptance)} acceptance with {point.drafts:.1f} drafts per verification"
    )
