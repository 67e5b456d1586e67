"""Path data in tenths of a pixel, step by step from each point to the next: a long line takes half the room.

Each point is rounded before the difference is taken, so that no error adds up along a line.
"""

from collections.abc import Iterable
from itertools import pairwise

Points = Iterable[tuple[float, float]]


def joined(points: Points) -> str:
    """A straight line from each point to the next; empty without points."""
    places = _tenths(points)
    if not places:
        return ""
    steps: list[tuple[int, int]] = []
    for (x0, y0), (x1, y1) in pairwise(places):
        dx, dy = x1 - x0, y1 - y0
        if steps and dy == 0 and steps[-1][1] == 0 and dx * steps[-1][0] >= 0:
            steps[-1] = steps[-1][0] + dx, 0  # a level that stays needs no point of its own
        elif dx or dy:
            steps.append((dx, dy))
    return _start(places[0]) + ("l" + _listed(n for step in steps for n in step) if steps else "")


def stairs(points: Points) -> str:
    """Level from each point to below or above the next, then upright to it; empty without points."""
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
    """A dash of one pixel to the right at each point; with a wide stroke, upright lines. Empty without points."""
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
    """Numbers in a row; a minus sign is separator enough."""
    return " ".join(_short(number) for number in numbers).replace(" -", "-")


def _short(tenths: int) -> str:
    whole, rest = divmod(abs(tenths), 10)
    digits = f"{whole or ''}.{rest}" if rest else str(whole)
    return f"-{digits}" if tenths < 0 else digits
