"""A steady load: ramp, window and tail under one unchanged closed or open loop.

The load begins with sessions in progress (:mod:`bakeoff.harness.traffic.beginning`), so that it is in its long run at
once; the ramp only lets the engine's queue and batch settle. It ends at an instant that does not depend on which
requests have ended: a window that opens when the first requests have ended would open while no long one is under way.
The tail lasts until the last request of the window has ended. Each part has its own plan: the window's begins at the
start of the window, so that its sessions do not depend on the length of the ramp.
:class:`bakeoff.harness.client.fleet.fleet.Fleet` opens the window and ends the load.
"""

import asyncio
import itertools
import math
from collections.abc import Callable

from bakeoff.harness.client.wire.orders import Ramped, Reply, Steady, WindowAnswered, WindowClosed
from bakeoff.harness.client.worker.answer_times import AnswerTimes
from bakeoff.harness.client.worker.failing import REJECTED_S, RampFailures
from bakeoff.harness.client.worker.session_feed import SessionFeed
from bakeoff.harness.client.worker.sessions import RequestInFlight, SessionRunner
from bakeoff.harness.host.clock import Clock
from bakeoff.results.records import Pace
from bakeoff.results.units import NS_PER_S

RAMP_ANSWERS, RAMP_ANSWERS_QUEUED = 2.0, 10.0
"""The ramp lasts ``ramp_s``, in which the slots of a closed loop start, and at least this many mean answer times. In an
open loop whose requests queue they are more, since a queue takes longest to reach its long run, and without the waits,
which grow for ever on an overloaded engine."""
OVERDUE_ANSWERS = 3.0
"""A request is overdue after this many answer times: the mean of the ramp, or that of an answer of its length if it is
longer. Where one answer in ten is forty times as long as the others, most of those in flight are long ones, which a
mean would call overdue."""
CHECK_GROWTH = 1.25
"""The ramp's end is considered at times that grow by this factor."""
_FIRST_CHECK_NS = 100_000_000
"""Time of the first check if the ramp may be shorter."""


class SteadyLoad:
    """One worker's part of a steady load.

    Args:
        runner: sends and records.
        clock: time.
        share: this worker's part of the load.
        ramp: sessions to send until the window opens; endless.
        begun: sessions in progress at the start; in a closed loop, one for each slot.
        timeout_s: limit for one exchange; the ramp is given up after ``ramp_s`` and twice this time.
        report: takes :class:`Ramped`, :class:`WindowClosed` and :class:`WindowAnswered`, each once.
    """

    def __init__(
        self,
        runner: SessionRunner,
        clock: Clock,
        share: Steady,
        ramp: SessionFeed,
        begun: SessionFeed,
        *,
        timeout_s: float,
        report: Callable[[Reply], None],
    ) -> None:
        self._runner = runner
        self._clock = clock
        self._share = share
        self._ramp = ramp
        self._begun = begun
        self._window: SessionFeed | None = None
        self._tail: SessionFeed | None = None
        self._timeout_ns = round(timeout_s * NS_PER_S)
        self._report = report
        self._start_ns = 0
        self._opens_ns = self._closes_ns = math.inf
        self._is_ramped = False
        self._check_ns = 0
        self._answers = AnswerTimes()
        self._failures = RampFailures()
        self._answer_ns = math.inf
        self._pending: int | None = None
        self._armed_ns: int | None = None
        self._is_stopped = False
        self._finished: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        runner.on_end = self._request_ended
        runner.max_in_flight = share.max_in_flight

    async def run(self, start_ns: int) -> int:
        """Run the load until :meth:`finish` and all requests have ended; returns the time at which sending stopped."""
        self._start_ns = start_ns
        self._at(start_ns, self._begin)
        if self._share.concurrency is None:
            self._arm(start_ns)
        self._check_ns = max(_FIRST_CHECK_NS, round(self._share.ramp_s * NS_PER_S))
        self._at(start_ns + self._check_ns, self._check_ramp)
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
            self._runner.cancel()
        else:
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

    def _begin(self) -> None:
        """Start the sessions in progress whose next request is due, then set the alarm for the next one."""
        while (offset_ns := self._begun.peek_offset_ns()) is not None:
            due_ns = self._start_ns + offset_ns
            if due_ns > self._clock.now_ns():
                self._at(due_ns, self._begin)
                return
            session = self._begun.next()
            assert session is not None
            self._runner.start(session, due_ns, self._session_ended)
            self._begun.refill()

    def _next(self, free_ns: int) -> None:
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
            self._runner.start(session, int(due_ns), self._session_ended)
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

    # Ends of requests and sessions.

    def _request_ended(self, request: RequestInFlight) -> None:
        if self._is_ramped:
            self._answers.add(request)
        else:
            self._count(request)
        if self._pending is not None and self._opens_ns <= request.planned_ns < self._closes_ns:
            self._pending -= 1
            self._check_answered()

    def _count(self, request: RequestInFlight) -> None:
        """Count a request of the ramp, and end the ramp if the server rejects every one."""
        self._answers.add(request, 0 if self._share.concurrency is None else request.pause_ns)
        self._failures.add(request)
        if self._failures.failed == 1 and request.has_failed:
            self._at(request.ended_ns + round(REJECTED_S * NS_PER_S), self._check_rejections)
        self._check_rejections()

    def _session_ended(self, ended_ns: int, pause_ns: int) -> None:
        if self._share.concurrency is None:
            return
        if pause_ns:
            free_ns = ended_ns + pause_ns
            self._at(free_ns, lambda: self._next(free_ns))
        else:
            self._next(ended_ns)

    # Ramp and window.

    def _check_ramp(self) -> None:
        """End the ramp if the load has settled, fails altogether, or has had its time; else check again later."""
        if self._is_ramped:
            return
        now_ns = self._clock.now_ns()
        since_ramp_ns = now_ns - self._start_ns - round(self._share.ramp_s * NS_PER_S)
        answer_ns = self._answers.mean_ns(self._runner.in_flight(), now_ns)
        requests = self._share.ramp_requests
        is_known = self._answers.ended >= min(requests, self._share.concurrency or requests)
        needed_ns = math.inf if answer_ns is None else RAMP_ANSWERS * answer_ns
        if answer_ns is not None and self._share.concurrency is None and self._answers.are_queued:
            needed_ns = RAMP_ANSWERS_QUEUED * self._answers.service_ns(self._runner.in_flight(), now_ns)
        is_settled = is_known and since_ramp_ns >= needed_ns
        is_silent = self._failures.are_unanswered and not any(each.read_ns for each in self._runner.in_flight())
        is_failing = since_ramp_ns >= 0 and (self._failures.are_cohort or is_silent)
        if is_settled or is_failing or since_ramp_ns >= 2 * self._timeout_ns:
            self._end_ramp(is_settled, answer_ns)
            return
        self._check_ns = round(CHECK_GROWTH * self._check_ns)
        self._at(self._start_ns + self._check_ns, self._check_ramp)

    def _check_rejections(self) -> None:
        if not self._is_ramped and self._failures.are_rejections(self._clock.now_ns()):
            self._end_ramp(is_settled=False, answer_ns=None)

    def _end_ramp(self, is_settled: bool, answer_ns: float | None) -> None:
        self._is_ramped = True
        self._answer_ns = math.inf if answer_ns is None else answer_ns
        request_s = None if answer_ns is None else answer_ns / NS_PER_S
        ended, failed = self._failures.ended, self._failures.failed
        pace, error = self._answers.pace, self._answers.pace_error
        elapsed_s = (self._clock.now_ns() - self._start_ns) / NS_PER_S
        self._report(Ramped(is_settled, ended, request_s, pace, error, failed, elapsed_s))

    def _close(self) -> None:
        if self._pending is not None:
            return
        sent = itertools.chain(self._runner.in_flight(), self._runner.held())
        planned = [(request.planned_ns, request.requested_output_tokens) for request in sent]
        self._pending = sum(self._opens_ns <= planned_ns < self._closes_ns for planned_ns, _ in planned)
        pace = self._answers.pace or Pace(0.0, 0.0)  # of the window, too: in a short ramp no long answer ends
        expected_ns = [max(self._answer_ns, (pace.ttft_s + pace.token_s * tokens) * NS_PER_S) for _, tokens in planned]
        overdue = sum(
            self._closes_ns - planned_ns > OVERDUE_ANSWERS * answer_ns
            for (planned_ns, _), answer_ns in zip(planned, expected_ns, strict=True)
        )
        self._report(WindowClosed(int(self._closes_ns), len(planned), overdue))
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
