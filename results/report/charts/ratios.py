"""Ratios of two sides on one logarithmic axis: a forest plot, row by row (Lewis & Clarke 2001)."""

import math
from collections.abc import Iterable

from markupsafe import Markup

from results.report.charts.scales import Axis
from results.report.charts.svg import chart, line, tag
from results.report.format import ratio_text
from results.statistics.interval import Interval

WIDTH, HEIGHT = 220, 20
_WIDEST = 4.0
"""Ratios beyond are drawn at the edge: one outlier must not press the others flat."""


def ratio_axis(ratios: Iterable[Interval | None], band: float) -> Axis:
    """An axis with 1 in the middle that holds the ratios of all rows, and the band of what counts as the same."""
    known = [bound for one in ratios if one for bound in (one.low, one.centre, one.high) if bound and bound > 0]
    widest = max((abs(math.log(bound)) for bound in known), default=0.0)
    reach = math.exp(min(math.log(_WIDEST), max(widest * 1.05, 2 * math.log1p(band))))
    return Axis(1 / reach, reach, 4, WIDTH - 4, log=True)


def ratio_strip(title: str, axis: Axis, ratio: Interval | None, band: float, class_: str) -> Markup:
    """One row: the band, a rule at 1, the interval and its centre.

    Args:
        title: what the ratio is of, for screen readers.
        axis: that of all rows.
        ratio: nothing is drawn but the band where there is none.
        band: half-width of what counts as the same, as a share.
        class_: gives the interval its colour.
    """
    middle = HEIGHT / 2
    left, right = axis.at(1 / (1 + band)), axis.at(1 + band)
    parts = [
        tag("rect", x=left, y=2, width=right - left, height=HEIGHT - 4, class_="band"),
        line(axis.start, middle, axis.end, middle, "rail"),
        line(axis.at(1), 1, axis.at(1), HEIGHT - 1, "limit"),
    ]
    if ratio is not None:
        if ratio.low is not None and ratio.high is not None:
            from_, to = axis.at(max(ratio.low, axis.low)), axis.at(ratio.high)
            parts.append(line(from_, middle, to, middle, "interval"))
        parts.append(tag("circle", cx=axis.at(ratio.centre), cy=middle, r=3.5, class_="dot"))
    return chart(title, ratio_text(ratio), WIDTH, HEIGHT, *parts, class_=f"ratios {class_}")
