"""Intensities: pieces of straight lines that say how many arrivals each second is worth.

An arrival at operational time y comes at the second t with rate · ∫₀ᵗ relative intensity = y; over a piece of straight
line the integral is a quadratic in t, so its inverse is exact.
"""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Piece(NamedTuple):
    """An intensity that changes evenly.

    Attributes:
        length_s: how long it holds; infinity, when it does not change, for ever.
        begin: intensity at its beginning, relative to the process's rate.
        end: intensity at its end.
    """

    length_s: float
    begin: float
    end: float

    @property
    def worth_s(self) -> float:
        """Its integral: seconds at the process's rate."""
        return self.length_s * (self.begin + self.end) / 2

    def after_s(self, worth_s: float) -> float:
        """Seconds into the piece when ``worth_s`` of it has passed."""
        if worth_s <= 0:
            return 0.0
        slope = (self.end - self.begin) / self.length_s
        root = math.sqrt(max(self.begin * self.begin + 2 * slope * worth_s, 0.0))
        return min(2 * worth_s / (self.begin + root), self.length_s)

    def without(self, skip_s: float) -> "Piece":
        """What is left of it after its first ``skip_s``."""
        begin = self.begin + (self.end - self.begin) * skip_s / self.length_s
        return Piece(self.length_s - skip_s, begin, self.end)


def in_seconds(times: Iterable[float], pieces: Iterator[Piece], rate_per_s: float) -> Iterator[float]:
    """Yield the second of each operational time.

    Args:
        times: operational times that do not fall.
        pieces: the intensity, without end, and never 0 for good.
        rate_per_s: arrivals per second where the intensity is 1.
    """
    piece = next(pieces)
    begun_s = passed_s = offset_s = 0.0
    worth_s = piece.worth_s
    for time in times:
        due_s = time / rate_per_s
        while due_s > passed_s + worth_s:
            passed_s += worth_s
            begun_s += piece.length_s
            piece = next(pieces)
            worth_s = piece.worth_s
        # Rounding at the seam of two pieces must not turn two arrivals round.
        offset_s = max(offset_s, begun_s + piece.after_s(due_s - passed_s))
        yield offset_s


def begun(pieces: Iterator[Piece], skip_s: float) -> Iterator[Piece]:
    """The intensity from ``skip_s`` on."""
    for piece in pieces:
        if piece.length_s > skip_s:
            yield piece.without(skip_s)
            break
        skip_s -= piece.length_s
    yield from pieces


def cycle(knots: list[float], step_s: float, *, level: bool) -> Iterator[Piece]:
    """A curve through ``knots``, ``step_s`` apart, again and again, scaled to a mean of 1.

    Args:
        knots: heights that are not all 0.
        step_s: seconds from one to the next.
        level: whether each height holds for a whole step, instead of a straight line from one to the next.
    """
    mean = sum(knots) / len(knots)
    heights = [knot / mean for knot in knots]
    while True:
        for i, height in enumerate(heights):
            yield Piece(step_s, height, height if level else heights[(i + 1) % len(heights)])
