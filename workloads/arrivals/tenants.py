"""Many tenants: a few send most of the load, and a few are very bursty."""

import heapq
import itertools
import math
from collections.abc import Iterator

import msgspec

from bakeoff.workloads.arrivals.gaps import GapFamily, renewals
from bakeoff.workloads.arrivals.intensity import in_seconds
from bakeoff.workloads.arrivals.varying import check_day, sine
from bakeoff.workloads.distributions import Distribution, Quantiles
from bakeoff.workloads.rng import Rng

# Xiang et al., "ServeGen" (arXiv 2505.09999), Apache-2.0: coefficients of variation of the clients of five models.
# Across the models, the quartiles are 0.94–1.06, 1.03–1.32 and 1.7–3.6, and the 95th percentile is 6.1–9.6.
SERVEGEN_CLIENT_CV = Quantiles((0, 0.05, 0.25, 0.5, 0.75, 0.95, 1), (0.7, 0.85, 1.0, 1.2, 2.2, 9.5, 15.0))

_WEIBULL_ABOVE_CV = 2.0
"""In ServeGen, Weibull gaps fit a client's bursty minutes best (median shape 0.44, CV 2.6). Gamma gaps fit the other
three quarters of the minutes best (median shape 0.85, CV 1.1)."""


class MultiTenant(msgspec.Struct, frozen=True):
    """Merged arrivals of many independent tenants that share one daily cycle.

    Attributes:
        rate_per_s: mean over a period, summed over all tenants.
        tenants: number of tenants; tenant 0 is the largest.
        skew: tenant k's share of the load is proportional to 1/(k + 1)^skew (Zipf). With 100 tenants, a skew of 1.2
            gives the first ten 67 % (ServeGen: 63–93 %).
        cv: distribution of the coefficient of variation of a tenant's gaps. Its quantiles are assigned to tenants at
            random, so every seed has the same number of bursty tenants.
        swing: ratio of the highest to the lowest rate of the day.
        period_s: length of the day, in seconds.
        phase_s: time of day at which the load begins; at 0 the rate rises through its mean.
    """

    rate_per_s: float
    tenants: int = 100
    skew: float = 1.2
    cv: Distribution = SERVEGEN_CLIENT_CV
    swing: float = 4.0
    period_s: float = 86_400.0
    phase_s: float = 0.0

    def __post_init__(self) -> None:
        check_day(self.period_s, self.phase_s)
        if not 1 <= self.tenants <= 10_000:
            raise ValueError(f"tenants must be from 1 to 10,000, not {self.tenants}")
        if not 0 <= self.skew <= 10:
            raise ValueError(f"skew must be from 0 to 10, not {self.skew}")
        if not 1 <= self.swing < 1e6:
            raise ValueError(f"swing must be at least 1, not {self.swing}")
        if not 0 <= self.cv.at(0) <= self.cv.at(1) <= 100:
            raise ValueError("cv must be from 0 to 100")

    def offsets_s(self, seed: str) -> Iterator[float]:
        """Offsets of all tenants, in seconds."""
        return (offset for offset, _ in self.arrivals(seed))

    def arrivals(self, seed: str) -> Iterator[tuple[float, int]]:
        """Yield the offset in seconds and the tenant's number for each arrival."""
        kinds = enumerate(zip(self.shares(), self.tenant_cvs(seed), strict=True))
        merged = heapq.merge(*(_times(seed, tenant, share, cv) for tenant, (share, cv) in kinds))
        times, numbers = itertools.tee(merged)
        day = sine(self.swing, self.period_s, self.phase_s)
        offsets = in_seconds((time for time, _ in times), day, self.rate_per_s)
        return zip(offsets, (tenant for _, tenant in numbers), strict=True)

    def shares(self) -> list[float]:
        """Each tenant's fraction of the load, largest first."""
        weights = [(k + 1) ** -self.skew for k in range(self.tenants)]
        total = sum(weights)
        return [weight / total for weight in weights]

    def tenant_cvs(self, seed: str) -> list[float]:
        """Each tenant's coefficient of variation of the gaps."""
        cvs = [self.cv.at((i + 0.5) / self.tenants) for i in range(self.tenants)]
        rng = Rng(seed, "multi-tenant", "cv")
        for i in range(self.tenants - 1, 0, -1):
            j = rng.below(i + 1)
            cvs[i], cvs[j] = cvs[j], cvs[i]
        return cvs


def _times(seed: str, tenant: int, share: float, cv: float) -> Iterator[tuple[float, int]]:
    """One tenant's arrivals in the operational time of all tenants together."""
    family: GapFamily = "weibull" if cv > _WEIBULL_ABOVE_CV else "gamma"
    burstiness = 1 / (cv * cv) if cv > 0 else math.inf
    rng = Rng(seed, "multi-tenant", str(tenant))
    return ((time / share, tenant) for time in renewals(rng, burstiness, family))
