"""How long a virtual engine takes for an answer: distributions, and what is drawn from them."""

import itertools
from random import Random

import msgspec


class Fixed(msgspec.Struct, frozen=True):
    """Always the same."""

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


Draw = Fixed | Exponential


class Whole(msgspec.Struct, frozen=True):
    """One draw for a whole answer, whatever its length: the service time of M/M/c and M/D/c.

    Its tokens come evenly spread over it, the last one at its end.
    """

    total: Draw

    def token_times_s(self, tokens: int, rng: Random) -> list[float]:
        """When each token is ready, in seconds from the begin of service."""
        each_s = self.total.draw(rng) / tokens
        return [each_s * (i + 1) for i in range(tokens)]


class PerToken(msgspec.Struct, frozen=True):
    """A draw for the first token, and one for each later one."""

    ttft: Draw
    itl: Draw

    def token_times_s(self, tokens: int, rng: Random) -> list[float]:
        """When each token is ready, in seconds from the begin of service."""
        gaps_s = (self.itl.draw(rng) for _ in range(tokens - 1))
        return list(itertools.accumulate(gaps_s, initial=self.ttft.draw(rng)))


Service = Whole | PerToken
