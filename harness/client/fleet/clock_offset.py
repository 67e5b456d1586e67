"""Offset of another machine's monotonic clock from ours, with its uncertainty.

A query leaves at ``sent`` and its reply arrives at ``received`` of our clock; the other clock is read at an unknown
instant in between. However long each direction took, ``remote - received <= offset <= remote - sent``: the middle is
off by at most half the round trip (Cristian [1]). Of many queries the one with the shortest round trip gives the
tightest bound (the clock filter of NTP [2]).

Both clocks drift. No query runs during a load, so the offset is bounded by a measurement before it and one after it
(:func:`spanning`). All times of a load get the same offset, without correction for drift: intervals between two stamps
of one worker stay exactly as its own clock measured them.

1. F. Cristian: *Probabilistic clock synchronization*. Distributed Computing 3 (1989), 146-158.
2. D. Mills et al.: *RFC 5905, Network Time Protocol Version 4*, section 10.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from bakeoff.harness.client.fleet.worker_host import WorkerClock

QUERIES = 32
"""Round trips of one measurement: about 30 ms for each worker."""


class RoundTrip(NamedTuple):
    """One query and its reply, in nanoseconds.

    Attributes:
        sent: our clock when the query left.
        remote: the other clock, read at some instant between the other two.
        received: our clock when the reply arrived.
    """

    sent: int
    remote: int
    received: int


def estimate(trips: Sequence[RoundTrip]) -> WorkerClock:
    """The offset from the shortest round trip, known to within half of it."""
    best = min(trips, key=lambda trip: trip.received - trip.sent)
    return _between(best.remote - best.received, best.remote - best.sent)


def spanning(before: WorkerClock, after: WorkerClock) -> WorkerClock:
    """The offset between two measurements: if the rate is steady, it lies within their combined range.

    NTP-disciplined clocks drift apart by about 1 µs per second, so a load of a minute adds 0.03 ms to the uncertainty;
    free-running quartz at 50 µs per second adds 1.5 ms.
    """
    return _between(
        min(before.offset_ns - before.uncertainty_ns, after.offset_ns - after.uncertainty_ns),
        max(before.offset_ns + before.uncertainty_ns, after.offset_ns + after.uncertainty_ns),
    )


async def measured(read_clock: Callable[[], Awaitable[int]], queries: int = QUERIES) -> WorkerClock:
    """Measure the offset of a clock.

    Args:
        read_clock: reads the other clock, in nanoseconds.
        queries: number of round trips, one after the other.
    """
    trips: list[RoundTrip] = []
    for _ in range(queries):
        sent_ns = time.monotonic_ns()
        remote_ns = await read_clock()
        trips.append(RoundTrip(sent_ns, remote_ns, time.monotonic_ns()))
    return estimate(trips)


def _between(low_ns: int, high_ns: int) -> WorkerClock:
    """The middle, and half the width rounded up."""
    middle_ns = (low_ns + high_ns) // 2
    return WorkerClock(middle_ns, high_ns - middle_ns)
