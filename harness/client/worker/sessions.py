"""Runs sessions: sends their turns, waits think times, ends exchanges at their timeout, and records them."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from bakeoff.harness.client.wire.orders import Silence
from bakeoff.harness.client.wire.transport import StreamLog, Transport, limit_bytes
from bakeoff.harness.client.worker.idle_caps import IdleCaps, excess_ns
from bakeoff.harness.client.worker.session_feed import PreparedSession, SessionFinished
from bakeoff.harness.host.clock import Clock
from bakeoff.results.errors import NotWritable
from bakeoff.results.records import FAILURE_PAUSE_NS, NOT_FOUND, Phase, StreamEnd, StreamRecord
from bakeoff.results.units import NS_PER_S


class RequestInFlight(StreamLog):
    """One turn of a session: a request that is in flight, about to be sent, or finished."""

    __slots__ = ("due_ns", "has_failed", "number", "planned_ns", "session", "started_ns")

    def __init__(self, session: PreparedSession, number: int, planned_ns: int) -> None:
        turn = session.wire.turns[number]
        super().__init__(limit_bytes(turn.requested_output_tokens, turn.passages))
        self.session: PreparedSession = session
        self.number: int = number
        self.planned_ns: int = planned_ns
        self.due_ns: int | None = None
        self.started_ns: int = 0
        self.has_failed: bool = False
        """Whether it has ended with a failure, as far as the client knows while the load runs."""

    @property
    def pause_ns(self) -> int:
        """Pause that follows it; 0 unless it failed. A timeout has paused the slot for long enough."""
        return FAILURE_PAUSE_NS if self.has_failed and self.end is not StreamEnd.TIMEOUT else 0

    @property
    def requested_output_tokens(self) -> int:
        """Tokens that its answer should have."""
        return self.session.wire.turns[self.number].requested_output_tokens

    @property
    def is_streamed(self) -> bool:
        """Whether its answer is a stream of events."""
        return self.session.wire.turns[self.number].request.is_streamed

    @property
    def passages(self) -> int | None:
        """Texts that it embeds or ranks."""
        return self.session.wire.turns[self.number].passages

    def record(self, phase: Phase) -> StreamRecord:
        """The record to store."""
        plan = self.session.wire
        turn = plan.turns[self.number]
        return StreamRecord(
            index=plan.index + self.number,
            phase=self.session.phase or phase,
            session=plan.id,
            turn=turn.number,
            agent=turn.agent,
            parents=None if self.session.is_chain else tuple(plan.turns[parent].number for parent in turn.parents),
            planned_ns=self.planned_ns,
            due_ns=self.due_ns,
            ended_ns=self.ended_ns,
            end=self.end,
            requested_input_tokens=turn.requested_input_tokens,
            requested_output_tokens=turn.requested_output_tokens,
            cycle=plan.cycle,
            part=turn.part,
            dial_start_ns=self.dial_start_ns,
            dial_end_ns=self.dial_end_ns,
            sent_ns=self.sent_ns,
            sent_bytes=turn.body.size,
            address=self.address,
            is_resent=self.is_resent,
            status=self.status,
            is_streamed=self.is_streamed,
            model=plan.model,
            traffic_class=plan.traffic_class,
            passages=self.passages,
            check=turn.check,
            expected=turn.expected,
            block=turn.place.block if turn.place else None,
            shared_tokens=turn.place.shared_tokens if turn.place else 0,
            goes_on=turn.place is not None and turn.place.goes_on,
            read_ns=self.read_ns,
            reads=self.reads,
            detail=turn.request.path if self.status in NOT_FOUND else self.detail,
        )


class Recorder(Protocol):
    """Takes records; :class:`bakeoff.results.files.frames.FrameAppender` is one."""

    def append(self, record: StreamRecord) -> None:
        """Take one record."""
        ...

    def flush(self) -> None:
        """Make all records so far safe from a crash of this process.

        Raises:
            NotWritable: they cannot be stored.
        """
        ...


class SessionRunner:
    """Runs the sessions of one driver.

    Args:
        transport: sends requests.
        clock: time.
        recorder: takes finished exchanges, a few per iteration of the event loop: encoding a long answer takes longer
            than stamping a read.
        timeout_s: limit for one exchange, from its start.
        phase: recorded with the requests.
        has_failed: whether a request that has ended failed.
    """

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        recorder: Recorder,
        timeout_s: float,
        phase: Phase,
        *,
        has_failed: Callable[[RequestInFlight], bool],
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._recorder = recorder
        self._phase = phase
        self._has_failed = has_failed
        self._timeout_ns = round(timeout_s * NS_PER_S)
        self._by_age: dict[RequestInFlight, None] = {}
        self._watching = False
        self._finished: deque[RequestInFlight] = deque()
        self._thinking: set[RequestInFlight] = set()
        self._recording = False
        self._idle: asyncio.Future[None] | None = None
        self._failure: NotWritable | None = None
        self._last_end_ns = 0
        self.load: asyncio.Task[Any] | None = None
        """Task to cancel when records cannot be stored: a load without records is useless."""
        self.live: int = 0
        """Sessions in progress."""
        self.planned: int = 0
        """Requests planned so far; each is recorded exactly once, however it ends."""
        self.until_ns: int | None = None
        """Plan no request at this time or later; sessions with further turns are cut short."""
        self.minimum: int = 0
        """Plan at least this many requests in spite of ``until_ns``."""
        self.caps: IdleCaps | None = None
        """Caps on idle time."""
        self.max_in_flight: int | None = None
        """Requests above this number wait until others have ended, in the order in which they were due."""
        self._held: deque[RequestInFlight] = deque()
        self.on_end: Callable[[RequestInFlight], None] | None = None
        """Called with each request that has ended, before the next one is started."""

    def start(self, session: PreparedSession, planned_ns: int, finished: SessionFinished, *, delay_ns: int = 0) -> None:
        """Send the turns that wait for no answer, each after its pause; a conversation's first turn has none.

        Args:
            session: what to send.
            planned_ns: start of its latency.
            finished: called at its end.
            delay_ns: rest of the pause of a session that was in one when the load began.
        """
        self.live += 1
        session.finished = finished
        for number in session.roots():
            think_ns = session.wire.turns[number].think_ns + delay_ns
            self._plan(RequestInFlight(session, number, planned_ns + think_ns), think_ns)
        self._cap_idle(session, planned_ns)

    def in_flight(self) -> Iterator[RequestInFlight]:
        """The requests that were started and have not ended."""
        return iter(self._by_age)

    def silence(self, least_s: float) -> Silence | None:
        """How long the server has sent nothing, if for ``least_s`` at least while requests are in flight."""
        now_ns = self._clock.now_ns()
        since_ns = max(self._last_end_ns, next((request.started_ns for request in self._by_age), now_ns))
        for request in self._by_age:
            if now_ns - since_ns < least_s * NS_PER_S:
                return None
            since_ns = max(since_ns, request.read_ns[-1] if request.read_ns else 0)
        silent_s = (now_ns - since_ns) / NS_PER_S
        return Silence(len(self._by_age), silent_s, self._timeout_ns / NS_PER_S) if silent_s >= least_s else None

    def held(self) -> Iterator[RequestInFlight]:
        """The requests that are due, and wait for others to end."""
        return iter(self._held)

    def stop(self) -> None:
        """Plan nothing more: sessions that think or are held end now, all others after their turns in flight."""
        self.until_ns, self.minimum = self._clock.now_ns(), 0
        for request in (*self._thinking, *self._held):
            request.session.outstanding -= 1
            self.live -= not request.session.outstanding
        self._thinking.clear()
        self._held.clear()

    def cut_pauses(self) -> None:
        """End the pauses that are left without their calls, since the load is over."""
        waiting, self._thinking = self._thinking, set()
        for request in waiting:
            request.session.is_cut = True
            request.session.outstanding -= 1
            if not request.session.outstanding:
                self._end_session(request)

    def may_plan(self, planned_ns: int) -> bool:
        """Whether to plan a request at this time."""
        return self.until_ns is None or planned_ns < self.until_ns or self.planned < self.minimum

    async def wait_idle(self) -> None:
        """Return when no session is in progress."""
        while self.live:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def cancel(self) -> None:
        """Cancel every exchange, start nothing in its place, and record everything.

        Raises:
            NotWritable: the load was cancelled because records cannot be stored.
        """
        now_ns = self._clock.now_ns()
        for request in self._by_age:
            self._transport.drop(request)
        for request in (*self._by_age, *self._held):
            request.ended_ns = now_ns
            self._finished.append(request)
        self._by_age.clear()
        self.planned += len(self._held)
        self._held.clear()
        self._thinking.clear()
        self.live = 0
        self.flush()
        if self._failure:
            raise self._failure

    def flush(self) -> None:
        """Record all finished exchanges."""
        while self._finished:
            self._recorder.append(self._finished.popleft().record(self._phase))
        self._recorder.flush()

    def _send(self, request: RequestInFlight) -> None:
        """Send a request, or hold it while as many are in flight as may be."""
        if self.max_in_flight is not None and (self._held or len(self._by_age) >= self.max_in_flight):
            self._held.append(request)
        else:
            self._send_now(request)

    def _send_held(self, free_ns: int) -> None:
        while self._held and len(self._by_age) < (self.max_in_flight or 0):
            request = self._held.popleft()
            request.due_ns = max(request.planned_ns, free_ns)
            self._send_now(request)

    def _send_now(self, request: RequestInFlight) -> None:
        self.planned += 1
        self._by_age[request] = None
        request.session.in_flight += 1
        request.started_ns = self._clock.now_ns()
        self._transport.start(request.session.take(request.number), request, self._ended)
        if request.session.has_large_bodies:
            asyncio.get_running_loop().call_soon(request.session.prepare_after, request.number)
        if not self._watching:
            self._drop_timed_out()

    def _ended(self, request: RequestInFlight) -> None:
        del self._by_age[request]
        request.session.in_flight -= 1
        if request.end is not StreamEnd.TIMEOUT:
            self._last_end_ns = request.ended_ns
        self._finished.append(request)
        if not self._recording:
            self._recording = True
            asyncio.get_running_loop().call_soon(self._record_some)
        request.has_failed = self._has_failed(request)
        if self.on_end is not None:
            self.on_end(request)
        session = request.session
        if session.is_live and not request.has_failed:
            session.keep(request.number, request)
        for number, ready_ns in session.released(request.number, request.ended_ns):
            planned_ns = max(ready_ns + session.wire.turns[number].think_ns, request.ended_ns + request.pause_ns)
            self._plan(RequestInFlight(session, number, planned_ns), planned_ns - request.ended_ns)
        self._send_held(request.ended_ns)
        session.outstanding -= 1
        if not session.outstanding:
            self._end_session(request)
        self._cap_idle(session, request.ended_ns)

    def _end_session(self, last: RequestInFlight) -> None:
        """End a session with its last request; its successor may then start, or when a turn that was cut was due."""
        self.live -= 1
        free_ns = max(last.ended_ns, self.until_ns or 0) if last.session.is_cut else last.ended_ns
        last.session.finished(free_ns, last.pause_ns)
        if not self.live and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _plan(self, request: RequestInFlight, think_ns: int) -> None:
        """Send a request now if there is no pause before it, or at the end of its pause if the load lasts that long."""
        session = request.session
        is_root = not session.wire.turns[request.number].parents
        # A cap may move the call forward, so that the end of the load decides.
        if self.caps is None and not (is_root and not think_ns) and not self.may_plan(request.planned_ns):
            session.is_cut = True
            return
        session.outstanding += 1
        if not think_ns:
            self._send(request)
            return
        self._thinking.add(request)
        self._wait(request)
        if session.is_live:
            asyncio.get_running_loop().call_soon(session.prepare, [request.number])

    def _wait(self, request: RequestInFlight) -> None:
        """Send a request at the end of its pause, unless that is moved before."""
        planned_ns = request.planned_ns

        def send() -> None:
            if request in self._thinking and request.planned_ns == planned_ns:
                self._thinking.remove(request)
                self._send(request)

        self._clock.call_at_ns(planned_ns, send)

    def _cap_idle(self, session: PreparedSession, idle_ns: int) -> None:
        """Shorten pauses if the session, or the load, has had nothing in flight since ``idle_ns`` and a cap says so."""
        if self.caps is None:
            return
        if not session.in_flight:
            self._shorten([each for each in self._thinking if each.session is session], self.caps.session_ns, idle_ns)
        if not self._by_age:
            self._shorten(list(self._thinking), self.caps.load_ns, idle_ns)

    def _shorten(self, waiting: Sequence[RequestInFlight], cap_ns: int | None, idle_ns: int) -> None:
        by_ns = excess_ns(cap_ns, idle_ns, min((request.planned_ns for request in waiting), default=None))
        if not by_ns:
            return
        for request in waiting:
            request.planned_ns -= by_ns
            self._wait(request)

    def _record_some(self) -> None:
        """Record a few exchanges, more if many wait, and continue after the event loop has served its reads."""
        for _ in range(2 + len(self._finished) // 8):
            if self._finished:
                self._recorder.append(self._finished.popleft().record(self._phase))
        try:
            self._recorder.flush()
        except NotWritable as error:
            self._failure = error
            if self.load:
                self.load.cancel()
            return
        self._recording = bool(self._finished)
        if self._recording:
            asyncio.get_running_loop().call_soon(self._record_some)

    def _drop_timed_out(self) -> None:
        """Drop exchanges that have timed out; all have the same timeout, so the oldest is always the next."""
        now_ns = self._clock.now_ns()
        self._watching = False
        while self._by_age:
            oldest = next(iter(self._by_age))
            if oldest.started_ns + self._timeout_ns > now_ns:
                self._watching = True
                self._clock.call_at_ns(oldest.started_ns + self._timeout_ns, self._drop_timed_out)
                return
            self._transport.drop(oldest)
            oldest.end, oldest.ended_ns = StreamEnd.TIMEOUT, now_ns
            oldest.detail = f"no end within {self._timeout_ns / NS_PER_S:g} s{_so_far(oldest)}"
            self._ended(oldest)


def _so_far(request: RequestInFlight) -> str:
    """What came of an answer that did not end."""
    if not request.read_ns:
        return ""
    silent_s, count = (request.ended_ns - request.read_ns[-1]) / NS_PER_S, len(request.reads)
    return f": {sum(map(len, request.reads)):,} bytes came in {count:,} reads, the last {silent_s:.1f} s before"
