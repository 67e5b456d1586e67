"""The interface of distributions, and those given by their values."""

import itertools
import math
from abc import ABCMeta, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from bakeoff.workloads.rng import Rng

_LOGISTIC_GRID = tuple(1 / (1 + math.exp(-t / 64)) for t in range(-36 * 64, 36 * 64 + 1))
"""Probabilities that are dense in both tails, out to the resolution of a 64-bit uniform draw."""


class AbstractStructMeta(msgspec.StructMeta, ABCMeta):
    """Metaclass of abstract structs."""


class Family(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="family",
    tag=str.lower,
    metaclass=AbstractStructMeta,
):
    """Base class of distributions."""

    @abstractmethod
    def at(self, p: float) -> float:
        """The quantile at probability ``p``, not decreasing in ``p``.

        At 0 and 1 it is the smallest and the largest possible value; infinity for a tail without ``max``.
        """

    @abstractmethod
    def share_up_to(self, x: float) -> float:
        """P(X ≤ x), the cumulative distribution function."""

    def mean(self) -> float:
        """∫ at(p) dp over 0…1 by the trapezoidal rule, after clipping."""
        weights = [p * (1 - p) for p in _LOGISTIC_GRID]
        return sum(w * self.at(p) for w, p in zip(weights, _LOGISTIC_GRID, strict=True)) / sum(weights)

    def sample(self, rng: Rng) -> float:
        """One draw: the quantile at a uniform level."""
        return self.at(rng.uniform())


class Quantiles(Family, frozen=True):
    """A distribution given by its quantiles, linear between the knots.

    Two knots with equal values are a mass point; two knots at nearly equal levels are a gap.

    Attributes:
        levels: increasing probabilities from 0 to 1.
        values: the quantile at each level.
    """

    levels: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        levels, values = self.levels, self.values
        checks = (
            (len(levels) == len(values), f"needs as many values as levels, not {len(values)} and {len(levels)}"),
            (len(levels) > 1 and levels[0] == 0 and levels[-1] == 1, "levels must begin with 0 and end with 1"),
            (all(a < b for a, b in itertools.pairwise(levels)), "levels must increase"),
            (all(map(math.isfinite, values)), "values must be finite"),
            (all(a <= b for a, b in itertools.pairwise(values)), "values must not decrease"),
        )
        for is_valid, reason in checks:
            if not is_valid:
                raise ValueError(f"quantiles: {reason}")

    def at(self, p: float) -> float:
        """Linear between the knots."""
        return _line(self.levels, self.values, p)

    def share_up_to(self, x: float) -> float:
        """Linear between the knots; a mass point counts in full at its value."""
        if x < self.values[0]:
            return 0.0
        return 1.0 if x >= self.values[-1] else _line(self.values, self.levels, x)

    def mean(self) -> float:
        """Exact."""
        knots = zip(self.levels, self.values, strict=True)
        return sum((q - p) * (a + b) / 2 for (p, a), (q, b) in itertools.pairwise(knots))


class Uniform(Family, frozen=True):
    """Uniform from ``low`` to ``high``."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise ValueError(f"low must be below high, and both must be finite, not {self.low} and {self.high}")

    def at(self, p: float) -> float:
        """Linear."""
        return _line((0.0, 1.0), (self.low, self.high), p)

    def share_up_to(self, x: float) -> float:
        """Linear."""
        return _line((self.low, self.high), (0.0, 1.0), x)

    def mean(self) -> float:
        """The middle."""
        return (self.low + self.high) / 2


class Fixed(Family, frozen=True):
    """Always ``value``."""

    value: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"value must be finite, not {self.value}")

    def at(self, p: float) -> float:  # noqa: ARG002  (all quantiles are equal)
        """The value."""
        return self.value

    def share_up_to(self, x: float) -> float:
        """0 below the value, 1 from it on."""
        return float(x >= self.value)

    def mean(self) -> float:
        """The value."""
        return self.value


def _line(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Linear interpolation through the points (xs, ys), constant beyond the ends."""
    if x < xs[0]:
        return ys[0]
    if x >= xs[-1]:
        return ys[-1]
    i = bisect_right(xs, x)
    x0, y0 = xs[i - 1], ys[i - 1]
    return y0 + (ys[i] - y0) * (x - x0) / (xs[i] - x0)
