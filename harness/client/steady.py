"""A steady load: ramp, window and tail under one unchanged closed or open loop.

The ramp lasts until the first requests have ended, the tail until the last request of the window has. Each part has its
own plan: the window's begins at the start of the window, so that its sessions do not depend on the length of the ramp.
:class:`harness.client.fleet.Fleet` opens the window and ends the load.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable

from harness.client.orders import Ramped, Reply, Steady, WindowAnswered, WindowClosed
from harness.client.sessions import PreparedSession, RequestInFlight, SessionFeed, SessionRunner
from harness.host.clock import Clock
from results.units import NS_PER_S

COHORT_SHARE = 0.95
"""Fraction of the first requests (the cohort) that must have ended before the window may open."""
COHORT_REQUESTS = 20
"""Open loop: the cohort is the requests of the first ``ramp_s``, but at least this many."""
SAMPLES = 21
"""Samples of the number of requests in flight over the window."""
REFUSED_PAUSE_NS = 100_000_000
"""Pause of a closed-loop slot whose request was turned away: without it, the plan would be used up in milliseconds."""


class SteadyLoad:
    """One worker's part of a steady load.

    Args:
        runner: sends and records.
        clock: time.
        share: this worker's part of the load.
        ramp: sessions to send until the window opens; endless.
        timeout_s: limit for the ramp after its cohort has been sent.
        report: takes :class:`Ramped`, :class:`WindowClosed` and :class:`WindowAnswered`, each once.
    """

    def __init__(
        self,
        runner: SessionRunner,
        clock: Clock,
        share: Steady,
        ramp: SessionFeed,
        *,
        timeout_s: float,
        report: Callable[[Reply], None],
    ) -> None:
        self._runner = runner
        self._clock = clock
        self._share = share
        self._ramp = ramp
        self._window: SessionFeed | None = None
        self._tail: SessionFeed | None = None
        self._timeout_ns = round(timeout_s * NS_PER_S)
        self._report = report
        self._start_ns = 0
        self._opens_ns = self._closes_ns = math.inf
        self._cohort: set[PreparedSession] = set()
        self._cohort_size = 0
        self._cohort_ended = 0
        self._is_cohort_whole = False
        self._is_ramped = False
        self._durations_ns: deque[int] = deque(maxlen=4 * (share.concurrency or 1))
        self._ended = 0
        self._in_flight: list[int] = []
        self._pending: int | None = None
        self._waiting: deque[tuple[PreparedSession, int]] = deque()
        self._armed_ns: int | None = None
        self._is_stopped = False
        self._finished: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        runner.on_end = self._request_ended

    async def run(self, start_ns: int) -> int:
        """Run the load until :meth:`finish` and all requests have ended; returns the time at which sending stopped."""
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
            self._runner.cancel()
            raise

    def measure(self, start_ns: int, end_ns: int, sessions: SessionFeed, tail: SessionFeed) -> None:
        """Open the window: sessions that start in it come from ``sessions``, later ones from ``tail``."""
        self._window, self._tail = sessions, tail
        self._opens_ns, self._closes_ns = start_ns, end_ns
        for number in range(SAMPLES - 1):
            self._at(start_ns + (end_ns - start_ns) * number // (SAMPLES - 1), self._sample)
        self._at(end_ns, self._close)
        if self._share.concurrency is None:
            self._arrive()

    def finish(self, *, abort: bool) -> None:
        """Send nothing more, then wait for the requests in flight, or abort them."""
        if not self._finished.done():
            self._finished.set_result(abort)

    async def _end(self, *, abort: bool) -> int:
        """Stop sending and wait until all requests have ended or are aborted; returns the time of the stop."""
        stopped_ns = self._clock.now_ns()
        self._is_stopped = True
        if abort:
            self._record_waiting(stopped_ns)
            self._runner.cancel()
        else:
            self._waiting.clear()  # these were planned after the window
            self._runner.stop()
            await self._runner.wait_idle()
            self._runner.flush()
        return stopped_ns

    # Starting sessions.

    def _feed_at(self, t_ns: int) -> SessionFeed:
        """The plan of the part that contains ``t_ns``."""
        if self._window is None or self._tail is None or t_ns < self._opens_ns:
            return self._ramp
        return self._window if t_ns < self._closes_ns else self._tail

    def _start_closed(self) -> None:
        """Start one slot; the others start over a period as long as its first request takes."""
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
        """Start the next session on a free slot of the closed loop."""
        if self._is_stopped:
            return
        feed = self._feed_at(free_ns)
        session = feed.next()
        if (
            session is None and feed is self._window and self._tail is not None
        ):  # the plan ran out before the window ended
            self._closes_ns = free_ns
            self._close()
            feed = self._tail
            session = feed.next()
        if session is None:
            return
        if is_first:
            self._cohort.add(session)
        self._runner.start(session, free_ns, self._session_ended)
        feed.refill()

    def _arrive(self) -> None:
        """Open loop: start the sessions that are due, then set the alarm for the next one."""
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
        """Set the alarm for the next arrival, in place of the previous one."""
        self._armed_ns = t_ns

        def ring() -> None:
            if self._armed_ns == t_ns:
                self._armed_ns = None
                self._arrive()

        self._at(t_ns, ring)

    def _part_at(self, now_ns: int) -> tuple[SessionFeed, int, float]:
        """Plan, start and end of the part with the next arrivals; a part that is over may still have some due."""
        if self._window is None or self._tail is None:
            return self._ramp, self._start_ns, math.inf
        if self._is_due(self._ramp, self._start_ns, self._opens_ns) or now_ns < self._opens_ns:
            return self._ramp, self._start_ns, self._opens_ns
        opens_ns, closes_ns = int(self._opens_ns), int(self._closes_ns)
        if self._is_due(self._window, opens_ns, closes_ns) or now_ns < closes_ns:
            return self._window, opens_ns, closes_ns
        return self._tail, closes_ns, math.inf

    def _is_due(self, feed: SessionFeed, base_ns: int, until_ns: float) -> bool:
        offset_ns = feed.peek_offset_ns()
        return offset_ns is not None and base_ns + offset_ns < min(until_ns, self._clock.now_ns())

    def _start_arrived(self, session: PreparedSession, planned_ns: int) -> None:
        if not self._is_cohort_whole:
            self._join_cohort(session, planned_ns)
        cap = self._share.max_in_flight
        if cap is not None and self._runner.live >= cap:
            self._waiting.append((session, planned_ns))
        else:
            self._runner.start(session, planned_ns, self._session_ended)

    def _join_cohort(self, session: PreparedSession, planned_ns: int) -> None:
        ramp_ns = round(self._share.ramp_s * NS_PER_S)
        if planned_ns - self._start_ns >= ramp_ns and self._cohort_size >= COHORT_REQUESTS:
            self._is_cohort_whole = True
            self._at(self._clock.now_ns() + self._timeout_ns, self._give_up_ramp)
            self._check_ramp()
            return
        self._cohort.add(session)
        self._cohort_size += 1

    # Ends of requests and sessions.

    def _request_ended(self, request: RequestInFlight) -> None:
        self._ended += 1
        self._durations_ns.append(request.ended_ns - request.planned_ns)
        if request.number == 0 and request.session in self._cohort:
            self._cohort.remove(request.session)
            self._cohort_ended += 1
            if self._share.concurrency is not None and self._cohort_ended == 1:
                self._start_others(request.ended_ns - request.planned_ns)
            self._check_ramp()
        if self._pending is not None and self._opens_ns <= request.planned_ns < self._closes_ns:
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
        """Open loop with a cap: start the session that has waited longest."""
        if self._waiting and not self._is_stopped:
            session, planned_ns = self._waiting.popleft()
            self._runner.start(session, planned_ns, self._session_ended, due_ns=free_ns)

    def _record_waiting(self, now_ns: int) -> None:
        for session, planned_ns in self._waiting:
            self._runner.record_unsent(session, planned_ns, now_ns)
        self._waiting.clear()

    # Ramp and window.

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
        durations_ns = self._durations_ns if self._share.concurrency is not None else ()
        request_s = sum(durations_ns) / len(durations_ns) / NS_PER_S if durations_ns else None
        self._report(Ramped(complete, self._ended, request_s))

    def _sample(self) -> None:
        if self._pending is None:
            self._in_flight.append(self._runner.in_flight + len(self._waiting))

    def _close(self) -> None:
        if self._pending is not None:
            return
        self._in_flight.append(self._runner.in_flight + len(self._waiting))
        planned_ns = [*self._runner.planned_times_ns(), *(planned for _, planned in self._waiting)]
        self._pending = sum(self._opens_ns <= planned < self._closes_ns for planned in planned_ns)
        self._report(WindowClosed(int(self._closes_ns), self._in_flight))
        self._check_answered()
        if self._share.concurrency is None:
            self._arrive()

    def _check_answered(self) -> None:
        if self._pending == 0:
            self._pending = -1
            self._report(WindowAnswered())

    def _at(self, t_ns: int, callback: Callable[[], None]) -> None:
        def ring() -> None:
            if not self._is_stopped:  # else the report would be taken for the next load's
                callback()

        self._clock.call_at_ns(t_ns, ring)
