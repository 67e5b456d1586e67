"""SVG elements for the charts. Text is escaped here, once; style comes from CSS classes."""

from collections.abc import Iterable

from markupsafe import Markup, escape

from bakeoff.results.report.charts.paths import joined
from bakeoff.results.text.format import plain


def tag(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """One element. Text children and attribute values are escaped; None omits an attribute.

    In attribute names, ``_`` stands for ``-``; a trailing ``_`` avoids Python keywords.
    """
    attributes_text = "".join(
        f' {_attribute(key)}="{num(value) if isinstance(value, int | float) else escape(plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(child if isinstance(child, Markup) else escape(plain(child)) for child in children)
    return Markup(f"<{name}{attributes_text}>{inner}</{name}>")  # noqa: S704  (names are ours; all else is escaped above)


def chart(
    title: str, description: str, width: float, height: float, *children: str, class_: str, **attributes: str | None
) -> Markup:
    """The ``svg`` element, with title and description for screen readers."""
    return tag(
        "svg",
        tag("title", title),
        tag("desc", description),
        *children,
        class_=f"chart {class_}",
        viewBox=f"0 0 {num(width)} {num(height)}",
        role="img",
        aria_label=f"{title}. {description}",
        **attributes,
    )


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def label(x: float, y: float, text: str, class_: str, anchor: str | None = None) -> Markup:
    """Text; ``anchor`` is start, middle or end."""
    return tag("text", text, x=x, y=y, class_=class_, text_anchor=anchor)


def polyline(points: Iterable[tuple[float, float]], class_: str, **attributes: str | float | None) -> Markup:
    """A path through points; empty without points."""
    data = joined(points)
    return tag("path", d=data, class_=class_, **attributes) if data else Markup("")


def mark(x: float, y: float, position: int, size: float, hint: str) -> Markup:
    """Circle, square, triangle or diamond with a tooltip: engines differ in shape as well as colour."""
    title = tag("title", hint)
    match position % _SHAPES:
        case 0:
            return tag("circle", title, cx=x, cy=y, r=size, class_="mark")
        case 1:
            side = size * 1.8
            return tag("rect", title, x=x - side / 2, y=y - side / 2, width=side, height=side, class_="mark")
        case 2:
            path = f"M{num(x)} {num(y - size * 1.2)}l{num(size * 1.15)} {num(size * 2)}h{num(-size * 2.3)}z"
        case _:
            d = num(size * 1.3)
            path = f"M{num(x)} {num(y - size * 1.3)}l{d} {d}l-{d} {d}l-{d} -{d}z"
    return tag("path", title, d=path, class_="mark")


def num(value: float) -> str:
    """A coordinate in tenths of a pixel, without trailing zeros."""
    return f"{value:.1f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"


def engine_class(position: int) -> str:
    """CSS class that colours the engine at ``position``; beyond the palette colours repeat, dashed."""
    return f"e{position % PALETTE}" + (" again" if position >= PALETTE else "")


PALETTE = 6
"""Colours in page.css."""
_SHAPES = 4


def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-")
