"""Placement of direct labels without collisions: each label takes its first free candidate position.

Greedy, which suffices for few labels. Curves and marks are obstacles, and so are placed labels.
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
        """Whether the boxes overlap."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    def within(self, other: "Box") -> bool:
        """Whether this box lies inside ``other``."""
        return (
            self.left >= other.left
            and self.right <= other.right
            and self.top >= other.top
            and self.bottom <= other.bottom
        )


class Spot(msgspec.Struct, frozen=True):
    """Candidate position of a label: its anchor point on the baseline."""

    x: float
    y: float
    anchor: str = "start"

    def box(self, text: str, size: float) -> Box:
        """Bounding box of ``text`` at this position, from the mean width of a digit."""
        width = len(text) * size * 0.6
        left = {"start": self.x, "middle": self.x - width / 2, "end": self.x - width}[self.anchor]
        return Box(left, self.y - size * 0.85, left + width, self.y + size * 0.25)


class Labels:
    """Places the labels of one chart.

    Args:
        bounds: labels stay inside.
        lines: curves to avoid, as points in pixels.
    """

    def __init__(self, bounds: Box, lines: Iterable[Sequence[tuple[float, float]]]) -> None:
        self._bounds = bounds
        self._taken: list[Box] = []
        self._lines = [Box(x - 2, y - 2, x + 2, y + 2) for line in lines for x, y in _walk(line)]

    def place(self, text: str, size: float, spots: Sequence[Spot], *, over_lines: bool = False) -> Spot | None:
        """Occupy and return the first free spot; None if all are taken.

        Args:
            text: of the label.
            size: font size in pixels.
            spots: in order of preference.
            over_lines: whether the label may cross lines; it never overlaps another label.
        """
        obstacles = self._taken if over_lines else [*self._taken, *self._lines]
        for spot in spots:
            box = spot.box(text, size)
            if box.within(self._bounds) and not any(box.meets(other) for other in obstacles):
                self._taken.append(box)
                return spot
        return None


def around(x: float, y: float, gap: float = 9.0) -> list[Spot]:
    """Candidate positions around a mark: beside it first, then above and below."""
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
    """Points along a line, close enough that no label fits between two of them."""
    yield from line
    for (x1, y1), (x2, y2) in pairwise(line):
        steps = int(max(abs(x2 - x1), abs(y2 - y1)) / _STEP)
        for i in range(1, steps + 1):
            fraction = i / (steps + 1)
            yield x1 + fraction * (x2 - x1), y1 + fraction * (y2 - y1)
