from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

from bakeoff.reference_engine.kv_cache.block_table import Visible
from bakeoff.reference_engine.scheduling.limits import Limits
from tests.reference_engine.lives import VOCABULARY, Life, random_life
from tests.reference_engine.stepping import Bench, RememberingRunner, request

TestLife = Life.TestCase
TestLife.settings = settings(stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("seeds", [range(30), range(30, 60)], ids=str)
def test_random_lives_leave_nothing_behind(seeds):
    counts = Counter()
    for seed in seeds:
        counts += random_life(seed, 100)
    kinds = (
        "forked", "cancelled", "preemptions", "swaps", "evicted", "cached", "finished", "released", "refused",
        "searched", "settled", "robbed", "short_cuts", "ahead", "several", "drawn_pending", "overshot",
        "accepted", "rejected",
    )  # fmt: skip
    assert {kind: counts[kind] > 20 for kind in kinds} == dict.fromkeys(kinds, True), counts


def test_a_request_swapped_in_flight_fits_again_once_its_window_has_moved():
    assert random_life(1270, 100)["swaps"]


def test_a_request_in_the_smallest_cache_waits_until_its_window_has_moved():
    visible = (Visible(window=7),)
    bench = Bench(RememberingRunner(2, VOCABULARY, visible), blocks=10, size=2, seqs=1, tokens=8, visible=visible)
    bench.engine.core.overlap, bench.engine.core.limits = True, Limits(1000, 100, 2, 10_000, 1)
    bench.add(request("a", [0] * 30, 5))
    reports = [bench.step() for _ in range(12)]
    assert sum(len(report.outputs) for report in reports) == 5
    assert not sum(report.preemptions for report in reports)
