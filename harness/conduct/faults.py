"""Causes an experiment's faults in the window of a trial, and records when."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
import psutil

from bakeoff.engines import Server
from bakeoff.engines.errors import EngineDied
from bakeoff.harness.conduct.replica_control import Control, continued_at_the_end, send_signal
from bakeoff.harness.conduct.replicas import death_of
from bakeoff.harness.errors import FaultFailed
from bakeoff.harness.experiment.faults import Fault
from bakeoff.results.records import FaultAction, FaultRecord
from bakeoff.results.units import NS_PER_S

_SLICE_S = 0.04
"""Period of the stops that slow a server down: too short for a pause, and long beside the cost of a signal."""
_POLL_S = 0.05


class FaultInjector:
    """Causes the faults of one trial.

    Args:
        faults: of the engine, in order of time.
        controls: power over its replicas, by label; None for the engine itself.
        now_ns: clock.
        joined: called with the label of a replica that is ready for its first requests.
        launched: called with each server that is started.
        ready_s: limit on the time of a started replica until it is ready.

    Attributes:
        killed: labels of the servers that were killed, whose end is no failure of the trial; None for the engine.
        ended: set when a server ends by itself that was started here.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        controls: Mapping[str | None, Control],
        now_ns: Callable[[], int],
        *,
        joined: Callable[[str], Awaitable[None]],
        launched: Callable[[Server], Awaitable[None]],
        ready_s: float,
    ) -> None:
        self._faults = faults
        self._controls = controls
        self._now_ns = now_ns
        self._joined = joined
        self._launched = launched
        self._ready_s = ready_s
        self._tasks: list[asyncio.Task[FaultRecord]] = []
        self._begun = 0
        self._starting = set[str | None]()
        self._running: dict[str | None, Server] = {}  # those that were started here
        self._watches: list[asyncio.Task[None]] = []
        self.killed: set[str | None] = set()
        self.ended: asyncio.Event = asyncio.Event()

    def died(self) -> EngineDied | None:
        """The error to raise if a server has ended by itself that was started here, else None."""
        return death_of(self._running)

    def opened(self, start_ns: int) -> None:
        """Schedule the faults of a window that opens at this instant."""
        self._tasks = [asyncio.ensure_future(self._inject(fault, start_ns)) for fault in self._faults]

    async def finish(self) -> list[FaultRecord]:
        """Wait until every fault that has begun has ended and replicas are back; returns the records in order of time.

        One that has begun is waited for even if its load has ended: no trial may leave a server stopped.
        """
        for task in self._tasks[self._begun :]:
            task.cancel()
        return list(await asyncio.gather(*self._tasks[: self._begun]))

    async def aclose(self) -> None:
        """End the faults that have not ended, and the engines that were launched again."""
        for task in (*self._tasks, *self._watches):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._watches, return_exceptions=True)
        for control in self._controls.values():
            await control.close()

    async def _inject(self, fault: Fault, start_ns: int) -> FaultRecord:
        await self._until(start_ns + round(fault.at_s * NS_PER_S))
        self._begun += 1
        record = FaultRecord(fault.action, fault.replica, self._now_ns())
        control = self._controls[fault.replica]
        try:
            self._require_started(fault.replica)
            match fault.action:
                case FaultAction.KILL | FaultAction.RESTART:
                    return await self._kill(fault, control, record)
                case FaultAction.START:
                    return await self._start(fault, control, record)
                case FaultAction.STOP:
                    return await self._stop(fault, control, record)
                case FaultAction.SLOW:
                    return await self._slow(fault, control, record)
        except FaultFailed as error:
            return msgspec.structs.replace(record, error=str(error))

    async def _kill(self, fault: Fault, control: Control, record: FaultRecord) -> FaultRecord:
        self.killed.add(fault.replica)
        self._running.pop(fault.replica, None)
        await control.kill(fault.begin, fault.end)
        if fault.action is FaultAction.KILL:
            return record
        while (left_ns := self._end_ns(fault, record) - self._now_ns()) > 0:
            await asyncio.sleep(min(left_ns / NS_PER_S, _POLL_S))
            if await control.is_back():  # something else starts it as soon as it has ended
                return msgspec.structs.replace(record, ended_ns=record.begun_ns, ready_ns=self._now_ns())
        ended_ns = self._now_ns()
        await self._launch(fault, control)
        return msgspec.structs.replace(record, ended_ns=ended_ns, ready_ns=self._now_ns())

    async def _start(self, fault: Fault, control: Control, record: FaultRecord) -> FaultRecord:
        await self._launch(fault, control)
        ready_ns = self._now_ns()
        assert fault.replica is not None
        await self._joined(fault.replica)
        return msgspec.structs.replace(record, ended_ns=record.begun_ns, ready_ns=ready_ns)

    def _require_started(self, replica: str | None) -> None:
        if replica in self._starting:
            raise FaultFailed(f"{replica or 'the engine'} was still starting; raise at_s")

    async def _launch(self, fault: Fault, control: Control) -> None:
        """Start a server, and watch it if it is the harness's own."""
        self._starting.add(fault.replica)
        try:
            server = await control.start(fault.end, self._ready_s)
        finally:
            self._starting.discard(fault.replica)
        if server is not None:
            self._running[fault.replica] = server
            self._watches.append(asyncio.ensure_future(self._watch(server)))
            await self._launched(server)

    async def _watch(self, server: Server) -> None:
        await server.ended.wait()
        if server in self._running.values():
            self.ended.set()

    async def _stop(self, fault: Fault, control: Control, record: FaultRecord) -> FaultRecord:
        if fault.begin:
            try:
                await control.run(fault.begin)
                await self._until(self._end_ns(fault, record))
            finally:
                await control.run(fault.end)
        else:
            processes = await control.find()
            async with continued_at_the_end(processes):
                send_signal(processes, signal.SIGSTOP)
                await self._until(self._end_ns(fault, record))
        return msgspec.structs.replace(record, ended_ns=self._now_ns())

    async def _slow(self, fault: Fault, control: Control, record: FaultRecord) -> FaultRecord:
        processes: Sequence[psutil.Process] = await control.find()
        slice_ns, slice_start_ns = round(_SLICE_S * NS_PER_S), self._now_ns()
        async with continued_at_the_end(processes):
            while slice_start_ns < self._end_ns(fault, record):
                send_signal(processes, signal.SIGSTOP)
                await self._until(slice_start_ns + round(fault.share * slice_ns))
                send_signal(processes, signal.SIGCONT)
                slice_start_ns += slice_ns
                await self._until(slice_start_ns)
        return msgspec.structs.replace(record, ended_ns=self._now_ns())

    def _end_ns(self, fault: Fault, record: FaultRecord) -> int:
        return record.begun_ns + round((fault.for_s or 0.0) * NS_PER_S)

    async def _until(self, t_ns: int) -> None:
        await asyncio.sleep(max(0, t_ns - self._now_ns()) / NS_PER_S)
