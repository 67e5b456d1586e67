"""Service times of a virtual engine: distributions of independent answers, or steps that all answers share."""

import itertools
import math
from random import Random

import msgspec


class Fixed(msgspec.Struct, frozen=True):
    """A constant."""

    seconds: float

    def draw(self, rng: Random) -> float:  # noqa: ARG002  (nothing is drawn)
        """Seconds."""
        return self.seconds


class Exponential(msgspec.Struct, frozen=True):
    """Exponentially distributed."""

    mean_s: float

    def draw(self, rng: Random) -> float:
        """Seconds."""
        return rng.expovariate(1 / self.mean_s)


class Lognormal(msgspec.Struct, frozen=True):
    """Log-normally distributed."""

    mean_s: float
    cv: float
    """Coefficient of variation: standard deviation over mean."""

    def draw(self, rng: Random) -> float:
        """Seconds."""
        variance = math.log1p(self.cv**2)
        return self.mean_s * math.exp(rng.gauss(-variance / 2, math.sqrt(variance)))


class TwoPoint(msgspec.Struct, frozen=True):
    """One of two values."""

    usual_s: float
    rare_s: float
    rare_share: float

    def draw(self, rng: Random) -> float:
        """Seconds."""
        return self.rare_s if rng.random() < self.rare_share else self.usual_s


Draw = Fixed | Exponential | Lognormal | TwoPoint


class Whole(msgspec.Struct, frozen=True):
    """One draw per answer, independent of its length: the service time of M/M/c and M/D/c queues.

    Tokens are spread evenly over it, the last one at its end.
    """

    total: Draw

    def token_times_s(self, tokens: int, rng: Random) -> list[float]:
        """When each token is ready, in seconds from the start of service."""
        each_s = self.total.draw(rng) / tokens
        return [each_s * (i + 1) for i in range(tokens)]


class PerToken(msgspec.Struct, frozen=True):
    """One draw for the first token, and one per later token."""

    ttft: Draw
    itl: Draw

    def token_times_s(self, tokens: int, rng: Random) -> list[float]:
        """When each token is ready, in seconds from the start of service."""
        gaps_s = (self.itl.draw(rng) for _ in range(tokens - 1))
        return list(itertools.accumulate(gaps_s, initial=self.ttft.draw(rng)))


class Batched(msgspec.Struct, frozen=True):
    """Continuous batching: a step gives each running answer one token, and takes longer the more it computes.

    A step of ``r`` answers, of which some began with ``p`` prompt tokens outside the prefix cache, takes
    ``step_s + r · row_s + p · prompt_token_s``. An answer that arrives during a step begins with the next one.
    """

    step_s: float = 0.01
    row_s: float = 0.001
    prompt_token_s: float = 0.0001


Service = Whole | PerToken | Batched
