from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

from tests.reference_engine.lives import Life, random_life

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
