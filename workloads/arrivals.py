"""Arrival processes: when each session of an open loop starts, in seconds from the start of the load."""

import itertools
import math
from collections.abc import Iterator
from typing import Protocol

import msgspec

from workloads.errors import BadOption, UnknownWorkload
from workloads.options import nearest
from workloads.rng import Rng


class Arrival(Protocol):
    """A point process on [0, ∞)."""

    def offsets_s(self, seed: str) -> Iterator[float]:
        """Yield rising offsets without end."""
        ...


class Constant(msgspec.Struct, frozen=True):
    """Evenly spaced arrivals, the first at 0."""

    rate_per_s: float

    def offsets_s(self, seed: str) -> Iterator[float]:  # noqa: ARG002  (nothing is drawn)
        """0, 1/rate, 2/rate… computed from the index, so that no rounding accumulates."""
        return (i / self.rate_per_s for i in itertools.count())


class Poisson(msgspec.Struct, frozen=True):
    """Independent exponential gaps of mean 1/rate: coefficient of variation 1."""

    rate_per_s: float

    def offsets_s(self, seed: str) -> Iterator[float]:
        """Sums of exponential gaps; the first arrival comes after the first gap."""
        rng = Rng(seed, "poisson")
        offset = 0.0
        while True:
            offset += rng.exponential(1 / self.rate_per_s)
            yield offset


_PROCESSES: dict[str, type[Constant] | type[Poisson]] = {"constant": Constant, "poisson": Poisson}
ARRIVALS = tuple(_PROCESSES)
"""Names of the arrival processes."""


def arrival(name: str, rate_per_s: float) -> Arrival:
    """Make an arrival process by name.

    Raises:
        UnknownWorkload: there is none of that name; the nearest is named.
        BadOption: the rate is not a positive number.
    """
    if name not in _PROCESSES:
        raise UnknownWorkload(f"unknown arrival process '{name}'; {nearest(name, _PROCESSES)}")
    if not 0 < rate_per_s < math.inf:
        raise BadOption(f"rate_per_s must be above 0, not {rate_per_s}")
    return _PROCESSES[name](rate_per_s)
