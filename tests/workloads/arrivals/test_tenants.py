"""Many tenants: a few send most of the load, and each is as bursty as its own figure."""

import itertools
import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from bakeoff.workloads.arrivals import MultiTenant
from bakeoff.workloads.distributions import Fixed, Quantiles

DAY_S = 86_400.0
SEEDS = ("1", "2", "7")


def day_of(process: MultiTenant, seed: str) -> list[tuple[float, int]]:
    return list(itertools.takewhile(lambda pair: pair[0] < DAY_S, process.arrivals(seed)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_the_defaults_are_the_clients_of_servegen(seed: str) -> None:
    """Top ten 63–93 % of the load, client CV with a median of 1.1–1.3, p75 2.1–2.6 and p95 9–10, day swing 4."""
    process = MultiTenant(2.0)
    arrivals = day_of(process, seed)
    clients = Counter(tenant for _, tenant in arrivals)
    assert len(arrivals) / DAY_S == pytest.approx(2.0, rel=0.03)
    assert 0.63 < sum(clients[tenant] for tenant in range(10)) / len(arrivals) < 0.93
    cvs = process.tenant_cvs(seed)
    median, p75, p95 = (float(np.quantile(cvs, p)) for p in (0.5, 0.75, 0.95))
    assert 1.1 <= median <= 1.3
    assert 2.1 <= p75 <= 2.6
    assert 9 <= p95 <= 10
    hours = np.bincount([int(offset // 3600) for offset, _ in arrivals], minlength=24)
    # Three hours around the peak and the trough; bursty tenants leave an error of some 5 % in the ratio.
    assert hours[5:8].sum() / hours[17:20].sum() == pytest.approx(3.8, rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_each_tenant_has_its_share_and_its_variation(seed: str) -> None:
    """Without the daily cycle, a tenant's gaps are those of its own renewal process."""
    process = MultiTenant(2.0, tenants=6, skew=1.0, cv=Quantiles((0, 1), (0.5, 3.0)), swing=1.0)
    by_tenant: defaultdict[int, list[float]] = defaultdict(list)
    for offset, tenant in day_of(process, seed):
        by_tenant[tenant].append(offset)
    shares, cvs = process.shares(), process.tenant_cvs(seed)
    assert sum(shares) == pytest.approx(1.0)
    assert sorted(cvs) == pytest.approx([0.5 + 2.5 * (i + 0.5) / 6 for i in range(6)])
    for tenant, offsets in by_tenant.items():
        gaps, count = np.diff(offsets), 2 * DAY_S * shares[tenant]
        assert len(offsets) == pytest.approx(count, abs=4 * cvs[tenant] * math.sqrt(count))
        assert gaps.std() / gaps.mean() == pytest.approx(cvs[tenant], rel=0.15), tenant


def test_seeds_deal_the_variations_to_other_tenants() -> None:
    process = MultiTenant(2.0)
    assert process.tenant_cvs("1") != process.tenant_cvs("2")
    assert sorted(process.tenant_cvs("1")) == sorted(process.tenant_cvs("2"))


def test_many_calm_tenants_are_poisson() -> None:
    """Palm and Khintchine: the sum of many independent processes loses the gaps of each."""
    process = MultiTenant(20.0, tenants=400, skew=0.0, cv=Fixed(0.0), swing=1.0)
    gaps = np.diff(np.fromiter(itertools.islice(process.offsets_s("7"), 400), float))
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.2)
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.05)


def test_one_tenant_is_enough_and_arrivals_are_the_offsets() -> None:
    process = MultiTenant(4.0, tenants=1, cv=Fixed(0.0), swing=1.0)
    pairs = list(itertools.islice(process.arrivals("7"), 20))
    assert {tenant for _, tenant in pairs} == {0}
    assert np.diff([offset for offset, _ in pairs]) == pytest.approx(0.25)
    many = MultiTenant(4.0)
    offsets = list(itertools.islice(many.offsets_s("7"), 500))
    assert offsets == [offset for offset, _ in itertools.islice(many.arrivals("7"), 500)]


@pytest.mark.slow
def test_ten_thousand_tenants_start_at_the_wanted_rate() -> None:
    """All tenants are as bursty as possible: started with whole gaps, thousands would arrive in the first second."""
    process = MultiTenant(10.0, tenants=10_000, skew=0.0, cv=Fixed(10.0), swing=1.0)
    begun = sum(1 for _ in itertools.takewhile(lambda offset: offset < 100, process.offsets_s("7")))
    assert begun == pytest.approx(1_000, abs=4 * 10 * math.sqrt(1_000))
