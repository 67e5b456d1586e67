"""Families of positive values, clipped at both ends."""

import math
from abc import abstractmethod
from statistics import NormalDist

import msgspec

from bakeoff.workloads.distributions.families import Family

_NORMAL = NormalDist()


class Clipped(Family, frozen=True, kw_only=True):
    """A family of positive values, clipped to ``min`` and ``max``."""

    min: float = 0.0
    max: float = math.inf

    def __post_init__(self) -> None:
        if not 0 <= self.min <= self.max:
            raise ValueError(f"min and max must not be negative, and min not above max, not {self.min} and {self.max}")

    def at(self, p: float) -> float:
        """The family's quantile, clipped."""
        if not 0 < p < 1:
            return self.max if p >= 1 else self.min
        return min(max(self._quantile(p), self.min), self.max)

    def share_up_to(self, x: float) -> float:
        """The family's cumulative share; clipped values count at ``min`` and ``max``."""
        if x < self.min or x >= self.max:
            return float(x >= self.max)
        return self._share(x) if x > 0 else 0.0

    @abstractmethod
    def _quantile(self, p: float) -> float:
        """Quantile at 0 < p < 1, before clipping."""

    @abstractmethod
    def _share(self, x: float) -> float:
        """P(X ≤ x) for x > 0, before clipping."""


class Lognormal(Clipped, frozen=True):
    """exp of a normal variable with mean ``mu`` and standard deviation ``sigma``, clipped."""

    mu: float
    sigma: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(sigma=self.sigma)
        if not math.isfinite(self.mu):
            raise ValueError(f"mu must be finite, not {self.mu}")

    def _quantile(self, p: float) -> float:
        return math.exp(min(self.mu + self.sigma * _NORMAL.inv_cdf(p), 700.0))

    def _share(self, x: float) -> float:
        return _NORMAL.cdf((math.log(x) - self.mu) / self.sigma)


class Exponential(Clipped, frozen=True):
    """An exponential variable, clipped. In a file the option is ``mean``, the mean before clipping."""

    unclipped_mean: float = msgspec.field(name="mean")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(mean=self.unclipped_mean)

    def mean(self) -> float:
        """Exact: min + ∫ P(X > x) dx from min to max."""
        mean = self.unclipped_mean
        return self.min + mean * (math.exp(-self.min / mean) - math.exp(-self.max / mean))

    def _quantile(self, p: float) -> float:
        return -self.unclipped_mean * math.log1p(-p)

    def _share(self, x: float) -> float:
        return -math.expm1(-x / self.unclipped_mean)


class Weibull(Clipped, frozen=True):
    """A Weibull variable, clipped: P(X > x) = exp(−(x / scale)^shape)."""

    shape: float
    scale: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(shape=self.shape, scale=self.scale)

    def _quantile(self, p: float) -> float:
        return self.scale * math.exp(min(math.log(-math.log1p(-p)) / self.shape, 700.0))

    def _share(self, x: float) -> float:
        return -math.expm1(-math.exp(min(math.log(x / self.scale) * self.shape, 700.0)))


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be above 0, not {value}")
