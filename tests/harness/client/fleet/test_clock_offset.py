"""Clock offsets: for any delays and drifts, the true offset lies within the claimed bounds."""

import asyncio
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.harness.client.fleet.clock_offset import RoundTrip, estimate, measured, spanning
from bakeoff.harness.client.fleet.machine import Machine
from bakeoff.harness.client.fleet.worker_host import WorkerClock

DAY_NS = 86_400_000_000_000
delays_ns = st.tuples(st.integers(0, 50_000_000), st.integers(0, 50_000_000))


class RemoteClock:
    """A clock with a skew and a steady drift, read over a network with arbitrary delays in both directions."""

    def __init__(self, skew_ns: int, drift_ppm: int) -> None:
        self.skew_ns = skew_ns
        self.drift = Fraction(drift_ppm, 1_000_000)

    def offset_ns(self, now_ns: int) -> Fraction:
        return self.skew_ns + self.drift * now_ns

    def trips(self, start_ns: int, delays: list[tuple[int, int]]) -> list[RoundTrip]:
        made: list[RoundTrip] = []
        for there_ns, back_ns in delays:
            read_at_ns = start_ns + there_ns
            remote_ns = int(read_at_ns + self.offset_ns(read_at_ns))
            made.append(RoundTrip(start_ns, remote_ns, read_at_ns + back_ns))
            start_ns = made[-1].received
        return made


remote_clocks = st.builds(RemoteClock, st.integers(-DAY_NS, DAY_NS), st.integers(-200, 200))


def claims(clock: WorkerClock, true_ns: Fraction) -> bool:
    """Whether the true offset is within the bounds; clocks show whole nanoseconds, which adds one."""
    return abs(clock.offset_ns - true_ns) <= clock.uncertainty_ns + 1


@given(remote_clocks, st.lists(delays_ns, min_size=1, max_size=40))
def test_the_true_offset_is_within_half_the_shortest_round_trip(remote: RemoteClock, delays: list[tuple[int, int]]):
    trips = remote.trips(0, delays)
    offset = estimate(trips)
    best = min(trips, key=lambda trip: trip.received - trip.sent)
    assert offset.uncertainty_ns == (best.received - best.sent + 1) // 2
    read_at_ns = next(
        now for now in (best.sent + there for there, _ in delays) if int(now + remote.offset_ns(now)) == best.remote
    )
    assert claims(offset, remote.offset_ns(read_at_ns))


@given(
    remote_clocks,
    st.lists(delays_ns, min_size=1, max_size=8),
    st.lists(delays_ns, min_size=1, max_size=8),
    st.integers(0, 3_600_000_000_000),
    st.fractions(0, 1),
)
def test_at_any_instant_of_a_load_the_true_offset_is_within_the_claim(
    remote: RemoteClock,
    before: list[tuple[int, int]],
    after: list[tuple[int, int]],
    load_ns: int,
    share: Fraction,
):
    first = remote.trips(0, before)
    start_ns = first[-1].received
    last = remote.trips(start_ns + load_ns, after)
    clock = spanning(estimate(first), estimate(last))
    assert claims(clock, remote.offset_ns(start_ns + int(share * load_ns)))


def test_one_way_that_takes_all_the_time_is_still_within():
    remote = RemoteClock(skew_ns=-7_000, drift_ppm=0)
    assert estimate(remote.trips(0, [(1_000, 0)])) == WorkerClock(-6_500, 500)
    assert estimate(remote.trips(0, [(0, 1_000)])) == WorkerClock(-7_500, 500)


def test_the_shortest_round_trip_wins():
    remote = RemoteClock(skew_ns=5, drift_ppm=0)
    assert estimate(remote.trips(0, [(900, 0), (10, 10), (0, 300)])) == WorkerClock(5, 10)


def test_a_drift_shows_as_uncertainty():
    clock = spanning(WorkerClock(1_000, 100), WorkerClock(4_000, 200))
    assert clock == WorkerClock(2_550, 1_650)
    assert spanning(clock, clock) == clock


def test_a_clock_is_asked_one_question_after_the_other():
    questions: list[int] = []

    async def ask() -> int:
        questions.append(len(questions))
        await asyncio.sleep(0)
        return 10**18

    offset = asyncio.run(measured(ask, queries=5))
    assert questions == [0, 1, 2, 3, 4]
    assert offset.offset_ns > 9 * 10**17
    assert 0 < offset.uncertainty_ns < 10**9


@pytest.mark.parametrize(
    ("change", "clock", "loopback", "pids"),
    [
        ({}, True, True, True),
        ({"host": "a container"}, True, True, True),
        ({"boot": "another"}, False, False, False),
        ({"boot": ""}, False, False, False),
        ({"clocks": "another"}, False, True, True),
        ({"network": "another"}, True, False, True),
        ({"pids": "another"}, True, True, False),
    ],
)
def test_containers_of_one_machine_share_what_they_share(
    change: dict[str, str], clock: bool, loopback: bool, pids: bool
):
    here = Machine("host", "boot", "clocks", "network", "pids")
    there = Machine(
        **{"host": "host", "boot": "boot", "clocks": "clocks", "network": "network", "pids": "pids"} | change
    )
    assert here.shares_clock(there) is clock
    assert here.shares_loopback(there) is loopback
    assert here.shares_pids(there) is pids


def test_a_process_shares_everything_with_itself():
    here = Machine.here()
    assert here.shares_clock(Machine.here())
    assert here.shares_loopback(Machine.here())
    assert here.shares_pids(Machine.here())
