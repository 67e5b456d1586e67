"""Sessions under way: sends their turns, waits their think times, ends what takes too long, hands every end on."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from harness.client.transport import StreamLog, Transport
from harness.client.wire import WireSession
from harness.host.clock import Clock
from results.errors import NotWritable
from results.records import Phase, StreamEnd, StreamRecord
from results.units import NS_PER_S

_READ_AHEAD = 32


class Flight(StreamLog):
    """One turn of a session, sent or about to be."""

    __slots__ = ("due_ns", "landed", "number", "planned_ns", "session", "started_ns")

    def __init__(self, session: "Prepared", number: int, planned_ns: int, landed: "Landed") -> None:
        super().__init__()
        self.session = session
        self.number = number
        self.planned_ns = planned_ns
        self.landed = landed
        self.due_ns: int | None = None
        self.started_ns = 0

    @property
    def is_turned_away(self) -> bool:
        """Whether nothing listened, or the server answered with an HTTP error: either may take no time at all."""
        return self.end == "refused" or self.status not in {None, 200}

    def record(self, phase: Phase) -> StreamRecord:
        """What is stored of it."""
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
            wanted_input_tokens=turn.wanted_input_tokens,
            wanted_output_tokens=turn.wanted_output_tokens,
            cycle=plan.cycle,
            dial_start_ns=self.dial_start_ns,
            dial_end_ns=self.dial_end_ns,
            sent_ns=self.sent_ns,
            sent_bytes=len(turn.request.body),
            status=self.status,
            read_ns=self.read_ns,
            reads=self.reads,
            detail=self.detail,
        )


Landed = Callable[[int, bool], None]
"""Called at the end of a session with the time, and whether its last request was turned away."""


class Prepared:
    """A session whose requests the transport has prepared."""

    __slots__ = ("phase", "requests", "wire")

    def __init__(self, wire: WireSession, transport: Transport, phase: Phase | None) -> None:
        self.wire = wire
        self.phase = phase
        self.requests: list[Any] = [transport.prepare(turn.request) for turn in wire.turns]


class Feed:
    """The sessions of a plan, a few of them prepared ahead: nothing is decoded between a deadline and its send.

    Args:
        sessions: in the order in which they are sent.
        transport: prepares their requests.
        phase: how they are recorded; None for the phase of the whole load.
    """

    def __init__(self, sessions: Iterable[WireSession], transport: Transport, phase: Phase | None = None) -> None:
        self._sessions = iter(sessions)
        self._transport = transport
        self._phase = phase
        self._ready: deque[Prepared] = deque()
        for _ in range(_READ_AHEAD):
            self.refill()

    def next(self) -> Prepared | None:
        """The next session; None when there is no more."""
        return self._ready.popleft() if self._ready else None

    def peek_offset_ns(self) -> int | None:
        """The offset of the next session; None when there is no more."""
        return self._ready[0].wire.offset_ns if self._ready else None

    def refill(self) -> None:
        """Prepare one more session: to be called after a send."""
        wire = next(self._sessions, None)
        if wire is not None:
            self._ready.append(Prepared(wire, self._transport, self._phase))


class Recorder(Protocol):
    """Where records go; :class:`results.frames.FrameAppender` is one."""

    def append(self, record: StreamRecord) -> None:
        """Take one record."""
        ...

    def flush(self) -> None:
        """Make everything taken safe from a crash of this process.

        Raises:
            NotWritable: it cannot be stored.
        """
        ...


class Flights:
    """Every exchange of one driver.

    Args:
        transport: where bytes go.
        clock: time.
        recorder: takes each exchange after it has ended, one for each turn of the loop: encoding a long answer takes
            longer than stamping a read.
        timeout_s: longest exchange, from the instant at which it is handed to the transport.
        phase: how they are recorded.
    """

    def __init__(self, transport: Transport, clock: Clock, recorder: Recorder, timeout_s: float, phase: Phase) -> None:
        self._transport = transport
        self._clock = clock
        self._recorder = recorder
        self._phase = phase
        self._timeout_ns = round(timeout_s * NS_PER_S)
        self._by_age: dict[Flight, None] = {}
        self._watching = False
        self._landed: deque[Flight] = deque()
        self._thinking: set[Flight] = set()
        self._recording = False
        self._idle: asyncio.Future[None] | None = None
        self._failure: NotWritable | None = None
        self.load: asyncio.Task[Any] | None = None
        """Cancelled when nothing more can be recorded: a load that leaves no record is put on for nothing."""
        self.live = 0
        """Sessions under way."""
        self.planned = 0
        """Requests planned so far; each is recorded exactly once, whatever happens to it."""
        self.until_ns: int | None = None
        """Nothing is planned at this time or later; users who have more to say are cut short."""
        self.minimum = 0
        """Unless fewer requests than this have been planned."""
        self.on_end: Callable[[Flight], None] | None = None
        """Called with each request that has ended, before what follows it is started."""

    def start(self, session: Prepared, planned_ns: int, landed: Landed, due_ns: int | None = None) -> None:
        """Send the session's first turn now.

        Args:
            session: what to send.
            planned_ns: what its latency counts from.
            landed: called at its end.
            due_ns: when it could first be sent, where a cap made it wait.
        """
        self.live += 1
        flight = Flight(session, 0, planned_ns, landed)
        flight.due_ns = due_ns
        self._send(flight)

    @property
    def in_flight(self) -> int:
        """Requests that were handed to the transport and have not ended."""
        return len(self._by_age)

    def planned_in_flight_ns(self) -> Iterator[int]:
        """When each of them was planned."""
        return (flight.planned_ns for flight in self._by_age)

    def give_up(self, session: Prepared, planned_ns: int, now_ns: int) -> None:
        """Record a request as cancelled that waited inside the client and was never sent."""
        flight = Flight(session, 0, planned_ns, lambda _ended_ns, _is_turned_away: None)
        flight.ended_ns = now_ns
        self.planned += 1
        self._landed.append(flight)

    def stop(self) -> None:
        """Plan nothing more: who thinks leaves, and who is being answered has no further turn."""
        self.until_ns, self.minimum = self._clock.now_ns(), 0
        self.live -= len(self._thinking)
        self._thinking.clear()

    def go_on(self, planned_ns: int) -> bool:
        """Whether a request of that time is still to be planned."""
        return self.until_ns is None or planned_ns < self.until_ns or self.planned < self.minimum

    async def landing(self) -> None:
        """Return when no session is under way."""
        while self.live:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def cancel(self) -> None:
        """End every exchange as cancelled, without starting anything in its stead, and record all that has ended.

        Raises:
            NotWritable: records cannot be stored, which is why the load was cancelled.
        """
        now_ns = self._clock.now_ns()
        for flight in self._by_age:
            self._transport.drop(flight)
            flight.ended_ns = now_ns
            self._landed.append(flight)
        self._by_age.clear()
        self._thinking.clear()
        self.live = 0
        self.flush()
        if self._failure:
            raise self._failure

    def flush(self) -> None:
        """Record everything that has ended."""
        while self._landed:
            self._recorder.append(self._landed.popleft().record(self._phase))
        self._recorder.flush()

    def _send(self, flight: Flight) -> None:
        self.planned += 1
        self._by_age[flight] = None
        flight.started_ns = self._clock.now_ns()
        self._transport.start(flight.session.requests[flight.number], flight, self._ended)
        if not self._watching:
            self._watch()

    def _ended(self, flight: Flight) -> None:
        del self._by_age[flight]
        self._landed.append(flight)
        if not self._recording:
            self._recording = True
            asyncio.get_running_loop().call_soon(self._record_some)
        if self.on_end is not None:
            self.on_end(flight)
        number = flight.number + 1
        turns = flight.session.wire.turns
        if number == len(turns):
            self._over(flight, flight.ended_ns)
            return
        think_ns = turns[number].think_ns
        if self.go_on(flight.ended_ns + think_ns):
            self._think(Flight(flight.session, number, flight.ended_ns + think_ns, flight.landed), think_ns)
        else:
            self._over(flight, max(flight.ended_ns, self.until_ns or 0))

    def _over(self, flight: Flight, free_ns: int) -> None:
        """A session has had its last turn; whoever takes its place may do so from ``free_ns``."""
        self.live -= 1
        flight.landed(free_ns, flight.is_turned_away)
        if not self.live and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _think(self, flight: Flight, think_ns: int) -> None:
        if not think_ns:
            self._send(flight)
            return
        self._thinking.add(flight)

        def go() -> None:
            if flight in self._thinking:
                self._thinking.remove(flight)
                self._send(flight)

        self._clock.call_at_ns(flight.planned_ns, go)

    def _record_some(self) -> None:
        """Record a few exchanges, or more when many wait, and come back after the loop has served its reads."""
        for _ in range(2 + len(self._landed) // 8):
            if self._landed:
                self._recorder.append(self._landed.popleft().record(self._phase))
        try:
            self._recorder.flush()
        except NotWritable as error:
            self._failure = error
            if self.load:
                self.load.cancel()
            return
        self._recording = bool(self._landed)
        if self._recording:
            asyncio.get_running_loop().call_soon(self._record_some)

    def _watch(self) -> None:
        """End the exchanges whose time is over; the timeout is one for all, so the oldest is always the next."""
        now_ns = self._clock.now_ns()
        self._watching = False
        while self._by_age:
            oldest = next(iter(self._by_age))
            if oldest.started_ns + self._timeout_ns > now_ns:
                self._watching = True
                self._clock.call_at_ns(oldest.started_ns + self._timeout_ns, self._watch)
                return
            self._transport.drop(oldest)
            oldest.end, oldest.detail = StreamEnd.TIMEOUT, f"no end within {self._timeout_ns / NS_PER_S:g} s"
            oldest.ended_ns = now_ns
            self._ended(oldest)
