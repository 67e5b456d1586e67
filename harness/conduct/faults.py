"""Causes an experiment's faults in the window of a trial, and records when."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from bakeoff.harness.conduct.replica_control import Control
from bakeoff.harness.errors import FaultFailed
from bakeoff.harness.experiment.faults import Fault
from bakeoff.results.records import FaultAction, FaultRecord
from bakeoff.results.units import NS_PER_S

_SLICE_S = 0.04
"""Period of the stops that slow a server down: too short for a pause, and long beside the cost of a signal."""
_READY_LIMIT_S = 900.0


class FaultInjector:
    """Causes the faults of one trial.

    Args:
        faults: of the engine, in order of time.
        controls: power over its replicas, by label; None for the engine itself.
        now_ns: clock.
    """

    def __init__(
        self, faults: Sequence[Fault], controls: Mapping[str | None, Control], now_ns: Callable[[], int]
    ) -> None:
        self._faults = faults
        self._controls = controls
        self._now_ns = now_ns
        self._tasks: list[asyncio.Task[FaultRecord]] = []

    @property
    def kills_engine(self) -> bool:
        """Whether the engine itself ends, so that its end is no failure of the trial."""
        return any(fault.kills and fault.replica is None for fault in self._faults)

    def opened(self, start_ns: int) -> None:
        """Schedule the faults of a window that opens at this instant."""
        self._tasks = [asyncio.ensure_future(self._inject(fault, start_ns)) for fault in self._faults]

    async def finish(self) -> list[FaultRecord]:
        """Wait until every fault has ended and replicas are back; returns the records, and ends what was launched.

        A fault is waited for even if its load has ended early: no trial may leave a server stopped.
        """
        records = await asyncio.gather(*self._tasks)
        return sorted(records, key=lambda record: record.begun_ns)

    async def aclose(self) -> None:
        """End the engines that were launched again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for control in self._controls.values():
            await control.close()

    async def _inject(self, fault: Fault, start_ns: int) -> FaultRecord:
        await self._until(start_ns + round(fault.at_s * NS_PER_S))
        record = FaultRecord(fault.action, fault.replica, self._now_ns())
        control = self._controls[fault.replica]
        try:
            return await self._carried_out(fault, control, record)
        except FaultFailed as error:
            return msgspec.structs.replace(record, ended_ns=self._now_ns(), error=str(error))

    async def _carried_out(self, fault: Fault, control: Control, record: FaultRecord) -> FaultRecord:
        ends_ns = record.begun_ns + round((fault.for_s or 0.0) * NS_PER_S)
        if fault.kills:
            await control.kill(fault.begin, fault.end)
            if fault.action is FaultAction.KILL:
                return record
            await self._until(ends_ns)
            ended_ns = self._now_ns()
            await control.start(fault.end, _READY_LIMIT_S)
            return msgspec.structs.replace(record, ended_ns=ended_ns, ready_ns=self._now_ns())
        try:
            if fault.action is FaultAction.STOP:
                await control.pause(fault.begin)
                await self._until(ends_ns)
            else:
                await self._slow(fault.share, control, ends_ns)
        finally:
            await control.resume(fault.end)
        return msgspec.structs.replace(record, ended_ns=self._now_ns())

    async def _slow(self, share: float, control: Control, ends_ns: int) -> None:
        while self._now_ns() < ends_ns:
            await control.pause(())
            await asyncio.sleep(share * _SLICE_S)
            await control.resume(())
            await asyncio.sleep((1 - share) * _SLICE_S)

    async def _until(self, t_ns: int) -> None:
        await asyncio.sleep(max(0, t_ns - self._now_ns()) / NS_PER_S)
