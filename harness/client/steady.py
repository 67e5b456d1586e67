"""A steady load: ramp, window and tail under one unchanged closed or open loop.

The ramp lasts until what was sent first has ended, the tail until the last request of the window has. Each part has a
plan of its own: the window's begins at the window's start, so that its sessions do not depend on the length of the
ramp. The conductor (:class:`harness.client.fleet.Fleet`) opens the window and ends the load.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable

from harness.client.flights import Feed, Flight, Flights, Prepared
from harness.client.orders import Answer, Answered, Ramped, Steady, WindowClosed
from harness.host.clock import Clock
from results.units import NS_PER_S

COHORT_SHARE = 0.95
"""Of the requests sent first, so many must have ended before the window may open."""
COHORT_REQUESTS = 20
"""Open loop: the requests of the first ``ramp_s``, but at least so many, are those sent first."""
SAMPLES = 21
"""Readings of the requests in flight over the window."""
REFUSED_PAUSE_NS = 100_000_000
"""How long a slot of a closed loop rests after it was turned away: else it would spend the plan in milliseconds."""


class SteadyLoad:
    """One worker's part of a steady load.

    Args:
        flights: sends and records.
        clock: time.
        share: what is kept up.
        ramp: sessions to send until the window opens; they do not end.
        timeout_s: how long the ramp may take after its first requests have been sent.
        report: told of :class:`Ramped`, :class:`WindowClosed` and :class:`Answered`, each once.
    """

    def __init__(
        self,
        flights: Flights,
        clock: Clock,
        share: Steady,
        ramp: Feed,
        *,
        timeout_s: float,
        report: Callable[[Answer], None],
    ) -> None:
        self._flights = flights
        self._clock = clock
        self._share = share
        self._ramp = ramp
        self._window: Feed | None = None
        self._tail: Feed | None = None
        self._timeout_ns = round(timeout_s * NS_PER_S)
        self._report = report
        self._start_ns = 0
        self._opens_ns = self._closes_ns = math.inf
        self._cohort: set[Prepared] = set()
        self._cohort_size = 0
        self._cohort_ended = 0
        self._is_cohort_whole = False
        self._is_ramped = False
        self._lasted_ns: deque[int] = deque(maxlen=4 * (share.concurrency or 1))
        self._ended = 0
        self._in_flight: list[int] = []
        self._pending: int | None = None
        self._waiting: deque[tuple[Prepared, int]] = deque()
        self._armed_ns: int | None = None
        self._is_stopped = False
        self._finished: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        flights.on_end = self._request_ended

    async def run(self, start_ns: int) -> int:
        """Put the load on until :meth:`finish`; returns when sending stopped, after all that was sent has ended."""
        self._start_ns = start_ns
        if self._share.concurrency is not None:
            self._at(start_ns, self._start_closed)
        else:
            self._arm(start_ns)
        self._at(start_ns + round(self._share.ramp_s * NS_PER_S), self._check_ramp)
        try:
            return await self._end(abort=await self._finished)
        except asyncio.CancelledError:
            self._is_stopped = True
            self._flights.cancel()
            raise

    def measure(self, start_ns: int, end_ns: int, sessions: Feed, tail: Feed) -> None:
        """Open the window: sessions started in it come from ``sessions``, and afterwards from ``tail``."""
        self._window, self._tail = sessions, tail
        self._opens_ns, self._closes_ns = start_ns, end_ns
        for number in range(SAMPLES - 1):
            self._at(start_ns + (end_ns - start_ns) * number // (SAMPLES - 1), self._sample)
        self._at(end_ns, self._close)
        if self._share.concurrency is None:
            self._arrive()

    def finish(self, *, abort: bool) -> None:
        """Send nothing more, and wait for what is in flight, or give it up."""
        if not self._finished.done():
            self._finished.set_result(abort)

    async def _end(self, *, abort: bool) -> int:
        """Send nothing more; returns since when, after all that was sent has ended or was given up."""
        stopped_ns = self._clock.now_ns()
        self._is_stopped = True
        if abort:
            self._give_up_waiting(stopped_ns)
            self._flights.cancel()
        else:
            self._waiting.clear()  # planned after the window
            self._flights.stop()
            await self._flights.landing()
            self._flights.flush()
        return stopped_ns

    # What is sent next

    def _feed_at(self, t_ns: int) -> Feed:
        """The plan of the part to which an instant belongs."""
        if self._window is None or self._tail is None or t_ns < self._opens_ns:
            return self._ramp
        return self._window if t_ns < self._closes_ns else self._tail

    def _start_closed(self) -> None:
        """One slot alone; its first request's time is that over which the others start."""
        assert self._share.concurrency is not None
        self._cohort_size = self._share.concurrency
        self._is_cohort_whole = True
        self._next(self._start_ns, is_first=True)

    def _start_others(self, first_ns: int) -> None:
        slots = (self._share.concurrency or 1) - 1
        now_ns = self._clock.now_ns()
        for number in range(1, slots + 1):
            start_ns = now_ns + first_ns * number // slots
            self._at(start_ns, lambda start_ns=start_ns: self._next(start_ns, is_first=True))
        self._at(now_ns + first_ns + self._timeout_ns, self._give_up_ramp)

    def _next(self, free_ns: int, *, is_first: bool = False) -> None:
        """A slot of the closed loop is free."""
        if self._is_stopped:
            return
        feed = self._feed_at(free_ns)
        session = feed.next()
        if session is None and feed is self._window and self._tail is not None:  # the plan ended before the window
            self._closes_ns = free_ns
            self._close()
            feed = self._tail
            session = feed.next()
        if session is None:
            return
        if is_first:
            self._cohort.add(session)
        self._flights.start(session, free_ns, self._session_ended)
        feed.refill()

    def _arrive(self) -> None:
        """Open loop: start what is due, then set the alarm for the next."""
        while not self._is_stopped:
            now_ns = self._clock.now_ns()
            feed, base_ns, until_ns = self._part_at(now_ns)
            offset_ns = feed.peek_offset_ns()
            due_ns = math.inf if offset_ns is None else base_ns + offset_ns
            next_ns = min(due_ns, until_ns)
            if next_ns > now_ns:
                if next_ns < math.inf:
                    self._arm(int(next_ns))
                return
            session = feed.next()
            assert session is not None
            self._start_arrived(session, int(due_ns))
            feed.refill()

    def _arm(self, t_ns: int) -> None:
        """Look for arrivals at an instant, in place of the one that was set before."""
        self._armed_ns = t_ns

        def ring() -> None:
            if self._armed_ns == t_ns:
                self._armed_ns = None
                self._arrive()

        self._at(t_ns, ring)

    def _part_at(self, now_ns: int) -> tuple[Feed, int, float]:
        """Plan, start and end of the part whose arrivals are next: one that ended may have some that are still due."""
        if self._window is None or self._tail is None:
            return self._ramp, self._start_ns, math.inf
        if self._is_due(self._ramp, self._start_ns, self._opens_ns) or now_ns < self._opens_ns:
            return self._ramp, self._start_ns, self._opens_ns
        opens_ns, closes_ns = int(self._opens_ns), int(self._closes_ns)
        if self._is_due(self._window, opens_ns, closes_ns) or now_ns < closes_ns:
            return self._window, opens_ns, closes_ns
        return self._tail, closes_ns, math.inf

    def _is_due(self, feed: Feed, base_ns: int, until_ns: float) -> bool:
        offset_ns = feed.peek_offset_ns()
        return offset_ns is not None and base_ns + offset_ns < min(until_ns, self._clock.now_ns())

    def _start_arrived(self, session: Prepared, planned_ns: int) -> None:
        if not self._is_cohort_whole:
            self._join_cohort(session, planned_ns)
        cap = self._share.max_in_flight
        if cap is not None and self._flights.live >= cap:
            self._waiting.append((session, planned_ns))
        else:
            self._flights.start(session, planned_ns, self._session_ended)

    def _join_cohort(self, session: Prepared, planned_ns: int) -> None:
        ramp_ns = round(self._share.ramp_s * NS_PER_S)
        if planned_ns - self._start_ns >= ramp_ns and self._cohort_size >= COHORT_REQUESTS:
            self._is_cohort_whole = True
            self._at(self._clock.now_ns() + self._timeout_ns, self._give_up_ramp)
            self._check_ramp()
            return
        self._cohort.add(session)
        self._cohort_size += 1

    # What has ended

    def _request_ended(self, flight: Flight) -> None:
        self._ended += 1
        self._lasted_ns.append(flight.ended_ns - flight.planned_ns)
        if flight.number == 0 and flight.session in self._cohort:
            self._cohort.remove(flight.session)
            self._cohort_ended += 1
            if self._share.concurrency is not None and self._cohort_ended == 1:
                self._start_others(flight.ended_ns - flight.planned_ns)
            self._check_ramp()
        if self._pending is not None and self._opens_ns <= flight.planned_ns < self._closes_ns:
            self._pending -= 1
            self._check_answered()

    def _session_ended(self, ended_ns: int, is_turned_away: bool) -> None:
        if self._share.concurrency is None:
            self._start_waiting(ended_ns)
        elif is_turned_away:
            free_ns = ended_ns + REFUSED_PAUSE_NS
            self._at(free_ns, lambda: self._next(free_ns))
        else:
            self._next(ended_ns)

    def _start_waiting(self, free_ns: int) -> None:
        """Open loop under a cap: the session that waited longest may start."""
        if self._waiting and not self._is_stopped:
            session, planned_ns = self._waiting.popleft()
            self._flights.start(session, planned_ns, self._session_ended, due_ns=free_ns)

    def _give_up_waiting(self, now_ns: int) -> None:
        for session, planned_ns in self._waiting:
            self._flights.give_up(session, planned_ns, now_ns)
        self._waiting.clear()

    # Ramp and window

    def _check_ramp(self) -> None:
        long_enough = self._clock.now_ns() >= self._start_ns + round(self._share.ramp_s * NS_PER_S)
        enough = self._cohort_ended >= math.ceil(COHORT_SHARE * self._cohort_size)
        if self._is_cohort_whole and long_enough and enough:
            self._end_ramp(complete=True)

    def _give_up_ramp(self) -> None:
        self._end_ramp(complete=False)

    def _end_ramp(self, *, complete: bool) -> None:
        if self._is_ramped:
            return
        self._is_ramped = True
        lasted_ns = self._lasted_ns if self._share.concurrency is not None else ()
        request_s = sum(lasted_ns) / len(lasted_ns) / NS_PER_S if lasted_ns else None
        self._report(Ramped(complete, self._ended, request_s))

    def _sample(self) -> None:
        if self._pending is None:
            self._in_flight.append(self._flights.in_flight + len(self._waiting))

    def _close(self) -> None:
        if self._pending is not None:
            return
        self._in_flight.append(self._flights.in_flight + len(self._waiting))
        planned_ns = [*self._flights.planned_in_flight_ns(), *(planned for _, planned in self._waiting)]
        self._pending = sum(self._opens_ns <= planned < self._closes_ns for planned in planned_ns)
        self._report(WindowClosed(int(self._closes_ns), self._in_flight))
        self._check_answered()
        if self._share.concurrency is None:
            self._arrive()

    def _check_answered(self) -> None:
        if self._pending == 0:
            self._pending = -1
            self._report(Answered())

    def _at(self, t_ns: int, callback: Callable[[], None]) -> None:
        def ring() -> None:
            if not self._is_stopped:  # what is reported now would be taken for the next load's
                callback()

        self._clock.call_at_ns(t_ns, ring)
