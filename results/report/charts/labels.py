"""Direct labels without collisions: a label takes the first of its candidate places that is free.

Greedy on purpose: few labels, no optimiser. Curves and marks enter as obstacles, placed labels become obstacles.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

_STEP = 8.0


class Box(msgspec.Struct, frozen=True):
    """A rectangle in chart pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "Box") -> bool:
        """Whether the two overlap."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    def within(self, other: "Box") -> bool:
        """Whether this one lies inside."""
        return (
            self.left >= other.left
            and self.right <= other.right
            and self.top >= other.top
            and self.bottom <= other.bottom
        )


class Spot(msgspec.Struct, frozen=True):
    """Where a text may stand: its anchor point on the base line."""

    x: float
    y: float
    anchor: str = "start"

    def box(self, text: str, size: float) -> Box:
        """The room that ``text`` takes there, from the mean width of a digit."""
        width = len(text) * size * 0.6
        left = {"start": self.x, "middle": self.x - width / 2, "end": self.x - width}[self.anchor]
        return Box(left, self.y - size * 0.85, left + width, self.y + size * 0.25)


class Labels:
    """The room of one chart."""

    def __init__(self, bounds: Box, lines: Iterable[Sequence[tuple[float, float]]]) -> None:
        self._bounds = bounds
        self._taken: list[Box] = []
        self._lines = [Box(x - 2, y - 2, x + 2, y + 2) for line in lines for x, y in _walk(line)]

    def place(self, text: str, size: float, spots: Sequence[Spot], *, over_lines: bool = False) -> Spot | None:
        """The first free spot, which is then taken; None when there is none.

        Args:
            text: what will stand there.
            size: of its letters, in pixels.
            spots: in the order of preference.
            over_lines: whether it may cross lines, though never another label.
        """
        obstacles = self._taken if over_lines else [*self._taken, *self._lines]
        for spot in spots:
            box = spot.box(text, size)
            if box.within(self._bounds) and not any(box.meets(other) for other in obstacles):
                self._taken.append(box)
                return spot
        return None


def around(x: float, y: float, gap: float = 9.0) -> list[Spot]:
    """The places around a mark: beside it first, then above and below."""
    return [
        Spot(x + gap, y - gap + 2),
        Spot(x + gap, y + 4),
        Spot(x - gap, y + 4, "end"),
        Spot(x - gap, y - gap + 2, "end"),
        Spot(x + gap, y + gap + 8),
        Spot(x - gap, y + gap + 8, "end"),
        Spot(x, y - gap - 3, "middle"),
        Spot(x, y + gap + 12, "middle"),
    ]


def _walk(line: Sequence[tuple[float, float]]) -> Iterable[tuple[float, float]]:
    """Points along a line, close enough that no label fits between two."""
    yield from line
    for (x1, y1), (x2, y2) in pairwise(line):
        steps = int(max(abs(x2 - x1), abs(y2 - y1)) / _STEP)
        for i in range(1, steps + 1):
            share = i / (steps + 1)
            yield x1 + share * (x2 - x1), y1 + share * (y2 - y1)
