"""Runs sessions: sends their turns, waits think times, ends exchanges at their timeout, and records them."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from bakeoff.harness.client.transport import StreamLog, Transport, limit_bytes
from bakeoff.harness.client.wire import WireSession
from bakeoff.harness.host.clock import Clock
from bakeoff.results.errors import NotWritable
from bakeoff.results.records import Phase, StreamEnd, StreamRecord
from bakeoff.results.units import NS_PER_S

_READ_AHEAD = 32
FAILURE_PAUSE_NS = 100_000_000
"""Pause after a failed request, until the slot or the session goes on: failures may take no time at all, and a server
that fails must not get requests as fast as the client can send them."""


class RequestInFlight(StreamLog):
    """One turn of a session: a request that is in flight, about to be sent, or finished."""

    __slots__ = ("due_ns", "finished", "has_failed", "number", "planned_ns", "session", "started_ns")

    def __init__(self, session: "PreparedSession", number: int, planned_ns: int, finished: "SessionFinished") -> None:
        super().__init__(limit_bytes(session.wire.turns[number].requested_output_tokens))
        self.session = session
        self.number = number
        self.planned_ns = planned_ns
        self.finished = finished
        self.due_ns: int | None = None
        self.started_ns = 0
        self.has_failed = False
        """Whether it has ended with a failure, as far as the client knows while the load runs."""

    @property
    def pause_ns(self) -> int:
        """Pause that follows it; 0 unless it failed. A timeout has paused the slot for long enough."""
        return FAILURE_PAUSE_NS if self.has_failed and self.end is not StreamEnd.TIMEOUT else 0

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
            turn=plan.first_turn + self.number,
            planned_ns=self.planned_ns,
            due_ns=self.due_ns,
            ended_ns=self.ended_ns,
            end=self.end,
            requested_input_tokens=turn.requested_input_tokens,
            requested_output_tokens=turn.requested_output_tokens,
            cycle=plan.cycle,
            part=1.0 if self.number else plan.part,
            dial_start_ns=self.dial_start_ns,
            dial_end_ns=self.dial_end_ns,
            sent_ns=self.sent_ns,
            sent_bytes=len(turn.request.body),
            is_resent=self.is_resent,
            status=self.status,
            is_streamed=self.is_streamed,
            model=plan.model,
            passages=self.passages,
            check=turn.check,
            expected=turn.expected,
            read_ns=self.read_ns,
            reads=self.reads,
            detail=self.detail,
        )


SessionFinished = Callable[[int, int], None]
"""Called at the end of a session with the time, and the pause that its slot makes after a failure."""


class PreparedSession:
    """A session whose requests the transport has prepared."""

    __slots__ = ("phase", "requests", "wire")

    def __init__(self, wire: WireSession, transport: Transport, phase: Phase | None) -> None:
        self.wire = wire
        self.phase = phase
        self.requests: list[Any] = [transport.prepare(wire.request(number)) for number in range(len(wire.turns))]


class SessionFeed:
    """The sessions of a plan, some prepared in advance so that nothing is decoded between a deadline and its send.

    Args:
        sessions: in sending order.
        transport: prepares their requests.
        phase: recorded with their requests; None for the phase of the whole load.
    """

    def __init__(self, sessions: Iterable[WireSession], transport: Transport, phase: Phase | None = None) -> None:
        self._sessions = iter(sessions)
        self._transport = transport
        self._phase = phase
        self._ready: deque[PreparedSession] = deque()
        for _ in range(_READ_AHEAD):
            self.refill()

    def next(self) -> PreparedSession | None:
        """The next session; None at the end of the plan."""
        return self._ready.popleft() if self._ready else None

    def peek_offset_ns(self) -> int | None:
        """The offset of the next session; None at the end of the plan."""
        return self._ready[0].wire.offset_ns if self._ready else None

    def refill(self) -> None:
        """Prepare one more session; call this after a send."""
        wire = next(self._sessions, None)
        if wire is not None:
            self._ready.append(PreparedSession(wire, self._transport, self._phase))


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
        self.load: asyncio.Task[Any] | None = None
        """Task to cancel when records cannot be stored: a load without records is useless."""
        self.live = 0
        """Sessions in progress."""
        self.planned = 0
        """Requests planned so far; each is recorded exactly once, however it ends."""
        self.until_ns: int | None = None
        """Plan no request at this time or later; sessions with further turns are cut short."""
        self.minimum = 0
        """Plan at least this many requests in spite of ``until_ns``."""
        self.on_end: Callable[[RequestInFlight], None] | None = None
        """Called with each request that has ended, before the next one is started."""

    def start(
        self, session: PreparedSession, planned_ns: int, finished: SessionFinished, due_ns: int | None = None
    ) -> None:
        """Send the session's first turn now.

        Args:
            session: what to send.
            planned_ns: start of its latency.
            finished: called at its end.
            due_ns: when it could first be sent, if a cap made it wait.
        """
        self.live += 1
        request = RequestInFlight(session, 0, planned_ns, finished)
        request.due_ns = due_ns
        self._send(request)

    def in_flight(self) -> Iterator[RequestInFlight]:
        """The requests that were started and have not ended."""
        return iter(self._by_age)

    def record_unsent(self, session: PreparedSession, planned_ns: int, now_ns: int) -> None:
        """Record as cancelled a request that waited inside the client and was never sent."""
        request = RequestInFlight(session, 0, planned_ns, lambda _ended_ns, _pause_ns: None)
        request.ended_ns = now_ns
        self.planned += 1
        self._finished.append(request)

    def stop(self) -> None:
        """Plan nothing more: thinking sessions end now, all others after their current turn."""
        self.until_ns, self.minimum = self._clock.now_ns(), 0
        self.live -= len(self._thinking)
        self._thinking.clear()

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
            request.ended_ns = now_ns
            self._finished.append(request)
        self._by_age.clear()
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
        self.planned += 1
        self._by_age[request] = None
        request.started_ns = self._clock.now_ns()
        self._transport.start(request.session.requests[request.number], request, self._ended)
        if not self._watching:
            self._drop_timed_out()

    def _ended(self, request: RequestInFlight) -> None:
        del self._by_age[request]
        self._finished.append(request)
        if not self._recording:
            self._recording = True
            asyncio.get_running_loop().call_soon(self._record_some)
        request.has_failed = self._has_failed(request)
        if self.on_end is not None:
            self.on_end(request)
        number = request.number + 1
        turns = request.session.wire.turns
        if number == len(turns):
            self._end_session(request, request.ended_ns)
            return
        think_ns = max(turns[number].think_ns, request.pause_ns)
        if self.may_plan(request.ended_ns + think_ns):
            self._think(
                RequestInFlight(request.session, number, request.ended_ns + think_ns, request.finished), think_ns
            )
        else:
            self._end_session(request, max(request.ended_ns, self.until_ns or 0))

    def _end_session(self, request: RequestInFlight, free_ns: int) -> None:
        """End a session; its successor may start at ``free_ns``."""
        self.live -= 1
        request.finished(free_ns, request.pause_ns)
        if not self.live and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _think(self, request: RequestInFlight, think_ns: int) -> None:
        if not think_ns:
            self._send(request)
            return
        self._thinking.add(request)

        def send() -> None:
            if request in self._thinking:
                self._thinking.remove(request)
                self._send(request)

        self._clock.call_at_ns(request.planned_ns, send)

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
            oldest.end, oldest.detail = StreamEnd.TIMEOUT, f"no end within {self._timeout_ns / NS_PER_S:g} s"
            oldest.ended_ns = now_ns
            self._ended(oldest)
