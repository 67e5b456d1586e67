"""The harness's end of the sampler process."""

import asyncio
import contextlib
import itertools
import os
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import msgspec

from harness.host.child import child_process, read_line, send
from harness.telemetry.orders import Answer, Mark, Order, OwnProcesses, Sample, ServerPage
from results.errors import NotWritable

MARK_S = 6.0
"""The longest wait for a marked reading: that of a page which has just been asked for, and its own."""


class Sampler:
    """A running sampler; made by :func:`sampler`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._decode = msgspec.json.Decoder(Answer).decode
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

        This process with all its children is no foreign load either, beside ``own``.

        Raises:
            NotWritable: samples were lost; said at the end of the block at the latest.
        """
        own = msgspec.structs.replace(own, pids=(os.getpid(), *own.pids))
        await self._order(Sample(next(self._numbers), str(log), engine_pid, list(client_pids), server, gpus, own))
        try:
            yield
        finally:
            await self._order(Sample(next(self._numbers), None))

    async def mark(self, mark: str) -> None:
        """Read the engine's own page now, whole, and wait until that is done; a page that hangs costs its reading.

        Args:
            mark: what the reading is called in the log.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MARK_S):
                await self._order(Mark(next(self._numbers), mark))

    async def _order(self, order: Order) -> None:
        """Send one order and wait until it holds. A sampler that died costs its log, not the trial.

        Raises:
            NotWritable: the sampler cannot write its log.
        """
        await send(self._process, order)
        while line := await read_line(self._process):
            answer = self._decode(line)
            if isinstance(answer, str):
                raise NotWritable(answer)
            if answer == order.number:  # else the answer to an order that was given up
                return


@contextlib.asynccontextmanager
async def sampler() -> AsyncGenerator[Sampler]:
    """Start the sampler's process; it ends with the block, or with this process."""
    async with child_process("harness.telemetry") as process:
        yield Sampler(process)
