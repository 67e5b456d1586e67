"""The seam: what an arrival process is."""

import math
from collections.abc import Iterator
from typing import Protocol

import msgspec


class Arrival(Protocol):
    """A point process on [0, ∞)."""

    def offsets_s(self, seed: str) -> Iterator[float]:
        """Yield offsets without end; none is before the one before it."""
        ...


class Stretched(msgspec.Struct, frozen=True):
    """Another process played slower or faster.

    A process of twice the rate has the same bursts, silences and days with twice the arrivals in them; a process
    stretched by 0.5 has all of them in half the time.

    Attributes:
        arrival: the process.
        factor: every offset is multiplied by this: 0.5 plays it at double speed.
    """

    arrival: Arrival
    factor: float

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ValueError(f"factor must be above 0, not {self.factor}")

    def offsets_s(self, seed: str) -> Iterator[float]:
        """The process's own offsets, times the factor."""
        return (offset * self.factor for offset in self.arrival.offsets_s(seed))
