"""The driver: starts sessions at their planned times and records each exchange when it ends.

Open loop: absolute deadlines, whatever the engine does. Closed loop: a fixed number of slots, each of which plans its
next session at the instant the previous one ended. Latency counts from the plan in both, so it includes any wait inside
the client.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from bakeoff.engines.dialects import Dialect
from bakeoff.harness.client.wire.live_history import reader_of
from bakeoff.harness.client.wire.orders import Measure, Pool, Reply, Silence, Steady
from bakeoff.harness.client.wire.plan import WireSession, read_wire
from bakeoff.harness.client.wire.transport import Transport
from bakeoff.harness.client.worker.failing import FailureDetector
from bakeoff.harness.client.worker.idle_caps import IdleCaps
from bakeoff.harness.client.worker.session_feed import SessionFeed
from bakeoff.harness.client.worker.sessions import Recorder, SessionRunner
from bakeoff.harness.client.worker.steady import SteadyLoad
from bakeoff.harness.host.clock import Clock, sleep_until_ns
from bakeoff.results.records import Phase
from bakeoff.results.units import NS_PER_S

STEP_NS, STEP_SLOTS = 1_000_000, 4
"""The slots of a closed loop start in groups of this many, this far apart: a single burst would measure how fast the
client can send."""
SPARE_CONNECTIONS = 16
"""Connections that an open loop, whose number of requests in flight is unknown, opens before it begins."""


class Issue(msgspec.Struct, frozen=True):
    """Start and end of a load.

    Attributes:
        start_ns: when the load began.
        end_ns: when it stopped starting requests; it then waited for those in flight.
    """

    start_ns: int
    end_ns: int


class Driver:
    """Sends sessions through one transport.

    Args:
        transport: sends requests.
        clock: time.
        recorder: takes each exchange soon after it has ended.
        timeout_s: limit for one exchange.
        phase: recorded with the requests.
        dialect: of the engine, to find failures in its answers, and their text where later requests hold it; None to
            look only at statuses and connections.
        begin: awaited when everything is prepared; returns the start of the load. The default starts it at once.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        clock: Clock,
        recorder: Recorder,
        timeout_s: float,
        phase: Phase = Phase.MEASURED,
        dialect: Dialect | None = None,
        begin: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._timeout_s = timeout_s
        self._runner = SessionRunner(
            transport, clock, recorder, timeout_s, phase, has_failed=FailureDetector(dialect).has_failed
        )  # fmt: skip
        self._answer_of = None if dialect is None else reader_of(dialect)
        self._steady: SteadyLoad | None = None
        self._begin = begin or self._now

    @property
    def planned(self) -> int:
        """Requests planned so far; each is recorded exactly once, however it ends."""
        return self._runner.planned

    def silence(self, least_s: float) -> Silence | None:
        """How long the server has sent nothing, if for ``least_s`` at least while requests are in flight."""
        return self._runner.silence(least_s)

    async def closed_loop(
        self,
        sessions: Iterable[WireSession],
        concurrency: int,
        *,
        duration_s: float,
        minimum: int = 0,
        grace_s: float | None = None,
        caps: IdleCaps | None = None,
    ) -> Issue:
        """Keep ``concurrency`` sessions alive until ``duration_s`` has passed with ``minimum`` requests planned.

        Stops earlier if ``sessions`` run out. Later turns of sessions are then not planned.

        Args:
            sessions: what to send, in order; one with an offset starts at that time of its slot's first start.
            concurrency: slots.
            duration_s: how long, from the start.
            minimum: least number of requests to plan.
            grace_s: seconds after ``duration_s`` until the requests in flight are cancelled; None to wait for them.
            caps: on idle time.

        Raises:
            NotWritable: records can no longer be stored.
        """
        self._runner.load = asyncio.current_task()
        feed = self._feed(sessions)
        await self._transport.open(concurrency, growing=feed.is_parallel)
        loop = _ClosedLoop(self._runner, self._clock, feed)
        start_ns = await self._begin()
        self._runner.until_ns = start_ns + round(duration_s * NS_PER_S)
        self._runner.minimum, self._runner.caps = minimum, caps
        if caps is not None:
            self._clock.call_at_ns(self._runner.until_ns, self._runner.cut_pauses)
        if grace_s is not None:
            self._clock.call_at_ns(self._runner.until_ns + round(grace_s * NS_PER_S), loop.give_up)
        end_ns = await self._run(loop, concurrency, start_ns)
        await sleep_until_ns(self._clock, end_ns)  # in the future if every user's think time ends after it
        return Issue(start_ns, end_ns)

    async def open_loop(
        self, sessions: Iterable[WireSession], *, duration_s: float, max_in_flight: int | None = None
    ) -> Issue:
        """Start every session at its offset, then wait for the answers.

        Turns of sessions after ``duration_s`` are not planned.

        Args:
            sessions: what to send, with increasing offsets.
            duration_s: length of the arrival process.
            max_in_flight: requests above this number wait inside the client, in order; their latency still counts from
                the plan.

        Raises:
            NotWritable: records can no longer be stored.
        """
        self._runner.load = asyncio.current_task()
        await self._transport.open(min(SPARE_CONNECTIONS, max_in_flight or SPARE_CONNECTIONS), growing=True)
        feed = self._feed(sessions)
        start_ns = await self._begin()
        end_ns = start_ns + round(duration_s * NS_PER_S)
        self._runner.until_ns = end_ns
        self._runner.max_in_flight = max_in_flight
        loop = _OpenLoop(self._runner, self._clock, feed, start_ns)
        try:
            await loop.arrived()
            await sleep_until_ns(self._clock, end_ns)
            await self._runner.wait_idle()
        except asyncio.CancelledError:
            loop.stop()
            self._runner.cancel()
            raise
        self._runner.flush()
        return Issue(start_ns, end_ns)

    async def steady(self, share: Steady, ramp: Pool, begun: Pool | None, report: Callable[[Reply], None]) -> Issue:
        """Run a steady load until :meth:`finish`: its ramp, the window that :meth:`measure` opens, and its tail.

        Args:
            share: this worker's part of the load.
            ramp: sessions to send until the window opens.
            begun: sessions in progress at the start.
            report: called when the load is steady, when the window is over, and when its last request has ended.

        Raises:
            NotWritable: records can no longer be stored.
        """
        self._runner.load = asyncio.current_task()
        spare = min(SPARE_CONNECTIONS, share.max_in_flight or SPARE_CONNECTIONS)
        feeds = [self._feed(read_wire(pool) if pool else (), Phase.RAMP) for pool in (ramp, begun)]
        growing = share.concurrency is None or any(feed.is_parallel for feed in feeds)
        await self._transport.open(share.concurrency or spare, growing=growing)
        self._steady = SteadyLoad(
            self._runner, self._clock, share, *feeds, timeout_s=self._timeout_s, report=report
        )  # fmt: skip
        start_ns = await self._begin()
        return Issue(start_ns, await self._steady.run(start_ns))

    def measure(self, order: Measure) -> None:
        """Open the window of the steady load in progress."""
        assert self._steady is not None
        window, tail = self._feed(read_wire(order.sessions)), self._feed(read_wire(order.tail), Phase.TAIL)
        self._steady.measure(order.start_ns, order.end_ns, window, tail)

    def finish(self, *, abort: bool) -> None:
        """End the steady load in progress."""
        assert self._steady is not None
        self._steady.finish(abort=abort)

    async def _now(self) -> int:
        return self._clock.now_ns()

    def _feed(self, sessions: Iterable[WireSession], phase: Phase | None = None) -> SessionFeed:
        return SessionFeed(sessions, self._transport, phase, self._answer_of)

    async def _run(self, loop: "_ClosedLoop", concurrency: int, start_ns: int) -> int:
        """Run a closed loop to its end; returns the time at which the first slot had nothing more to start."""
        try:
            return await loop.run([start_ns + slot // STEP_SLOTS * STEP_NS for slot in range(concurrency)])
        except asyncio.CancelledError:
            loop.stopped = True
            self._runner.cancel()
            raise
        finally:
            self._runner.flush()


class _ClosedLoop:
    """Slots that each plan their next session at the instant the previous one ended."""

    def __init__(self, runner: SessionRunner, clock: Clock, feed: SessionFeed) -> None:
        self._runner = runner
        self._clock = clock
        self._feed = feed
        self._slots = 0
        self._end_ns: int | None = None
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stopped = False

    async def run(self, starts_ns: list[int]) -> int:
        """Start the slots at their times; returns the time at which the first one had nothing more to start."""
        self._slots = len(starts_ns)
        for start_ns in starts_ns:
            self._clock.call_at_ns(start_ns, lambda start_ns=start_ns: self._next(start_ns))
        await self._done
        assert self._end_ns is not None
        return self._end_ns

    def _next(self, free_ns: int) -> None:
        session = None if self.stopped or not self._runner.may_plan(free_ns) else self._feed.next()
        if session is None:
            self._end_ns = free_ns if self._end_ns is None else min(self._end_ns, free_ns)
            self._slots -= 1
            if not self._slots and not self._done.done():
                self._done.set_result(None)
            return
        offset_ns = session.wire.offset_ns or 0
        self._runner.start(session, free_ns, self._session_ended, delay_ns=offset_ns)
        self._feed.refill()

    def give_up(self) -> None:
        """Cancel what is still in flight."""
        if not self._done.done():
            self.stopped = True
            self._runner.cancel()
            self._end_ns = self._runner.until_ns if self._end_ns is None else self._end_ns
            self._done.set_result(None)

    def _session_ended(self, ended_ns: int, pause_ns: int) -> None:
        if pause_ns:
            free_ns = ended_ns + pause_ns
            self._clock.call_at_ns(free_ns, lambda: self._next(free_ns))
        else:
            self._next(ended_ns)


class _OpenLoop:
    """Sets one alarm at a time, for the next arrival."""

    def __init__(self, runner: SessionRunner, clock: Clock, feed: SessionFeed, start_ns: int) -> None:
        self._runner = runner
        self._clock = clock
        self._feed = feed
        self._start_ns = start_ns
        self._arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stopped = False

    async def arrived(self) -> None:
        """Return when every session has arrived."""
        self._arrive()
        await self._arrived

    def stop(self) -> None:
        """Start nothing more."""
        self._stopped = True

    def _arrive(self) -> None:
        """Start the sessions that are due, then set the alarm for the next one."""
        while not self._stopped and (offset_ns := self._feed.peek_offset_ns()) is not None:
            due_ns = self._start_ns + offset_ns
            if due_ns > self._clock.now_ns():
                self._clock.call_at_ns(due_ns, self._arrive)
                return
            session = self._feed.next()
            assert session is not None
            self._runner.start(session, due_ns, _nothing_follows)
            self._feed.refill()
        if not self._arrived.done():
            self._arrived.set_result(None)


def _nothing_follows(_ended_ns: int, _pause_ns: int) -> None:
    """What an open loop does at the end of a session."""
