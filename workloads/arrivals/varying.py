"""Processes whose rate changes with time: by plan, by the hour of the day, or by chance."""

import math
from collections.abc import Iterator

import msgspec

from workloads.arrivals.gaps import check_burstiness, renewals
from workloads.arrivals.intensity import Piece, begun, cycle, in_seconds
from workloads.rng import Rng

_KNOTS_PER_PERIOD = 96
"""A quarter of an hour in a day; a multiple of 4, so that peak and trough are knots."""
_STEPS_PER_MEMORY = 100


class Ramp(msgspec.Struct, frozen=True):
    """A rate that climbs or falls evenly, then stays.

    Attributes:
        rate_per_s: what ``start`` and ``end`` are relative to.
        start: first rate over ``rate_per_s``, at least 0.
        end: last rate over ``rate_per_s``, above 0.
        over_s: how long the change takes, in seconds.
        burstiness: of the gaps, as of ``gamma``.
    """

    rate_per_s: float
    start: float = 0.0
    end: float = 1.0
    over_s: float = 60.0
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        check_burstiness(self.burstiness)
        if not 0 <= self.start < math.inf:
            raise ValueError(f"start must be at least 0, not {self.start}")
        if not 0 < self.end < math.inf:
            raise ValueError(f"end must be above 0, not {self.end}")
        if not 0 < self.over_s < math.inf:
            raise ValueError(f"over_s must be above 0, not {self.over_s}")

    def offsets_s(self, seed: str) -> Iterator[float]:
        """Offsets from the beginning of the ramp."""
        pieces = iter((Piece(self.over_s, self.start, self.end), Piece(math.inf, self.end, self.end)))
        return in_seconds(renewals(Rng(seed, "ramp"), self.burstiness), pieces, self.rate_per_s)


class Diurnal(msgspec.Struct, frozen=True):
    """A rate that comes and goes with the hour of the day.

    Attributes:
        rate_per_s: mean over a period.
        period_s: length of the day, in seconds, at least 1.
        swing: highest over lowest rate of a sine; 4 where there is no ``profile`` (as the sum of the tenants of a
            large model in ServeGen, arXiv 2505.09999).
        phase_s: where in the period the load begins. 0 is where the sine rises through its mean, or the beginning
            of ``profile``.
        profile: in place of the sine, relative rates of equal parts of the period: 24 of them are hours.
        burstiness: of the gaps, as of ``gamma``.
    """

    rate_per_s: float
    period_s: float = 86_400.0
    swing: float | None = None
    phase_s: float = 0.0
    profile: tuple[float, ...] = ()
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        check_burstiness(self.burstiness)
        check_day(self.period_s, self.phase_s)
        if self.swing is not None and not 1 <= self.swing < math.inf:
            raise ValueError(f"swing must be at least 1, not {self.swing}")
        if self.profile and self.swing is not None:
            raise ValueError("profile and swing exclude each other")
        if self.profile and not (min(self.profile) >= 0 and 0 < sum(self.profile) < math.inf):
            raise ValueError("profile must hold rates of at least 0, and one above 0")

    def offsets_s(self, seed: str) -> Iterator[float]:
        """Offsets from ``phase_s`` on."""
        if self.profile:
            pieces = cycle(list(self.profile), self.period_s / len(self.profile), level=True)
            day = begun(pieces, self.phase_s % self.period_s)
        else:
            day = sine(4.0 if self.swing is None else self.swing, self.period_s, self.phase_s)
        return in_seconds(renewals(Rng(seed, "diurnal"), self.burstiness), day, self.rate_per_s)


class Drift(msgspec.Struct, frozen=True):
    """A rate that wanders by chance, with gaps that are nearly Poisson: what the chat traffic of a service looks like.

    The logarithm of the rate is an Ornstein-Uhlenbeck process, in steps of a hundredth of its memory: a doubly
    stochastic process (Cox 1955) where ``burstiness`` is 1. The defaults are set to the conversation trace of Azure
    2023, 58 minutes at 5.53 arrivals per second. Mean of 20 seeds of an hour (and the trace): coefficient of variation
    of the gaps 1.10 (1.09), index of dispersion of counts 1.36 (1.39) over 1 s, 3.7 (3.9) over 10 s, 15.9 (16.1) over
    60 s, 62 (56) over 300 s. One seed's index over 60 s is 6.6 off, its rate 7 %. At another rate the index less 1
    grows in proportion.

    Attributes:
        rate_per_s: mean.
        sigma: standard deviation of the rate's natural logarithm.
        memory_s: seconds after which the correlation of the logarithm has fallen to 1/e; at least 1.
        burstiness: of the gaps, as of ``gamma``.
    """

    rate_per_s: float
    sigma: float = 0.23
    memory_s: float = 300.0
    burstiness: float = 0.9

    def __post_init__(self) -> None:
        check_burstiness(self.burstiness)
        if not 0 <= self.sigma <= 3:
            raise ValueError(f"sigma must be from 0 to 3, not {self.sigma}")
        if not 1 <= self.memory_s < math.inf:
            raise ValueError(f"memory_s must be at least 1, not {self.memory_s}")

    def offsets_s(self, seed: str) -> Iterator[float]:
        """Offsets from a random moment of the wandering rate."""
        times = renewals(Rng(seed, "drift", "gaps"), self.burstiness)
        return in_seconds(times, self._pieces(Rng(seed, "drift", "rate")), self.rate_per_s)

    def _pieces(self, rng: Rng) -> Iterator[Piece]:
        """The rate over its mean: exp(sigma·x − sigma²/2), with x of mean 0 and variance 1."""
        kept = math.exp(-1 / _STEPS_PER_MEMORY)
        shock = math.sqrt(1 - kept * kept)
        x = rng.normal()
        while True:
            rate = math.exp(self.sigma * x - self.sigma * self.sigma / 2)
            yield Piece(self.memory_s / _STEPS_PER_MEMORY, rate, rate)
            x = kept * x + shock * rng.normal()


def check_day(period_s: float, phase_s: float) -> None:
    """Complain of a period too short to walk through piece by piece, or a phase that is no number.

    Raises:
        ValueError: one of them cannot be.
    """
    if not 1 <= period_s < math.inf:
        raise ValueError(f"period_s must be at least 1, not {period_s}")
    if not math.isfinite(phase_s):
        raise ValueError(f"phase_s must be finite, not {phase_s}")


def sine(swing: float, period_s: float, phase_s: float) -> Iterator[Piece]:
    """A day of mean 1 whose highest rate is ``swing`` times its lowest, in straight lines of a 96th of it."""
    height = (swing - 1) / (swing + 1)
    turns = [2 * math.pi * i / _KNOTS_PER_PERIOD for i in range(_KNOTS_PER_PERIOD)]
    knots = [1 + height * math.sin(turn) for turn in turns]
    return begun(cycle(knots, period_s / _KNOTS_PER_PERIOD, level=False), phase_s % period_s)
