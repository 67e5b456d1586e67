"""The harness's end of the sampler process."""

import asyncio
import contextlib
import itertools
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import msgspec

from harness.telemetry.orders import Mark, Order, OwnProcesses, Sample, ServerPage
from results.errors import NotWritable

MARK_S = 6.0
"""The longest wait for a marked reading: that of a page which has just been asked for, and its own."""


class Sampler:
    """A running sampler; made by :func:`sampler`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
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
        """Sample into ``log`` while the block runs.

        Args:
            log: file of the records.
            engine_pid: first process of an engine that is ours.
            client_pids: of the client's workers.
            server: where the engine tells its own view; None where it does not.
            gpus: those that the engine may use, as ``CUDA_VISIBLE_DEVICES`` names them; None: every one.
            own: processes that are no foreign load, beside this one with all its children.

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
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            await self._process.stdin.drain()
            while line := await self._process.stdout.readline():
                if not line.strip().isdigit():
                    raise NotWritable(line.decode().strip())
                if int(line) == order.number:  # else the answer to an order that was given up
                    return


@contextlib.asynccontextmanager
async def sampler() -> AsyncGenerator[Sampler]:
    """Start the sampler's process; it ends with the block, or with this process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "harness.telemetry",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    try:
        yield Sampler(process)
    finally:
        process.stdin.close()
        await process.wait()
