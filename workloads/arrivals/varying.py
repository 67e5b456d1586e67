"""Processes whose rate changes over time: on a ramp, over the day, or at random."""

import math
from collections.abc import Iterator

import msgspec

from bakeoff.workloads.arrivals.gaps import check_burstiness, renewals
from bakeoff.workloads.arrivals.intensity import Piece, cycle, in_seconds, skipped
from bakeoff.workloads.rng import Rng

_KNOTS_PER_PERIOD = 96
"""A quarter of an hour for a day; a multiple of 4, so that peak and trough are knots."""
_STEPS_PER_MEMORY = 100


class Ramp(msgspec.Struct, frozen=True):
    """A rate that rises or falls linearly, then stays constant.

    Attributes:
        rate_per_s: reference rate of ``start`` and ``end``.
        start: first rate relative to ``rate_per_s``, at least 0.
        end: last rate relative to ``rate_per_s``, above 0.
        over_s: duration of the change, in seconds.
        burstiness: of the gaps, as for ``gamma``.
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
        """Offsets from the beginning of the ramp, in seconds."""
        pieces = iter((Piece(self.over_s, self.start, self.end), Piece(math.inf, self.end, self.end)))
        return in_seconds(renewals(Rng(seed, "ramp"), self.burstiness), pieces, self.rate_per_s)


class Diurnal(msgspec.Struct, frozen=True):
    """A rate that follows the hour of the day.

    Attributes:
        rate_per_s: mean over a period.
        period_s: length of the day, in seconds, at least 1.
        swing: ratio of the highest to the lowest rate of a sine; the default without ``profile`` is 4, as for the
            sum of a large model's clients in ServeGen (arXiv 2505.09999).
        phase_s: time of day at which the load begins; 0 is where the sine rises through its mean, or the beginning
            of ``profile``.
        profile: relative rates of equal parts of the period, instead of a sine; 24 rates are hours.
        burstiness: of the gaps, as for ``gamma``.
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
            raise ValueError("give either profile or swing, not both")
        if self.profile and not (min(self.profile) >= 0 and 0 < sum(self.profile) < math.inf):
            raise ValueError("profile needs rates of at least 0, one of them above 0")

    def offsets_s(self, seed: str) -> Iterator[float]:
        """Offsets from ``phase_s`` on, in seconds."""
        if self.profile:
            pieces = cycle(list(self.profile), self.period_s / len(self.profile), level=True)
            day = skipped(pieces, self.phase_s % self.period_s)
        else:
            day = sine(4.0 if self.swing is None else self.swing, self.period_s, self.phase_s)
        return in_seconds(renewals(Rng(seed, "diurnal"), self.burstiness), day, self.rate_per_s)


class Drift(msgspec.Struct, frozen=True):
    """A rate that drifts at random, with nearly Poisson gaps, as in the chat traffic of a service.

    The logarithm of the rate is an Ornstein-Uhlenbeck process in steps of 1/100 of its memory, so with a
    ``burstiness`` of 1 this is a doubly stochastic Poisson process (Cox 1955). The defaults match the conversation
    trace of Azure 2023, 58 minutes at 5.53 arrivals per second. Mean of 20 seeds of an hour (and the trace):
    coefficient of variation of the gaps 1.10 (1.09), index of dispersion of counts 1.36 (1.39) over 1 s, 3.7 (3.9) over
    10 s, 15.9 (16.1) over 60 s, 62 (56) over 300 s. From seed to seed, the index over 60 s varies by 6.6 and the rate
    by 7 %. The index minus 1 is proportional to the rate.

    Attributes:
        rate_per_s: mean.
        sigma: standard deviation of the natural logarithm of the rate.
        memory_s: time after which the autocorrelation of the logarithm is 1/e, in seconds, at least 1.
        burstiness: of the gaps, as for ``gamma``.
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
        """Offsets from a random moment of the drifting rate, in seconds."""
        times = renewals(Rng(seed, "drift", "gaps"), self.burstiness)
        return in_seconds(times, self._pieces(Rng(seed, "drift", "rate")), self.rate_per_s)

    def _pieces(self, rng: Rng) -> Iterator[Piece]:
        """The rate relative to its mean: exp(sigma·x − sigma²/2), where x has mean 0 and variance 1."""
        retained = math.exp(-1 / _STEPS_PER_MEMORY)
        shock = math.sqrt(1 - retained * retained)
        x = rng.normal()
        while True:
            rate = math.exp(self.sigma * x - self.sigma * self.sigma / 2)
            yield Piece(self.memory_s / _STEPS_PER_MEMORY, rate, rate)
            x = retained * x + shock * rng.normal()


def check_day(period_s: float, phase_s: float) -> None:
    """Check the length of the day and the time at which the load begins.

    Raises:
        ValueError: ``period_s`` is below 1, which would take too many pieces, or ``phase_s`` is not finite.
    """
    if not 1 <= period_s < math.inf:
        raise ValueError(f"period_s must be at least 1, not {period_s}")
    if not math.isfinite(phase_s):
        raise ValueError(f"phase_s must be finite, not {phase_s}")


def sine(swing: float, period_s: float, phase_s: float) -> Iterator[Piece]:
    """A sine day of mean 1 whose highest rate is ``swing`` times its lowest, linear in 96 pieces."""
    height = (swing - 1) / (swing + 1)
    angles = [2 * math.pi * i / _KNOTS_PER_PERIOD for i in range(_KNOTS_PER_PERIOD)]
    knots = [1 + height * math.sin(angle) for angle in angles]
    return skipped(cycle(knots, period_s / _KNOTS_PER_PERIOD, level=False), phase_s % period_s)
