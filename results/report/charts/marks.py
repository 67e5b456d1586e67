"""Point marks: each engine has its own shape besides its colour, for readers who do not see the colour."""

from markupsafe import Markup

from results.report.charts.svg import num, tag

_SHAPES = 4


def mark(x: float, y: float, position: int, size: float, hint: str) -> Markup:
    """Circle, square, triangle or diamond with a tooltip."""
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
