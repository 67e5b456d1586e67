"""Bursts and silences, as in code completion traffic; no renewal process reproduces them."""

import math
from collections.abc import Iterator

import msgspec

from bakeoff.workloads.arrivals.gaps import check_burstiness, renewals
from bakeoff.workloads.arrivals.intensity import Piece, in_seconds, skipped
from bakeoff.workloads.distributions import Distribution, Quantiles
from bakeoff.workloads.rng import Rng

# Azure LLM inference trace 2023, code (8,819 requests in 57 minutes), CC-BY-4.0, Microsoft Azure: Patel et al.,
# "Splitwise", ISCA 2024. Split at gaps of more than 5 s, it has 58 bursts, 28 % of the time, and 57 silences. Within
# bursts, the gaps' coefficient of variation is 2.2.
AZURE_CODE_BURST_S = Quantiles((0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1), (1.4, 3.3, 6.0, 9.6, 15.0, 22.5, 27.0, 46.0))
AZURE_CODE_SILENCE_S = Quantiles((0, 0.1, 0.25, 0.5, 0.75, 0.9, 1), (5.0, 6.9, 10.0, 25.0, 48.0, 106.0, 217.0))

_SHORTEST_CYCLE_S = 0.1
_CYCLES_BEFORE = 20
"""Bursts and silences skipped before the load begins, so that the process no longer depends on its start."""


class OnOff(msgspec.Struct, frozen=True):
    """Bursts with silences between them.

    The defaults match the code trace of Azure 2023, 57 minutes at 2.57 arrivals per second. Mean of 20 seeds of that
    length (and the trace): coefficient of variation of the gaps 12.9 (13.2), index of dispersion of counts 14 (13) over
    1 s, 74 (72) over 10 s, 149 (164) over 60 s, longest silence 197 s (217 s). From seed to seed, the index over 60 s
    varies by 43 and the rate by 15 %. A load usually begins within a silence, so make it several times as long as
    ``on_s`` and ``off_s``.

    Attributes:
        rate_per_s: mean over bursts and silences.
        on_s: length of a burst, in seconds.
        off_s: length of a silence, in seconds.
        spread: standard deviation of the natural logarithm of the rate within a burst, from burst to burst.
        burstiness: of the gaps within bursts, as for ``gamma``.
    """

    rate_per_s: float
    on_s: Distribution = AZURE_CODE_BURST_S
    off_s: Distribution = AZURE_CODE_SILENCE_S
    spread: float = 0.5
    burstiness: float = 0.2

    def __post_init__(self) -> None:
        check_burstiness(self.burstiness)
        if not 0 <= self.spread <= 3:
            raise ValueError(f"spread must be from 0 to 3, not {self.spread}")
        for name, length in (("on_s", self.on_s), ("off_s", self.off_s)):
            if length.at(0) < 0 or not 0 < length.mean() < math.inf:
                raise ValueError(f"{name} must not be negative, and its mean must be above 0")
        if self.on_s.mean() + self.off_s.mean() < _SHORTEST_CYCLE_S:
            raise ValueError(f"on_s and off_s together must have a mean of at least {_SHORTEST_CYCLE_S} s")

    def offsets_s(self, seed: str) -> Iterator[float]:
        """Offsets in seconds, starting at a random point of a burst or silence."""
        on_s, off_s = self.on_s.mean(), self.off_s.mean()
        rng = Rng(seed, "onoff", "lengths")
        skip_s = (_CYCLES_BEFORE + rng.uniform()) * (on_s + off_s)
        bursts = skipped(self._pieces(rng, (on_s + off_s) / on_s), skip_s)
        return in_seconds(renewals(Rng(seed, "onoff", "gaps"), self.burstiness), bursts, self.rate_per_s)

    def _pieces(self, rng: Rng, mean_density: float) -> Iterator[Piece]:
        """Alternate bursts, of ``mean_density`` times the mean rate on average, with silences."""
        while True:
            density = mean_density * math.exp(self.spread * rng.normal() - self.spread * self.spread / 2)
            yield Piece(self.on_s.sample(rng), density, density)
            yield Piece(self.off_s.sample(rng), 0.0, 0.0)
