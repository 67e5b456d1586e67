"""How far another machine's monotonic clock is from ours, and how sure that is.

A question leaves at ``sent`` and its answer is back at ``received`` of our clock; the other clock was read in between,
at some instant that nobody knows. Whatever the way there and back took, ``remote - received <= offset <= remote -
sent``: the middle is off by at most half the round trip (Cristian [1]). Of many questions the one with the shortest
round trip says most (the clock filter of NTP [2]).

Both clocks drift. While a load is on nothing is asked, so the offset is bounded from a measurement before it and one
after it (:func:`spanning`). One offset is taken out of all times of a load, not one that follows the drift: what lies
between two stamps of one worker stays exactly as its own clock counted it.

1. F. Cristian: *Probabilistic clock synchronization*. Distributed Computing 3 (1989), 146-158.
2. D. Mills et al.: *RFC 5905, Network Time Protocol Version 4*, section 10.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from harness.client.worker_host import WorkerClock

QUESTIONS = 32
"""Round trips of one measurement: about 30 ms for each worker."""


class RoundTrip(NamedTuple):
    """One question and its answer, in nanoseconds.

    Attributes:
        sent: our clock when the question left.
        remote: the other clock, read at some instant between the other two.
        received: our clock when the answer was back.
    """

    sent: int
    remote: int
    received: int


def estimate(trips: Sequence[RoundTrip]) -> WorkerClock:
    """The offset from the shortest round trip, known to within half of it."""
    best = min(trips, key=lambda trip: trip.received - trip.sent)
    return _between(best.remote - best.received, best.remote - best.sent)


def spanning(before: WorkerClock, after: WorkerClock) -> WorkerClock:
    """A clock that held from one measurement to another, if its rate was steady: it lies in one of the two or between.

    Clocks that NTP disciplines differ by about a microsecond each second, so a load of a minute adds 0.03 ms to the
    uncertainty; free quartz at 50 µs each second adds 1.5 ms, and shows.
    """
    return _between(
        min(before.offset_ns - before.uncertainty_ns, after.offset_ns - after.uncertainty_ns),
        max(before.offset_ns + before.uncertainty_ns, after.offset_ns + after.uncertainty_ns),
    )


async def measured(ask: Callable[[], Awaitable[int]], questions: int = QUESTIONS) -> WorkerClock:
    """Ask a clock ``questions`` times.

    Args:
        ask: reads the other clock, in nanoseconds.
        questions: round trips, one after the other.
    """
    trips: list[RoundTrip] = []
    for _ in range(questions):
        sent_ns = time.monotonic_ns()
        remote_ns = await ask()
        trips.append(RoundTrip(sent_ns, remote_ns, time.monotonic_ns()))
    return estimate(trips)


def _between(low_ns: int, high_ns: int) -> WorkerClock:
    """The middle, and half the width rounded up."""
    middle_ns = (low_ns + high_ns) // 2
    return WorkerClock(middle_ns, high_ns - middle_ns)
