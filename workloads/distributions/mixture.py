"""Mixtures, and the union of all families."""

import math

import msgspec

from bakeoff.workloads.distributions.clipped import Exponential, Lognormal, Weibull
from bakeoff.workloads.distributions.families import Family, Fixed, Quantiles, Uniform
from bakeoff.workloads.rng import Rng


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One part of a mixture.

    Attributes:
        share: weight; the shares need not add up to 1.
        distribution: of the values in this part.
    """

    share: float
    distribution: "Distribution"

    def __post_init__(self) -> None:
        if not 0 < self.share < math.inf:
            raise ValueError(f"share must be above 0, not {self.share}")


class Mixture(Family, frozen=True):
    """Each value comes from one of several distributions."""

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("a mixture needs at least one part")

    def at(self, p: float) -> float:
        """Bisection between the lowest and the highest quantile of the parts, which bracket the result."""
        ends = [part.distribution.at(p) for part in self.parts]
        low, high = min(ends), max(ends)
        if not 0 < p < 1:
            return high if p >= 1 else low
        while low < (middle := low + (high - low) / 2) < high:
            low, high = (low, middle) if self.share_up_to(middle) >= p else (middle, high)
        return low if self.share_up_to(low) >= p else high

    def share_up_to(self, x: float) -> float:
        """Weighted mean over the parts."""
        return self._weighted([part.distribution.share_up_to(x) for part in self.parts])

    def mean(self) -> float:
        """Weighted mean over the parts."""
        return self._weighted([part.distribution.mean() for part in self.parts])

    def sample(self, rng: Rng) -> float:
        """Draw a part, then a value from it; much faster than the quantile at a uniform level."""
        left = rng.uniform() * sum(part.share for part in self.parts)
        for part in self.parts[:-1]:
            if left < part.share:
                return part.distribution.sample(rng)
            left -= part.share
        return self.parts[-1].distribution.sample(rng)

    def _weighted(self, values: list[float]) -> float:
        shares = [part.share for part in self.parts]
        return sum(share * value for share, value in zip(shares, values, strict=True)) / sum(shares)


Distribution = Quantiles | Lognormal | Exponential | Weibull | Uniform | Fixed | Mixture
"""Any distribution; in a file, ``family`` is the class name in lower case."""
