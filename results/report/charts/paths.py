"""SVG path data with relative coordinates in tenths of a pixel: half the size of absolute coordinates.

Points are rounded before they are differenced, so that rounding errors do not accumulate.
"""

from collections.abc import Iterable
from itertools import pairwise

Points = Iterable[tuple[float, float]]


def joined(points: Points) -> str:
    """Polyline; empty without points."""
    places = _tenths(points)
    if not places:
        return ""
    steps: list[tuple[int, int]] = []
    for (x0, y0), (x1, y1) in pairwise(places):
        dx, dy = x1 - x0, y1 - y0
        if steps and dy == 0 and steps[-1][1] == 0 and dx * steps[-1][0] >= 0:
            steps[-1] = steps[-1][0] + dx, 0  # extend a horizontal segment
        elif dx or dy:
            steps.append((dx, dy))
    return _start(places[0]) + ("l" + _listed(n for step in steps for n in step) if steps else "")


def stairs(points: Points) -> str:
    """Step function: horizontal, then vertical to the next point; empty without points."""
    places = _tenths(points)
    if not places:
        return ""
    data, (x, y) = _start(places[0]), places[0]
    for x1, y1 in places[1:]:
        if y1 != y:
            data += (f"h{_short(x1 - x)}" if x1 != x else "") + f"v{_short(y1 - y)}"
            x, y = x1, y1
    return data + (f"h{_short(places[-1][0] - x)}" if places[-1][0] != x else "")


def dashes(points: Points) -> str:
    """A horizontal dash of one pixel at each point, which a wide stroke makes a vertical bar; empty without points."""
    places = _tenths(points)
    if not places:
        return ""
    moves = (f"m{_listed((x1 - x0 - 10, y1 - y0))}h1" for (x0, y0), (x1, y1) in pairwise(places))
    return f"{_start(places[0])}h1" + "".join(moves)


def _tenths(points: Points) -> list[tuple[int, int]]:
    return [(round(10 * x), round(10 * y)) for x, y in points]


def _start(place: tuple[int, int]) -> str:
    return f"M{_listed(place)}"


def _listed(numbers: Iterable[int]) -> str:
    """Numbers separated by spaces; a minus sign needs no separator."""
    return " ".join(_short(number) for number in numbers).replace(" -", "-")


def _short(tenths: int) -> str:
    whole, rest = divmod(abs(tenths), 10)
    digits = f"{whole or ''}.{rest}" if rest else str(whole)
    return f"-{digits}" if tenths < 0 else digits
