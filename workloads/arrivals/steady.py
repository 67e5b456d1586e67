"""Processes with a constant rate."""

import itertools
from collections.abc import Iterator

import msgspec

from bakeoff.workloads.arrivals.gaps import GapFamily, check_burstiness, renewals
from bakeoff.workloads.rng import Rng


class Constant(msgspec.Struct, frozen=True):
    """Evenly spaced arrivals, the first at 0."""

    rate_per_s: float

    def offsets_s(self, seed: str) -> Iterator[float]:  # noqa: ARG002  (nothing is drawn)
        """0, 1/rate, 2/rate…, computed from the index so that rounding errors do not accumulate."""
        return (i / self.rate_per_s for i in itertools.count())


class Poisson(msgspec.Struct, frozen=True):
    """Independent exponential gaps of mean 1/rate: coefficient of variation 1."""

    rate_per_s: float

    def offsets_s(self, seed: str) -> Iterator[float]:
        """Cumulative exponential gaps; the first arrival comes after the first gap."""
        rng = Rng(seed, "poisson")
        offset = 0.0
        while True:
            offset += rng.exponential(1 / self.rate_per_s)
            yield offset


class Gamma(msgspec.Struct, frozen=True):
    """Independent Gamma gaps of mean 1/rate.

    Attributes:
        rate_per_s: mean arrivals per second.
        burstiness: vLLM's ``--burstiness``, the shape of the gaps: coefficient of variation 1/√burstiness. 1 is
            ``poisson``, below 1 is burstier, infinity is even spacing.
    """

    rate_per_s: float
    burstiness: float = 0.25

    def __post_init__(self) -> None:
        check_burstiness(self.burstiness)

    def offsets_s(self, seed: str) -> Iterator[float]:
        """Cumulative gaps, in seconds."""
        return _scaled(seed, "gamma", self.burstiness, self.rate_per_s)


class Weibull(msgspec.Struct, frozen=True):
    """Independent Weibull gaps of mean 1/rate.

    Attributes:
        rate_per_s: mean arrivals per second.
        burstiness: coefficient of variation 1/√burstiness, as for ``gamma``; it determines the shape but is not the
            shape. Weibull gaps are more often of medium length than Gamma gaps of the same variation.
    """

    rate_per_s: float
    burstiness: float = 0.25

    def __post_init__(self) -> None:
        check_burstiness(self.burstiness)

    def offsets_s(self, seed: str) -> Iterator[float]:
        """Cumulative gaps, in seconds."""
        return _scaled(seed, "weibull", self.burstiness, self.rate_per_s)


def _scaled(seed: str, family: GapFamily, burstiness: float, rate_per_s: float) -> Iterator[float]:
    return (time / rate_per_s for time in renewals(Rng(seed, family), burstiness, family))
