"""The dot strip in a table cell: every trial as a dot, the 95 % interval as a bar, zero at the left edge.

All strips of one metric at one load level share their scale, so the eye compares engines down the column.
"""

from collections.abc import Sequence

from markupsafe import Markup

from results.report.charts.scales import Axis
from results.report.charts.svg import chart, line, tag
from results.statistics.interval import Interval

WIDTH, HEIGHT = 96, 12
_MIDDLE = HEIGHT / 2


def strip_axis(values: Sequence[float]) -> Axis:
    """The scale that the strips of one level share: from zero to the largest value or bound."""
    return Axis(0.0, max(values, default=0.0) or 1.0, 3, WIDTH - 3)


def dot_strip(
    title: str, axis: Axis, valid: Sequence[float], *, invalid: Sequence[float], interval: Interval | None, colour: str
) -> Markup:
    """Draw one strip.

    Args:
        title: what a screen reader and the tooltip say.
        axis: from :func:`strip_axis`.
        valid: one value per valid trial, filled dots.
        invalid: values of INVALID trials, hollow dots: shown, not counted.
        interval: drawn as a bar behind the dots; one beyond the scale ends at its edge.
        colour: the engine's class.
    """
    parts = [line(axis.start, _MIDDLE, axis.end, _MIDDLE, "rail")]
    if interval is not None and interval.low is not None and interval.high is not None:
        low, high = axis.at(interval.low), axis.at(interval.high)
        parts.append(tag("rect", x=low, y=2, width=max(1.0, high - low), height=HEIGHT - 4, rx=1, class_="range"))
    parts += [tag("circle", cx=axis.at(value), cy=_MIDDLE, r=2.2, class_="hollow") for value in invalid]
    parts += [tag("circle", cx=axis.at(value), cy=_MIDDLE, r=2.2, class_="dot") for value in valid]
    return chart(title, "One dot per trial, zero at the left.", WIDTH, HEIGHT, *parts, class_=f"strip {colour}")
