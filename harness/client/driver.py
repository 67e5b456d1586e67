"""The driver: fires turns at their planned times and records each exchange when it ends.

Open loop: absolute deadlines, whatever the engine does; closed loop: a fixed number of slots, each planning its next
session at the instant the last one ended. Latency counts from the plan in both, so waiting inside the client shows.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from engines.dialects import Dialect, HttpRequest
from harness.client.transport import StreamLog, Transport
from harness.clock import NS_PER_S, Clock
from results.records import Phase, StreamRecord
from workloads import PlannedSession, Session, Turn

REFUSED_PAUSE_NS = 100_000_000
"""How long a slot of a closed loop rests after a refused connection."""


class Issue(msgspec.Struct, frozen=True):
    """What the driver did.

    Attributes:
        start_ns: when it began to put the load on.
        end_ns: when it stopped issuing; what was in flight then was waited for.
    """

    start_ns: int
    end_ns: int


class Driver:
    """Sends sessions through one transport in one engine's dialect.

    Args:
        transport: where bytes go.
        dialect: makes the bytes.
        model: name that requests use.
        clock: time.
        record: called with each exchange as soon as it has ended.
        timeout_s: longest exchange.
    """

    def __init__(
        self,
        transport: Transport,
        dialect: Dialect,
        model: str,
        *,
        clock: Clock,
        record: Callable[[StreamRecord], None],
        timeout_s: float,
    ) -> None:
        self._transport = transport
        self._dialect = dialect
        self._model = model
        self._clock = clock
        self._record = record
        self._timeout_s = timeout_s
        self._index = 0
        self.planned = 0
        """Measured requests planned so far; each is recorded exactly once, whatever happens to it."""

    async def warm_up(self, sessions: Sequence[PlannedSession], concurrency: int) -> None:
        """Send ``sessions``, recorded as warm-up."""
        await self._closed(sessions, concurrency, deadline_ns=None, minimum=0, phase=Phase.WARMUP)

    async def closed_loop(
        self, sessions: Sequence[PlannedSession], concurrency: int, duration_s: float, minimum: int
    ) -> Issue:
        """Keep ``concurrency`` sessions in flight until ``duration_s`` has passed and ``minimum`` have been started.

        Stops earlier when ``sessions`` run out.
        """
        start_ns = self._clock.now_ns()
        deadline_ns = start_ns + round(duration_s * NS_PER_S)
        end_ns = await self._closed(sessions, concurrency, deadline_ns, minimum, Phase.MEASURED)
        return Issue(start_ns, end_ns)

    async def open_loop(self, sessions: Sequence[PlannedSession], duration_s: float) -> Issue:
        """Start every session at its offset, then wait for the answers."""
        prepared = [self._prepare(planned.session) for planned in sessions]
        start_ns = self._clock.now_ns()
        async with asyncio.TaskGroup() as tasks:
            for planned, requests in zip(sessions, prepared, strict=True):
                assert planned.offset_s is not None, "an open loop needs offsets"
                due_ns = start_ns + round(planned.offset_s * NS_PER_S)
                await self._clock.sleep_until_ns(due_ns)
                tasks.create_task(self._session(planned.session, requests, due_ns, Phase.MEASURED))
            end_ns = start_ns + round(duration_s * NS_PER_S)
            await self._clock.sleep_until_ns(end_ns)
        return Issue(start_ns, end_ns)

    async def _closed(
        self,
        sessions: Sequence[PlannedSession],
        concurrency: int,
        deadline_ns: int | None,
        minimum: int,
        phase: Phase,
    ) -> int:
        """Run the slots; returns when the first of them found nothing more to start."""
        queue = iter([(planned.session, self._prepare(planned.session)) for planned in sessions])
        started = 0
        ends: list[int] = []

        async def slot(free_ns: int) -> None:
            nonlocal started
            while deadline_ns is None or free_ns < deadline_ns or started < minimum:
                item = next(queue, None)
                if item is None:
                    break
                started += 1
                free_ns, end = await self._session(*item, free_ns, phase)
                if end == "refused":  # nothing listens: do not spend the plan on it in a millisecond
                    free_ns += REFUSED_PAUSE_NS
                    await self._clock.sleep_until_ns(free_ns)
            ends.append(free_ns)

        start_ns = self._clock.now_ns()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(concurrency):
                tasks.create_task(slot(start_ns))
        return min(ends)

    def _prepare(self, session: Session) -> list[HttpRequest]:
        """Encode before the load is on: nothing is serialised between a deadline and its send."""
        return [self._dialect.request(turn, self._model) for turn in session.turns]

    async def _session(
        self, session: Session, requests: Sequence[HttpRequest], due_ns: int, phase: Phase
    ) -> tuple[int, str]:
        """Send the turns of one session, each after the answer to the last and its think time.

        Returns:
            when and how the last exchange ended.
        """
        end = "complete"
        for number, (turn, request) in enumerate(zip(session.turns, requests, strict=True)):
            if turn.think_s:
                due_ns += round(turn.think_s * NS_PER_S)
                await self._clock.sleep_until_ns(due_ns)
            due_ns, end = await self._turn(session.id, number, turn, request, due_ns=due_ns, phase=phase)
        return due_ns, end

    async def _turn(
        self, session: str, number: int, turn: Turn, request: HttpRequest, *, due_ns: int, phase: Phase
    ) -> tuple[int, str]:
        index, self._index = self._index, self._index + 1
        self.planned += phase is Phase.MEASURED
        log = StreamLog()
        try:
            await self._transport.exchange(request, log, self._timeout_s)
        finally:  # an exchange that Ctrl-C cuts off is recorded as cancelled
            self._record(
                StreamRecord(
                    index=index,
                    phase=phase,
                    session=session,
                    turn=number,
                    planned_ns=due_ns,
                    ended_ns=log.ended_ns,
                    end=log.end,
                    wanted_input_tokens=turn.input_tokens,
                    wanted_output_tokens=turn.output_tokens,
                    sent_ns=log.sent_ns,
                    status=log.status,
                    read_ns=log.read_ns,
                    reads=[body.decode("latin-1") for body in log.reads],
                    detail=log.detail,
                )
            )
        return log.ended_ns, log.end
