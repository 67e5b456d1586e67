"""Intensities: arrival rate over time as a piecewise linear function.

An arrival at operational time y comes at the second t with rate · ∫₀ᵗ relative intensity = y. On a linear piece the
integral is quadratic in t, so its inverse is exact.
"""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Piece(NamedTuple):
    """One linear piece of an intensity.

    Attributes:
        length_s: duration; infinity for a constant intensity without end.
        begin: intensity at the beginning, relative to the process's rate.
        end: intensity at the end.
    """

    length_s: float
    begin: float
    end: float

    @property
    def worth_s(self) -> float:
        """Integral over the piece: equivalent seconds at the process's rate."""
        return self.length_s * (self.begin + self.end) / 2

    def after_s(self, worth_s: float) -> float:
        """Seconds into the piece at which the integral reaches ``worth_s``."""
        if worth_s <= 0:
            return 0.0
        slope = (self.end - self.begin) / self.length_s
        root = math.sqrt(max(self.begin * self.begin + 2 * slope * worth_s, 0.0))
        return min(2 * worth_s / (self.begin + root), self.length_s)

    def without(self, skip_s: float) -> "Piece":
        """The rest of the piece after its first ``skip_s``."""
        begin = self.begin + (self.end - self.begin) * skip_s / self.length_s
        return Piece(self.length_s - skip_s, begin, self.end)


def in_seconds(times: Iterable[float], pieces: Iterator[Piece], rate_per_s: float) -> Iterator[float]:
    """Convert operational times to seconds.

    Args:
        times: operational times, not decreasing.
        pieces: the intensity, endless, and not 0 from some piece on.
        rate_per_s: arrivals per second at intensity 1.
    """
    piece = next(pieces)
    start_s = passed_s = offset_s = 0.0
    worth_s = piece.worth_s
    for time in times:
        due_s = time / rate_per_s
        while due_s > passed_s + worth_s:
            passed_s += worth_s
            start_s += piece.length_s
            piece = next(pieces)
            worth_s = piece.worth_s
        # Rounding at the border of two pieces must not swap two arrivals.
        offset_s = max(offset_s, start_s + piece.after_s(due_s - passed_s))
        yield offset_s


def skipped(pieces: Iterator[Piece], skip_s: float) -> Iterator[Piece]:
    """The intensity from ``skip_s`` on, as if the load began there."""
    for piece in pieces:
        if piece.length_s > skip_s:
            yield piece.without(skip_s)
            break
        skip_s -= piece.length_s
    yield from pieces


def cycle(knots: list[float], step_s: float, *, level: bool) -> Iterator[Piece]:
    """A periodic intensity through ``knots``, scaled to a mean of 1.

    Args:
        knots: relative intensities, not all 0.
        step_s: seconds between knots.
        level: whether the intensity is constant for each step instead of linear between knots.
    """
    mean = sum(knots) / len(knots)
    heights = [knot / mean for knot in knots]
    while True:
        for i, height in enumerate(heights):
            yield Piece(step_s, height, height if level else heights[(i + 1) % len(heights)])
