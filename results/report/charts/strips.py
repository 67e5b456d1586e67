"""Strips in table cells: a dot per trial, and ratios of two sides as a forest plot (Lewis & Clarke 2001).

All strips of a column share their scale, so that rows can be compared.
"""

import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from bakeoff.results.report.charts.scales import Axis
from bakeoff.results.report.charts.svg import chart, line, tag
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.text.format import ratio_text

_DOTS_WIDTH, _DOTS_HEIGHT = 96, 12
_RATIO_WIDTH, _RATIO_HEIGHT = 220, 20
_WIDEST = 4.0
"""Ratios beyond are clipped, so that one outlier does not compress the others."""
_NARROWEST = 1e-3
"""Logarithm of the least reach of an axis, for ratios of 1 and a band of 0."""


def strip_axis(values: Sequence[float]) -> Axis:
    """Common scale of the strips of one level: from zero to the largest value."""
    return Axis(0.0, max(values, default=0.0) or 1.0, 3, _DOTS_WIDTH - 3)


def dot_strip(
    title: str, axis: Axis, valid: Sequence[float], *, invalid: Sequence[float], interval: Interval | None, colour: str
) -> Markup:
    """Draw one strip.

    Args:
        title: for the tooltip and screen readers.
        axis: from :func:`strip_axis`.
        valid: one value per valid trial, filled dots.
        invalid: one value per INVALID trial, hollow dots: shown, not counted.
        interval: drawn as a bar behind the dots, clipped to the scale.
        colour: CSS class of the engine.
    """
    middle = _DOTS_HEIGHT / 2
    parts = [line(axis.start, middle, axis.end, middle, "rail")]
    if interval is not None and interval.low is not None and interval.high is not None:
        low, high = axis.at(interval.low), axis.at(interval.high)
        parts.append(tag("rect", x=low, y=2, width=max(1.0, high - low), height=_DOTS_HEIGHT - 4, rx=1, class_="range"))
    parts += [tag("circle", cx=axis.at(value), cy=middle, r=2.2, class_="hollow") for value in invalid]
    parts += [tag("circle", cx=axis.at(value), cy=middle, r=2.2, class_="dot") for value in valid]
    description = "One dot per trial, zero at the left."
    return chart(title, description, _DOTS_WIDTH, _DOTS_HEIGHT, *parts, class_=f"strip {colour}")


def ratio_axis(ratios: Iterable[Interval | None], band: float) -> Axis:
    """Logarithmic axis centred on 1 that covers all ratios and the equivalence band."""
    bounds = [bound for ratio in ratios if ratio for bound in (ratio.low, ratio.centre, ratio.high)]
    positive = [bound for bound in bounds if bound and bound > 0]
    widest = max((abs(math.log(bound)) for bound in positive), default=0.0)
    reach = math.exp(min(math.log(_WIDEST), max(widest * 1.05, 2 * math.log1p(band), _NARROWEST)))
    return Axis(1 / reach, reach, 4, _RATIO_WIDTH - 4, log=True)


def ratio_strip(title: str, axis: Axis, ratio: Interval | None, band: float, class_: str) -> Markup:
    """One row: equivalence band, line at 1, interval and its centre.

    Args:
        title: for screen readers.
        axis: common to all rows.
        ratio: None draws the band only.
        band: half-width of the equivalence band, as a fraction.
        class_: CSS class that colours the interval.
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
