"""The measuring client as the harness sees it: takes one load, returns a record of every request.

For a steady load the fleet waits until every worker's ramp has ended, opens the window for all workers at one instant,
waits until every request of the window has ended, and then ends the load.

A fleet is one or more workers (:mod:`bakeoff.harness.client.worker.process`), each with its own file of sessions:
session ``i`` goes to worker ``i mod N``, and slots and caps are divided evenly. All workers start at one instant of one
clock. Records are merged when they are read, by their position in the plan.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from bakeoff import system
from bakeoff.engines import Access
from bakeoff.engines.addresses import Balance, ReplicaHeader
from bakeoff.harness.client.decode.log import Decoder
from bakeoff.harness.client.fleet.local_worker import LocalWorker
from bakeoff.harness.client.fleet.worker_host import WorkerHost
from bakeoff.harness.client.wire.orders import (
    Alive,
    Closed,
    Done,
    Finish,
    Format,
    Go,
    Join,
    Measure,
    Open,
    Pool,
    Prepare,
    Ramped,
    Ready,
    Reply,
    Silence,
    Steady,
    Stop,
    Stopped,
    Target,
    WindowAnswered,
    WindowClosed,
)
from bakeoff.harness.client.wire.plan import WireSession, write_wire
from bakeoff.harness.client.worker.driver import Issue
from bakeoff.harness.client.worker.loop_lag import BUSY_SHARE
from bakeoff.harness.errors import BadExperiment, ClientFailed, WorkerLost
from bakeoff.harness.host.realtime import without_preempting
from bakeoff.harness.host.scratch import scratch_folder
from bakeoff.harness.host.threads import in_thread
from bakeoff.results.errors import NotWritable
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.records import ClientRecord, Pace, Phase, TelemetryRecord

T = TypeVar("T")
A = TypeVar("A", Ready, Ramped, WindowClosed, WindowAnswered)

_HEAD_START_NS = 20_000_000
"""From the last worker's *ready* to the start of the load: time for the order to reach all workers."""
_STOP_S = 5.0


Share = Closed | Open | Steady
"""The load on a fleet, or on one of its workers."""


class WirePool(msgspec.Struct, frozen=True):
    """Sessions of one part of a load, and how they repeat; see :class:`bakeoff.harness.client.wire.orders.Pool`."""

    sessions: Iterable[WireSession]
    stride: int | None = None
    period_ns: int = 0


class WindowPlan(msgspec.Struct, frozen=True):
    """The window and the tail, which follow the ramp."""

    length_ns: int
    sessions: WirePool
    tail: WirePool


class SteadyPlan(msgspec.Struct, frozen=True):
    """The parts of a steady load and the decisions between them.

    Attributes:
        begun: sessions in progress at the start.
        ramp: sent until the load is steady.
        window: takes the result of the ramp, returns what follows it, or None to end the load now; called in a thread,
            since it may write prompts.
        is_lost: takes the requests in flight at the window's end and how many of them are overdue, returns whether the
            engine is so far behind that waiting for their answers is not worth it.
        opened: takes the instant at which the window opens, shortly before it.
    """

    begun: WirePool
    ramp: WirePool
    window: Callable[[Ramped], WindowPlan | None]
    is_lost: Callable[[int, int], bool]
    opened: Callable[[int], None] = lambda _: None


class LoadOrder(msgspec.Struct, frozen=True):
    """One load for the whole fleet.

    Attributes:
        targets: the addresses that requests go to.
        share: the load on the fleet as a whole.
        timeout_s: limit for one exchange.
        phase: recorded with its requests.
        transport: ``http`` or ``aiohttp``.
        format: wire format of the answers; None if the load need not know which of them failed.
        balance: how every worker divides its requests among several targets.
        replica_header: where answers name the replica behind a router; None if they do not.
        access: credentials for every request; sent to the workers over their pipes, never written to a file.
    """

    targets: tuple[Target, ...]
    share: Share
    timeout_s: float
    phase: Phase = Phase.MEASURED
    transport: str = "http"
    access: Access = Access()
    format: Format | None = None
    balance: Balance = Balance.ROUND_ROBIN
    replica_header: ReplicaHeader | None = None


class LoadResult(msgspec.Struct, frozen=True):
    """The result of a load that a fleet has sent.

    Attributes:
        planned: requests planned.
        issue: start and end of the load.
        loop_lag: event loop lateness of the worst worker.
        clients: cost of each worker, and the offset of its clock.
        window: start and end of a steady load's window in nanoseconds; None for other loads.
        ramp: result of a steady load's ramp; None for other loads.
        begun: sessions that were in progress when it began.
        unwritten_s: seconds at the end of the window that these were not written for.
    """

    planned: int
    issue: Issue
    loop_lag: TelemetryRecord | None
    clients: list[ClientRecord]
    window: tuple[int, int] | None = None
    ramp: Ramped | None = None
    begun: int = 0
    unwritten_s: float = 0.0


class Fleet:
    """Workers that apply one load together.

    Args:
        hosts: the running workers.
        now_ns: this host's monotonic clock.
        in_thread: runs a blocking function off the event loop.

    Attributes:
        planned_workers: those that it began with.
        on_silence: called every two seconds while a load is in progress, with the silence of the server; None if there
            is none.
    """

    def __init__(
        self,
        hosts: Sequence[WorkerHost],
        now_ns: Callable[[], int] = time.monotonic_ns,
        in_thread: Callable[..., Awaitable[Any]] = in_thread,
    ) -> None:
        self._hosts = hosts
        self._loading: Sequence[WorkerHost] = ()
        self._silences: dict[WorkerHost, Silence | None] = {}
        self.on_silence: Callable[[Silence | None], None] = lambda _: None
        self.planned_workers: int = len(hosts)
        self._now_ns = now_ns
        self._in_thread = in_thread

    @property
    def lost_workers(self) -> int:
        """Workers that were lost and could not be replaced."""
        return self.planned_workers - len(self._hosts)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers on this machine."""
        return [host.pid for host in self._hosts if host.pid is not None]

    @property
    def is_local(self) -> bool:
        """Whether every worker is on this machine."""
        return all(host.pid is not None for host in self._hosts)

    @property
    def decoders(self) -> list[Decoder]:
        """Nodes other than this machine, which can decode what was recorded."""
        return [host for host in self._hosts if host.pid is None and isinstance(host, Decoder)]

    async def load(self, order: LoadOrder, sessions: Iterable[WireSession], folder: TrialFolder) -> LoadResult:
        """Apply the load and wait for the last answer; every exchange is then in ``folder``.

        Raises:
            ClientFailed: a worker failed.
            NotWritable: a worker cannot write its log.
            CancelledError: the requests in flight have been recorded as cancelled.
        """
        async with self._assigned(order.share, folder) as workers:
            await self._begin(workers, order, WirePool(sessions))
            replies = await self._from_workers(workers, self._done)
        # After the block: collecting the logs measures the clocks again, and the result states those that the logs use.
        return _merged(replies, workers)

    async def steady(self, order: LoadOrder, plan: SteadyPlan, folder: TrialFolder) -> LoadResult:
        """Apply a steady load: ramp, window and tail; every exchange is then in ``folder``.

        The result has no window if the plan ended the load after the ramp.

        Raises:
            ClientFailed: a worker failed.
            NotWritable: a worker cannot write its log.
            CancelledError: the requests in flight have been recorded as cancelled.
        """
        async with self._assigned(order.share, folder) as workers:
            await self._begin(workers, order, plan.ramp, plan.begun)
            ramp = _ramp(await self._from_workers(workers, lambda host: self._expected(host, Ramped)))
            window = await self._in_thread(plan.window, ramp)
            if window is None:
                await self._from_workers(workers, lambda host: host.send(Finish(abort=True)))
                ended = await self._from_workers(workers, self._done)
                return msgspec.structs.replace(_merged(ended, workers), ramp=ramp)
            start_ns = await self._open_window(workers, window)
            plan.opened(start_ns)
            closed = await self._from_workers(workers, lambda host: self._expected(host, WindowClosed))
            in_flight, overdue = (sum(reply.in_flight for reply in closed), sum(reply.overdue for reply in closed))
            abort = plan.is_lost(in_flight, overdue) or not await self._all_answered(workers, order.timeout_s)
            await self._from_workers(workers, lambda host: host.send(Finish(abort)))
            replies = await self._from_workers(workers, self._done)
            ends_ns = [
                reply.end_ns - worker.host.clock.offset_ns for reply, worker in zip(closed, workers, strict=True)
            ]
        return msgspec.structs.replace(_merged(replies, workers), window=(start_ns, min(ends_ns)), ramp=ramp)

    async def join(self, label: str) -> None:
        """Let the workers of the load in progress send requests to a late target, too."""
        for host in self._loading:
            await host.send(Join(label))

    @contextlib.asynccontextmanager
    async def _assigned(self, share: Share, folder: TrialFolder) -> AsyncGenerator[list["_Worker"]]:
        """Workers with their shares; however the block ends, their logs are in ``folder`` afterwards."""
        await self._renew()
        with scratch_folder() as scratch:
            shares = divided(share, len(self._hosts))
            workers = [
                _Worker(host, part, scratch / str(number), folder.stream_log(number))
                for number, (host, part) in enumerate(zip(self._hosts, shares, strict=False))
            ]
            self._loading, self._silences = [worker.host for worker in workers], {}
            try:
                with without_preempting():
                    yield workers
            except (asyncio.CancelledError, ClientFailed, NotWritable):
                await asyncio.gather(*(_stopped(worker.host) for worker in workers))
                raise
            finally:
                self._loading = ()
                # Not the first failure alone: the logs of the other workers would be cut off.
                collected = (worker.host.collect(worker.log) for worker in workers)
                for result in await asyncio.gather(*collected, return_exceptions=True):
                    if isinstance(result, BaseException):
                        raise result

    async def _renew(self) -> None:
        """Replace lost workers; those that cannot be replaced leave their share to the others.

        Raises:
            WorkerLost: no worker is left.
        """
        kept, errors = list[WorkerHost](), list[WorkerLost]()
        for host in self._hosts:
            try:
                await host.renew()
                kept.append(host)
            except WorkerLost as error:
                errors.append(error)
        if not kept:
            raise errors[0]
        self._hosts = kept

    async def _begin(
        self, workers: Sequence["_Worker"], order: LoadOrder, pool: WirePool, begun: WirePool | None = None
    ) -> None:
        """Prepare every worker, then start all of them at one instant."""
        pools = await self._staged(workers, pool, "first")
        begun_pools = await self._staged(workers, begun, "begun") if begun else [None] * len(workers)
        for worker, sessions, in_progress in zip(workers, pools, begun_pools, strict=True):
            await worker.host.send(
                Prepare(
                    targets=order.targets,
                    balance=order.balance,
                    replica_header=order.replica_header,
                    access=order.access,
                    log=worker.host.remote_path(worker.log),
                    sessions=sessions,
                    begun=in_progress,
                    load=worker.share,
                    timeout_s=order.timeout_s,
                    phase=order.phase,
                    transport=order.transport,
                    format=order.format,
                )
            )
        await self._from_workers(workers, lambda host: self._expected(host, Ready))
        start_ns = self._now_ns() + _HEAD_START_NS
        await self._from_workers(workers, lambda host: host.send(Go(start_ns + host.clock.offset_ns)))

    async def _open_window(self, workers: Sequence["_Worker"], plan: WindowPlan) -> int:
        """Open the window on every worker at one instant; returns that instant."""
        windows = await self._staged(workers, plan.sessions, "window")
        tails = await self._staged(workers, plan.tail, "tail")
        start_ns = self._now_ns() + _HEAD_START_NS
        for worker, window, tail in zip(workers, windows, tails, strict=True):
            local_ns = start_ns + worker.host.clock.offset_ns
            await worker.host.send(Measure(local_ns, local_ns + plan.length_ns, window, tail))
        return start_ns

    async def _staged(self, workers: Sequence["_Worker"], pool: WirePool, name: str) -> list[Pool]:
        """Write the sessions of a part to one file per worker, readable for it."""
        paths = [worker.scratch.with_name(f"{name}-{worker.scratch.name}") for worker in workers]
        cycles = await self._in_thread(write_wire, paths, pool.sessions, pool.stride, pool.period_ns)
        stride = None if pool.stride is None else cycles * pool.stride
        return [
            Pool(await worker.host.stage(path), stride, cycles, cycles * pool.period_ns)
            for worker, path in zip(workers, paths, strict=True)
        ]

    async def _all_answered(self, workers: Sequence["_Worker"], timeout_s: float) -> bool:
        """Whether every request of the window ends in time; those that wait inside the client may not."""
        try:
            async with asyncio.timeout(timeout_s + _STOP_S):
                await self._from_workers(workers, lambda host: self._expected(host, WindowAnswered))
        except TimeoutError:
            return False
        return True

    async def _reply(self, host: WorkerHost) -> Reply:
        """The next reply of a worker; its signs of life are taken note of."""
        while isinstance(reply := await host.reply(), Alive):
            self._silences[host] = reply.silence
            if len(self._silences) == len(self._loading):
                self.on_silence(_shortest(self._silences.values()))
        return reply

    async def _expected(self, host: WorkerHost, kind: type[A]) -> A:
        reply = await self._reply(host)
        if not isinstance(reply, kind):
            raise _failure(host, reply)
        return reply

    async def _done(self, host: WorkerHost) -> Done:
        while isinstance(reply := await self._reply(host), WindowAnswered):
            pass  # the last request ended while the fleet was ending the load
        if not isinstance(reply, Done) or reply.failure is not None or reply.start_ns is None:
            raise _failure(host, reply)
        return reply

    async def _from_workers(
        self, workers: Sequence["_Worker"], work: Callable[[WorkerHost], Coroutine[Any, Any, T]]
    ) -> list[T]:
        """Call ``work`` for every worker concurrently; the first failure cancels the rest."""
        tasks = [asyncio.ensure_future(work(worker.host)) for worker in workers]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class _Worker(msgspec.Struct, frozen=True):
    """One worker in one load; ``scratch`` is the name of its session files, less their prefix."""

    host: WorkerHost
    share: Share
    scratch: Path
    log: Path


@contextlib.asynccontextmanager
async def local_fleet(workers: int = 1, cores: Sequence[int] = ()) -> AsyncGenerator[Fleet]:
    """Workers on this machine; they end with the block, or with this process.

    Args:
        workers: number of processes.
        cores: one per worker to pin it to; empty for none.

    Raises:
        BadExperiment: this process may not use one of the cores.
    """
    if cores and not system.CAN_BIND:
        raise BadExperiment("client.cores: this system binds no process to a core; leave it out")
    usable = system.usable_cores()
    if unusable := [core for core in cores if core not in usable]:
        names = ", ".join(map(str, usable))
        raise BadExperiment(f"client.cores names core {unusable[0]}; this process may use {names}")
    async with contextlib.AsyncExitStack() as stack:
        hosts = [
            await stack.enter_async_context(LocalWorker.started(cores[number] if cores else None))
            for number in range(workers)
        ]
        yield Fleet(hosts)


def divided(share: Share, workers: int) -> list[Share]:
    """Divide a load among workers; there are fewer shares than workers if there are fewer slots."""
    match share:
        case Closed(concurrency, _, minimum):
            used = min(workers, concurrency)
            return [
                msgspec.structs.replace(share, concurrency=_part(concurrency, used, n), minimum=_part(minimum, used, n))
                for n in range(used)
            ]
        case Steady(int(concurrency)):
            used = min(workers, concurrency)
            one = _with_part_of_ramp(share, used)
            return [msgspec.structs.replace(one, concurrency=_part(concurrency, used, n)) for n in range(used)]
        case Open(max_in_flight=cap) | Steady(max_in_flight=cap):
            used = workers if cap is None else min(workers, cap)
            one = share if isinstance(share, Open) else _with_part_of_ramp(share, used)
            return [
                msgspec.structs.replace(one, max_in_flight=None if cap is None else _part(cap, used, n))
                for n in range(used)
            ]


def _with_part_of_ramp(share: Steady, workers: int) -> Steady:
    """The share with the requests that the ramp of each worker needs."""
    return msgspec.structs.replace(share, ramp_requests=-(-share.ramp_requests // workers))


def _part(whole: int, parts: int, number: int) -> int:
    """Part ``number`` of ``whole`` in ``parts`` near-equal integers."""
    return whole // parts + (number < whole % parts)


def _shortest(silences: Collection[Silence | None]) -> Silence | None:
    """The silence towards all workers; None if one of them has heard something."""
    known = [silence for silence in silences if silence is not None]
    if len(known) < len(silences):
        return None
    return Silence(sum(each.in_flight for each in known), min(each.seconds for each in known), known[0].timeout_s)


def _ramp(replies: Sequence[Ramped]) -> Ramped:
    """The result of the ramp for the fleet as a whole."""
    ended = sum(reply.ended for reply in replies)
    means = [(reply.request_s, reply.ended) for reply in replies if reply.request_s is not None]
    request_s = sum(seconds * weight for seconds, weight in means) / ended if means and ended else None
    paces = [(reply.pace, reply.ended) for reply in replies if reply.pace is not None]
    error = math.hypot(*(reply.pace_error * reply.ended for reply in replies)) / ended if ended else 0.0
    failed = sum(reply.failed for reply in replies)
    complete, elapsed_s = all(reply.complete for reply in replies), max(reply.elapsed_s for reply in replies)
    return Ramped(complete, ended, request_s, _mean_pace(paces), error, failed, elapsed_s)


def _mean_pace(paces: Sequence[tuple[Pace, int]]) -> Pace | None:
    """The mean of the workers' paces, weighted by their requests."""
    requests = sum(weight for _, weight in paces)
    if not requests:
        return None
    ttft_s = sum(pace.ttft_s * weight for pace, weight in paces) / requests
    return Pace(ttft_s, sum(pace.token_s * weight for pace, weight in paces) / requests)


def _failure(host: WorkerHost, reply: Reply) -> ClientFailed | NotWritable:
    reason = reply.failure if isinstance(reply, Done) else f"unexpected reply {type(reply).__name__}"
    if isinstance(reply, Done) and reply.unwritable:
        return NotWritable(reason or "a worker cannot write its log")
    return ClientFailed(f"the client worker on {host.host} failed: {reason or 'it stopped without an order'}")


async def _stopped(host: WorkerHost) -> None:
    """Stop a worker and wait until it has recorded everything."""
    with contextlib.suppress(ClientFailed, TimeoutError):
        async with asyncio.timeout(_STOP_S):
            await host.send(Stop())
            while not isinstance(await host.reply(), Stopped):
                pass


def _merged(replies: Sequence[Done], workers: Sequence[_Worker]) -> LoadResult:
    hosts = [worker.host for worker in workers]
    offsets_ns = [host.clock.offset_ns for host in hosts]
    starts_ns = [(reply.start_ns or 0) - offset_ns for reply, offset_ns in zip(replies, offsets_ns, strict=True)]
    ends_ns = [(reply.end_ns or 0) - offset_ns for reply, offset_ns in zip(replies, offsets_ns, strict=True)]
    lags = [reply.loop_lag for reply in replies if reply.loop_lag is not None]
    return LoadResult(
        planned=sum(reply.planned for reply in replies),
        issue=Issue(min(starts_ns), min(ends_ns)),
        loop_lag=_worst(lags) if lags else None,
        clients=[_client_record(reply, host) for reply, host in zip(replies, hosts, strict=True)],
    )


def _worst(lags: Sequence[TelemetryRecord]) -> TelemetryRecord:
    """Each percentile of the worker that is worst in it, and the busy share of the worker with the longest stalls."""
    valid = [lag for lag in lags if not lag.reasons]
    if not valid:
        return lags[0]
    values = {name: max(cast("float", lag.values[name]) for lag in valid) for name in valid[0].values}
    longest = max(valid, key=lambda lag: cast("float", lag.values["loop_lag_p99_s"]))
    return TelemetryRecord(valid[0].t_ns, valid[0].source, {**values, BUSY_SHARE: longest.values[BUSY_SHARE]})


def _client_record(reply: Done, host: WorkerHost) -> ClientRecord:
    return ClientRecord(
        host=host.host,
        planned_requests=reply.planned,
        cpu_s=reply.cpu_s,
        rss_bytes=reply.rss_bytes,
        clock_offset_ns=host.clock.offset_ns,
        clock_uncertainty_ns=host.clock.uncertainty_ns,
    )
