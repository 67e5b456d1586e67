"""Strips in table cells: every trial as a dot, and ratios of two sides on one axis.

All strips of a column share their scale, so the eye compares rows. Ratios are a forest plot, row by row (Lewis & Clarke
2001).
"""

import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from results.report.charts.scales import Axis
from results.report.charts.svg import chart, line, tag
from results.statistics.interval import Interval
from results.text.format import ratio_text

_DOTS_WIDTH, _DOTS_HEIGHT = 96, 12
_RATIO_WIDTH, _RATIO_HEIGHT = 220, 20
_WIDEST = 4.0
"""Ratios beyond are drawn at the edge: one outlier must not press the others flat."""


def strip_axis(values: Sequence[float]) -> Axis:
    """The scale that the strips of one level share: from zero to the largest value or bound."""
    return Axis(0.0, max(values, default=0.0) or 1.0, 3, _DOTS_WIDTH - 3)


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
    middle = _DOTS_HEIGHT / 2
    parts = [line(axis.start, middle, axis.end, middle, "rail")]
    if interval is not None and interval.low is not None and interval.high is not None:
        low, high = axis.at(interval.low), axis.at(interval.high)
        parts.append(tag("rect", x=low, y=2, width=max(1.0, high - low), height=_DOTS_HEIGHT - 4, rx=1, class_="range"))
    parts += [tag("circle", cx=axis.at(value), cy=middle, r=2.2, class_="hollow") for value in invalid]
    parts += [tag("circle", cx=axis.at(value), cy=middle, r=2.2, class_="dot") for value in valid]
    words = "One dot per trial, zero at the left."
    return chart(title, words, _DOTS_WIDTH, _DOTS_HEIGHT, *parts, class_=f"strip {colour}")


def ratio_axis(ratios: Iterable[Interval | None], band: float) -> Axis:
    """An axis with 1 in the middle that holds the ratios of all rows, and the band of what counts as the same."""
    known = [bound for one in ratios if one for bound in (one.low, one.centre, one.high) if bound and bound > 0]
    widest = max((abs(math.log(bound)) for bound in known), default=0.0)
    reach = math.exp(min(math.log(_WIDEST), max(widest * 1.05, 2 * math.log1p(band))))
    return Axis(1 / reach, reach, 4, _RATIO_WIDTH - 4, log=True)


def ratio_strip(title: str, axis: Axis, ratio: Interval | None, band: float, class_: str) -> Markup:
    """One row: the band, a rule at 1, the interval and its centre.

    Args:
        title: what the ratio is of, for screen readers.
        axis: that of all rows.
        ratio: nothing is drawn but the band where there is none.
        band: half-width of what counts as the same, as a share.
        class_: gives the interval its colour.
    """
    middle = _RATIO_HEIGHT / 2
    left, right = axis.at(1 / (1 + band)), axis.at(1 + band)
    parts = [
        tag("rect", x=left, y=2, width=right - left, height=_RATIO_HEIGHT - 4, class_="band"),
        line(axis.start, middle, axis.end, middle, "rail"),
        line(axis.at(1), 1, axis.at(1), _RATIO_HEIGHT - 1, "limit"),
    ]
    if ratio is not None:
        if ratio.low is not None and ratio.high is not None:
            from_, to = axis.at(max(ratio.low, axis.low)), axis.at(ratio.high)
            parts.append(line(from_, middle, to, middle, "interval"))
        parts.append(tag("circle", cx=axis.at(ratio.centre), cy=middle, r=3.5, class_="dot"))
    return chart(title, ratio_text(ratio), _RATIO_WIDTH, _RATIO_HEIGHT, *parts, class_=f"ratios {class_}")
