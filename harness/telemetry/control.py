"""The sampler process as the harness sees it."""

import asyncio
import contextlib
import itertools
import os
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from bakeoff.harness.host.child import child_process, kill, read_line, send
from bakeoff.harness.telemetry.orders import (
    INTERVAL_NS,
    ExporterPage,
    Include,
    Mark,
    Order,
    OwnProcesses,
    Reply,
    Sample,
    ServerPage,
)
from bakeoff.results.errors import NotWritable

MARK_S = 6.0
"""Longest wait for a marked reading: the page may first have to finish the previous one."""

_ORDER_S = 8.0
"""A sampler that does not carry out an order within this time is killed; the next trial starts another one."""


class Sampler:
    """A running sampler; see :func:`sampler`.

    Args:
        process: its process.
        start: starts another one, for the next trial, once the process has ended.

    Attributes:
        interval_ns: time between two samples of the host.
    """

    interval_ns: int | None = INTERVAL_NS

    def __init__(self, process: Process, start: Callable[[], Awaitable[Process]]) -> None:
        self._process = process
        self._start = start
        self._decode = msgspec.json.Decoder(Reply).decode
        self._numbers = itertools.count(1)

    @contextlib.asynccontextmanager
    async def into(
        self,
        log: Path,
        engine_pids: Sequence[int],
        client_pids: Sequence[int],
        servers: Sequence[ServerPage] = (),
        gpus: str | None = None,
        *,
        own: OwnProcesses = OwnProcesses(),  # noqa: B008  (frozen)
        exporters: Sequence[ExporterPage] = (),
    ) -> AsyncGenerator[None]:
        """Sample into ``log`` while the block runs; the arguments are those of :class:`~.orders.Sample`.

        This process and its children never count as foreign load, in addition to ``own``.

        Raises:
            NotWritable: samples were lost; raised at the end of the block at the latest.
        """
        own = msgspec.structs.replace(own, pids=(os.getpid(), *own.pids))
        order = Sample(
            next(self._numbers), str(log), list(engine_pids), list(client_pids), tuple(servers), gpus, own,
            tuple(exporters),
        )  # fmt: skip
        if not await self._order(order):
            self._process = await self._start()
            await self._order(order)
        try:
            yield
        finally:
            await self._order(Sample(next(self._numbers), None))

    async def mark(self, mark: str) -> None:
        """Read all of the engine's metrics pages now, and wait for them; without the reading of a page that hangs.

        Args:
            mark: name of the readings in the log.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MARK_S):
                await self._order(Mark(next(self._numbers), mark))

    async def include(self, pid: int) -> None:
        """Sample the process tree of ``pid`` as the engine's, too."""
        await self._order(Include(next(self._numbers), pid))

    async def _order(self, order: Order) -> bool:
        """Send one order and wait until it is in effect; False if the sampler has ended.

        A trial goes on without samples, and its verdict says so.

        Raises:
            NotWritable: the sampler cannot write its log.
        """
        try:
            async with asyncio.timeout(_ORDER_S):
                await send(self._process, order)
                while line := await read_line(self._process):
                    reply = self._decode(line)
                    if isinstance(reply, str):
                        raise NotWritable(reply)
                    if reply == order.number:  # else the reply to an earlier order, whose wait timed out
                        return True
        except TimeoutError:  # it was stopped; samples that it would take after a SIGCONT would be of another trial
            kill(self._process)
        return False


@contextlib.asynccontextmanager
async def sampler() -> AsyncGenerator[Sampler]:
    """Start the sampler process; it ends with the block, or with this process."""
    async with contextlib.AsyncExitStack() as processes:

        async def start() -> Process:
            return await processes.enter_async_context(child_process("bakeoff.harness.telemetry"))

        yield Sampler(await start(), start)
