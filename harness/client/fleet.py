"""The client as the harness sees it: one load goes in, one record of every request comes out.

A fleet is one or more workers (:mod:`harness.client.worker`), each with its own file of sessions: session ``i`` goes
to worker ``i mod N``, slots and caps are dealt out alike. All start at one instant of one clock; the records are
merged when they are read, by their position in the plan.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from engines import Access
from harness.client.driver import Issue
from harness.client.local_worker import LocalWorker
from harness.client.orders import Answer, Closed, Done, Go, Open, Prepare, Ready, Stop, Stopped
from harness.client.station import Station
from harness.client.wire import WireSession, write_wire
from harness.errors import ClientFailed
from results.errors import NotWritable
from results.records import ClientRecord, Phase, TelemetryRecord
from results.store import TrialFolder

T = TypeVar("T")

_HEAD_START_NS = 20_000_000
"""Between the last worker's *ready* and the start of the load: time for the order to reach them all."""
_STOP_S = 5.0


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
    share: Closed | Open
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
    """

    planned: int
    issue: Issue
    loop_lag: TelemetryRecord | None
    clients: list[ClientRecord]


class Fleet:
    """Workers that put one load on together.

    Args:
        stations: the workers, running.
    """

    def __init__(self, stations: Sequence[Station]) -> None:
        self._stations = stations

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
        with tempfile.TemporaryDirectory(prefix="bakeoff-") as scratch:
            crew = self._crew(order.share, Path(scratch), folder)
            await asyncio.to_thread(write_wire, [member.plan for member in crew], sessions)
            try:
                done = await _run(crew, order)
            except (asyncio.CancelledError, ClientFailed, NotWritable):
                await asyncio.gather(*(_stopped(member.station) for member in crew))
                raise
            finally:
                await asyncio.gather(*(member.station.collect(member.log) for member in crew))
            return _merged(done, [member.station for member in crew])

    def _crew(self, share: Closed | Open, scratch: Path, folder: TrialFolder) -> "list[_Member]":
        shares = dealt(share, len(self._stations))
        return [
            _Member(station, part, scratch / f"sessions-{number}", folder.stream_log(number))
            for number, (station, part) in enumerate(zip(self._stations, shares, strict=False))
        ]


class _Member(msgspec.Struct, frozen=True):
    """One worker in one load."""

    station: Station
    share: Closed | Open
    plan: Path
    log: Path


async def _run(crew: Sequence[_Member], order: LoadOrder) -> list[Done]:
    for member in crew:
        station = member.station
        await station.send(
            Prepare(
                base_url=order.base_url,
                access=order.access,
                log=station.place(member.log),
                sessions=await station.stage(member.plan),
                load=member.share,
                timeout_s=order.timeout_s,
                phase=order.phase,
                transport=order.transport,
            )
        )
    await _all(_ready(member.station) for member in crew)
    start_ns = time.monotonic_ns() + _HEAD_START_NS
    await _all(member.station.send(Go(start_ns + member.station.clock.offset_ns)) for member in crew)
    return await _all(_done(member.station) for member in crew)


async def _all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Do it all at once; the first failure ends the rest."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def local_fleet(workers: int = 1, cores: Sequence[int] = ()) -> AsyncGenerator[Fleet]:
    """Workers on this machine; they end with the block, or with this process.

    Args:
        workers: how many.
        cores: one for each worker to be pinned to, at real-time priority where that is allowed; empty for neither.
    """
    async with contextlib.AsyncExitStack() as stack:
        stations = [
            await stack.enter_async_context(LocalWorker.started(cores[number] if cores else None))
            for number in range(workers)
        ]
        yield Fleet(stations)


def dealt(share: Closed | Open, workers: int) -> list[Closed | Open]:
    """Each worker's share; fewer shares than workers when there are fewer slots."""
    match share:
        case Closed(concurrency, _, minimum, _):
            used = min(workers, concurrency)
            return [
                msgspec.structs.replace(share, concurrency=_part(concurrency, used, n), minimum=_part(minimum, used, n))
                for n in range(used)
            ]
        case Open(_, None):
            return [share] * workers
        case Open(_, cap):
            assert cap is not None
            used = min(workers, cap)
            return [msgspec.structs.replace(share, max_in_flight=_part(cap, used, n)) for n in range(used)]


def _part(whole: int, parts: int, number: int) -> int:
    """The ``number``-th of ``parts`` near-equal whole parts."""
    return whole // parts + (number < whole % parts)


async def _ready(station: Station) -> None:
    answer = await station.answer()
    if not isinstance(answer, Ready):
        raise _broken(station, answer)


async def _done(station: Station) -> Done:
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


def _merged(done: Sequence[Done], stations: Sequence[Station]) -> LoadResult:
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
