"""The sampler process as the harness sees it."""

import asyncio
import contextlib
import itertools
import os
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import msgspec

from harness.host.child import child_process, read_line, send
from harness.telemetry.orders import Mark, Order, OwnProcesses, Reply, Sample, ServerPage
from results.errors import NotWritable

MARK_S = 6.0
"""Longest wait for a marked reading: the page may first have to finish the previous one."""


class Sampler:
    """A running sampler; see :func:`sampler`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._decode = msgspec.json.Decoder(Reply).decode
        self._numbers = itertools.count(1)

    @contextlib.asynccontextmanager
    async def into(
        self,
        log: Path,
        engine_pid: int | None,
        client_pids: Sequence[int],
        server: ServerPage | None = None,
        gpus: str | None = None,
        *,
        own: OwnProcesses = OwnProcesses(),  # noqa: B008  (frozen)
    ) -> AsyncGenerator[None]:
        """Sample into ``log`` while the block runs; for the arguments see :class:`~harness.telemetry.orders.Sample`.

        This process and its children never count as foreign load, in addition to ``own``.

        Raises:
            NotWritable: samples were lost; raised at the end of the block at the latest.
        """
        own = msgspec.structs.replace(own, pids=(os.getpid(), *own.pids))
        await self._order(Sample(next(self._numbers), str(log), engine_pid, list(client_pids), server, gpus, own))
        try:
            yield
        finally:
            await self._order(Sample(next(self._numbers), None))

    async def mark(self, mark: str) -> None:
        """Read the engine's whole metrics page now, and wait for it; without a reading if the page hangs.

        Args:
            mark: name of the reading in the log.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MARK_S):
                await self._order(Mark(next(self._numbers), mark))

    async def _order(self, order: Order) -> None:
        """Send one order and wait until it is in effect. If the sampler has died, the trial goes on without samples.

        Raises:
            NotWritable: the sampler cannot write its log.
        """
        await send(self._process, order)
        while line := await read_line(self._process):
            reply = self._decode(line)
            if isinstance(reply, str):
                raise NotWritable(reply)
            if reply == order.number:  # else the reply to an earlier order, whose wait timed out
                return


@contextlib.asynccontextmanager
async def sampler() -> AsyncGenerator[Sampler]:
    """Start the sampler process; it ends with the block, or with this process."""
    async with child_process("harness.telemetry") as process:
        yield Sampler(process)
