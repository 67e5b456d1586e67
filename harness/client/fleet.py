"""The client as the harness sees it: one load goes in, one record of every request comes out.

A steady load has three parts: the fleet waits until every worker's ramp has ended, opens the window for all of them at
one instant, lets them go on until every request of the window has ended, and then ends the load.

A fleet is one or more workers (:mod:`harness.client.worker`), each with its own file of sessions: session ``i`` goes
to worker ``i mod N``, slots and caps are dealt out alike. All start at one instant of one clock; the records are
merged when they are read, by their position in the plan.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from engines import Access
from harness.client.driver import Issue
from harness.client.local_worker import LocalWorker
from harness.client.orders import (
    Answer,
    Answered,
    Closed,
    Done,
    Finish,
    Go,
    Measure,
    Open,
    Pool,
    Prepare,
    Ramped,
    Ready,
    Steady,
    Stop,
    Stopped,
    WindowClosed,
)
from harness.client.station import Station
from harness.client.wire import WireSession, write_wire
from harness.errors import ClientFailed
from harness.host.realtime import stepping_back
from results.errors import NotWritable
from results.records import ClientRecord, Phase, TelemetryRecord
from results.store import TrialFolder

T = TypeVar("T")
A = TypeVar("A", Ready, Ramped, WindowClosed, Answered)

_HEAD_START_NS = 20_000_000
"""Between the last worker's *ready* and the start of the load: time for the order to reach them all."""
_STOP_S = 5.0


Share = Closed | Open | Steady
"""What a fleet, or one worker of it, keeps up."""


class WirePool(msgspec.Struct, frozen=True):
    """Sessions of one part of a load, and how they go on; see :class:`harness.client.orders.Pool`."""

    sessions: Iterable[WireSession]
    stride: int | None = None
    period_ns: int = 0


class WindowPlan(msgspec.Struct, frozen=True):
    """What follows the ramp."""

    length_ns: int
    sessions: WirePool
    tail: WirePool


class SteadyPlan(msgspec.Struct, frozen=True):
    """The parts of a steady load, and the decisions between them.

    Attributes:
        ramp: sent until the load is steady.
        window: given how the ramp went, what follows it; called in a thread, for it may have to write prompts.
        is_saturated: whether readings of the requests in flight over the window show an engine that fell behind, so
            that its answers need not be waited for.
    """

    ramp: WirePool
    window: Callable[[Ramped], WindowPlan]
    is_saturated: Callable[[Sequence[int]], bool]


class LoadOrder(msgspec.Struct, frozen=True):
    """One load for the whole fleet.

    Attributes:
        base_url: of the engine.
        share: what the fleet as a whole keeps up.
        timeout_s: longest exchange.
        phase: how its requests are recorded.
        transport: ``http`` or ``aiohttp``.
        access: what every request must carry; sent to the workers over their pipes, never written.
    """

    base_url: str
    share: Share
    timeout_s: float
    phase: Phase = Phase.MEASURED
    transport: str = "http"
    access: Access = Access()


class LoadResult(msgspec.Struct, frozen=True):
    """What the fleet did.

    Attributes:
        planned: requests planned.
        issue: when the load was on.
        loop_lag: the worst worker's lateness.
        clients: what each worker cost, and how well its clock is known.
        window: of a steady load, in nanoseconds: its start and its end; None of any other load.
        ramp: of a steady load, how its ramp went.
    """

    planned: int
    issue: Issue
    loop_lag: TelemetryRecord | None
    clients: list[ClientRecord]
    window: tuple[int, int] | None = None
    ramp: Ramped | None = None


class Fleet:
    """Workers that put one load on together.

    Args:
        stations: the workers, running.
        now_ns: this host's monotonic clock.
        in_thread: runs a function that blocks, so that the loop goes on.
    """

    def __init__(
        self,
        stations: Sequence[Station],
        now_ns: Callable[[], int] = time.monotonic_ns,
        in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._stations = stations
        self._now_ns = now_ns
        self._in_thread = in_thread

    @property
    def pids(self) -> list[int]:
        """Processes of the workers on this host."""
        return [station.pid for station in self._stations if station.pid is not None]

    @property
    def is_local(self) -> bool:
        """Whether every worker is on this host."""
        return all(station.pid is not None for station in self._stations)

    async def load(self, order: LoadOrder, sessions: Iterable[WireSession], folder: TrialFolder) -> LoadResult:
        """Put the load on and wait for the last answer; every exchange is then in ``folder``.

        Raises:
            ClientFailed: a worker broke.
            NotWritable: a worker cannot write its log.
            CancelledError: what was in flight has been recorded as cancelled.
        """
        async with self._crew(order.share, folder) as crew:
            await self._begin(crew, order, WirePool(sessions))
            done = await self._each(crew, _done)
        # Collecting the logs measures the clocks again, and the result states the clocks that the logs were shifted by.
        return _merged(done, crew)

    async def steady(self, order: LoadOrder, plan: SteadyPlan, folder: TrialFolder) -> LoadResult:
        """Put a steady load on: ramp, window and tail; every exchange is then in ``folder``.

        Raises:
            ClientFailed: a worker broke.
            NotWritable: a worker cannot write its log.
            CancelledError: what was in flight has been recorded as cancelled.
        """
        async with self._crew(order.share, folder) as crew:
            await self._begin(crew, order, plan.ramp)
            ramp = _ramp(await self._each(crew, lambda station: _expected(station, Ramped)))
            start_ns = await self._open_window(crew, await self._in_thread(plan.window, ramp))
            closed = await self._each(crew, lambda station: _expected(station, WindowClosed))
            in_flight = [sum(readings) for readings in zip(*(answer.in_flight for answer in closed), strict=False)]
            abort = plan.is_saturated(in_flight) or not await self._all_answered(crew, order.timeout_s)
            await self._each(crew, lambda station: station.send(Finish(abort)))
            done = await self._each(crew, _done)
            ends_ns = [
                answer.end_ns - member.station.clock.offset_ns for answer, member in zip(closed, crew, strict=True)
            ]
        return msgspec.structs.replace(_merged(done, crew), window=(start_ns, min(ends_ns)), ramp=ramp)

    @contextlib.asynccontextmanager
    async def _crew(self, share: Share, folder: TrialFolder) -> AsyncGenerator[list["_Member"]]:
        """Workers with their shares; whatever ends the block, their logs are in ``folder`` afterwards."""
        with tempfile.TemporaryDirectory(prefix="bakeoff-") as scratch:
            shares = dealt(share, len(self._stations))
            crew = [
                _Member(station, part, Path(scratch) / str(number), folder.stream_log(number))
                for number, (station, part) in enumerate(zip(self._stations, shares, strict=False))
            ]
            try:
                with stepping_back():
                    yield crew
            except (asyncio.CancelledError, ClientFailed, NotWritable):
                await asyncio.gather(*(_stopped(member.station) for member in crew))
                raise
            finally:
                await asyncio.gather(*(member.station.collect(member.log) for member in crew))

    async def _begin(self, crew: Sequence["_Member"], order: LoadOrder, pool: WirePool) -> None:
        """Get every worker ready, then start all of them at one instant."""
        pools = await self._staged(crew, pool, "first")
        for member, sessions in zip(crew, pools, strict=True):
            await member.station.send(
                Prepare(
                    base_url=order.base_url,
                    access=order.access,
                    log=member.station.place(member.log),
                    sessions=sessions,
                    load=member.share,
                    timeout_s=order.timeout_s,
                    phase=order.phase,
                    transport=order.transport,
                )
            )
        await self._each(crew, lambda station: _expected(station, Ready))
        start_ns = self._now_ns() + _HEAD_START_NS
        await self._each(crew, lambda station: station.send(Go(start_ns + station.clock.offset_ns)))

    async def _open_window(self, crew: Sequence["_Member"], plan: WindowPlan) -> int:
        """Tell every worker what to send from one instant on; returns that instant."""
        windows = await self._staged(crew, plan.sessions, "window")
        tails = await self._staged(crew, plan.tail, "tail")
        start_ns = self._now_ns() + _HEAD_START_NS
        for member, window, tail in zip(crew, windows, tails, strict=True):
            local_ns = start_ns + member.station.clock.offset_ns
            await member.station.send(Measure(local_ns, local_ns + plan.length_ns, window, tail))
        return start_ns

    async def _staged(self, crew: Sequence["_Member"], pool: WirePool, name: str) -> list[Pool]:
        """The sessions of a part, dealt out to one file for each worker that it can read."""
        paths = [member.scratch.with_name(f"{name}-{member.scratch.name}") for member in crew]
        await self._in_thread(write_wire, paths, pool.sessions)
        return [
            Pool(await member.station.stage(path), pool.stride, pool.period_ns)
            for member, path in zip(crew, paths, strict=True)
        ]

    async def _all_answered(self, crew: Sequence["_Member"], timeout_s: float) -> bool:
        """Whether every request of the window has ended; those that waited inside the client may not have in time."""
        try:
            async with asyncio.timeout(timeout_s + _STOP_S):
                await self._each(crew, lambda station: _expected(station, Answered))
        except TimeoutError:
            return False
        return True

    async def _each(self, crew: Sequence["_Member"], work: Callable[[Station], Coroutine[Any, Any, T]]) -> list[T]:
        """Do the same with every worker at once; the first failure ends the rest."""
        tasks = [asyncio.ensure_future(work(member.station)) for member in crew]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class _Member(msgspec.Struct, frozen=True):
    """One worker in one load; ``scratch`` names its files of sessions."""

    station: Station
    share: Share
    scratch: Path
    log: Path


@contextlib.asynccontextmanager
async def local_fleet(workers: int = 1, cores: Sequence[int] = ()) -> AsyncGenerator[Fleet]:
    """Workers on this machine; they end with the block, or with this process.

    Args:
        workers: how many.
        cores: one for each worker to be pinned to; empty for none.
    """
    async with contextlib.AsyncExitStack() as stack:
        stations = [
            await stack.enter_async_context(LocalWorker.started(cores[number] if cores else None))
            for number in range(workers)
        ]
        yield Fleet(stations)


def dealt(share: Share, workers: int) -> list[Share]:
    """Each worker's share; fewer shares than workers when there are fewer slots."""
    match share:
        case Closed(concurrency, _, minimum):
            used = min(workers, concurrency)
            return [
                msgspec.structs.replace(share, concurrency=_part(concurrency, used, n), minimum=_part(minimum, used, n))
                for n in range(used)
            ]
        case Steady(int(concurrency)):
            used = min(workers, concurrency)
            return [msgspec.structs.replace(share, concurrency=_part(concurrency, used, n)) for n in range(used)]
        case Open(max_in_flight=cap) | Steady(max_in_flight=cap):
            used = workers if cap is None else min(workers, cap)
            return [
                msgspec.structs.replace(share, max_in_flight=None if cap is None else _part(cap, used, n))
                for n in range(used)
            ]


def _part(whole: int, parts: int, number: int) -> int:
    """The ``number``-th of ``parts`` near-equal whole parts."""
    return whole // parts + (number < whole % parts)


async def _expected(station: Station, kind: type[A]) -> A:
    answer = await station.answer()
    if not isinstance(answer, kind):
        raise _broken(station, answer)
    return answer


def _ramp(answers: Sequence[Ramped]) -> Ramped:
    """How the ramp went for the fleet as a whole."""
    ended = sum(answer.ended for answer in answers)
    means = [(answer.request_s, answer.ended) for answer in answers if answer.request_s is not None]
    request_s = sum(seconds * weight for seconds, weight in means) / ended if means and ended else None
    return Ramped(all(answer.complete for answer in answers), ended, request_s)


async def _done(station: Station) -> Done:
    answer = await station.answer()
    while isinstance(answer, Answered):  # the last request ended while the load was being ended
        answer = await station.answer()
    if not isinstance(answer, Done) or answer.failure is not None or answer.start_ns is None:
        raise _broken(station, answer)
    return answer


def _broken(station: Station, answer: Answer) -> ClientFailed | NotWritable:
    said = answer.failure if isinstance(answer, Done) else f"it answered {type(answer).__name__} out of turn"
    if isinstance(answer, Done) and answer.unwritable:
        return NotWritable(said)
    return ClientFailed(f"the client worker on {station.host} failed: {said or 'it stopped without being told to'}")


async def _stopped(station: Station) -> None:
    """Cut a worker off and wait until it has recorded everything."""
    with contextlib.suppress(ClientFailed, TimeoutError):
        async with asyncio.timeout(_STOP_S):
            await station.send(Stop())
            while not isinstance(await station.answer(), Stopped):
                pass


def _merged(done: Sequence[Done], crew: Sequence[_Member]) -> LoadResult:
    stations = [member.station for member in crew]
    offsets_ns = [station.clock.offset_ns for station in stations]
    starts_ns = [(answer.start_ns or 0) - offset_ns for answer, offset_ns in zip(done, offsets_ns, strict=True)]
    ends_ns = [(answer.end_ns or 0) - offset_ns for answer, offset_ns in zip(done, offsets_ns, strict=True)]
    lags = [answer.loop_lag for answer in done if answer.loop_lag is not None]
    return LoadResult(
        planned=sum(answer.planned for answer in done),
        issue=Issue(min(starts_ns), min(ends_ns)),
        loop_lag=_worst(lags) if lags else None,
        clients=[_client_record(answer, station) for answer, station in zip(done, stations, strict=True)],
    )


def _worst(lags: Sequence[TelemetryRecord]) -> TelemetryRecord:
    """Each percentile of the worker that was latest."""
    known = [lag for lag in lags if not lag.reasons]
    if not known:
        return lags[0]
    names = known[0].values
    values = {name: max(cast("float", lag.values[name]) for lag in known) for name in names}
    return TelemetryRecord(known[0].t_ns, known[0].source, {**values})


def _client_record(answer: Done, station: Station) -> ClientRecord:
    return ClientRecord(
        host=station.host,
        planned_requests=answer.planned,
        cpu_s=answer.cpu_s,
        rss_bytes=answer.rss_bytes,
        clock_offset_ns=station.clock.offset_ns,
        clock_uncertainty_ns=station.clock.uncertainty_ns,
    )
