"""The interface of arrival processes."""

import math
from collections.abc import Iterator
from typing import Protocol

import msgspec


class Arrival(Protocol):
    """A point process on [0, ∞)."""

    def offsets_s(self, seed: str) -> Iterator[float]:
        """Yield seconds from the start of the load, endless and not decreasing."""
        ...


class Delayed(msgspec.Struct, frozen=True):
    """Another process, all of whose arrivals come later.

    Attributes:
        arrival: the process.
        delay_s: seconds.
    """

    arrival: Arrival
    delay_s: float

    def offsets_s(self, seed: str) -> Iterator[float]:
        """The process's offsets, put off."""
        return (offset + self.delay_s for offset in self.arrival.offsets_s(seed))


class Stretched(msgspec.Struct, frozen=True):
    """Another process with its time axis scaled.

    Doubling a process's rate keeps the length of its bursts, silences and days and doubles the arrivals in them.
    Stretching it by 0.5 halves their length instead.

    Attributes:
        arrival: the process.
        factor: factor on every offset; 0.5 plays it at double speed.
    """

    arrival: Arrival
    factor: float

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ValueError(f"factor must be above 0, not {self.factor}")

    def offsets_s(self, seed: str) -> Iterator[float]:
        """The process's offsets times the factor."""
        return (offset * self.factor for offset in self.arrival.offsets_s(seed))
