"""A client worker as a child process on this machine."""

import asyncio
import contextlib
import socket
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import msgspec

from bakeoff.harness.client.fleet.worker_host import WorkerClock
from bakeoff.harness.client.wire.orders import Order, Reply
from bakeoff.harness.errors import WorkerLost
from bakeoff.harness.host.child import child_process, kill, read_line, send

SILENT_S = 10.0
"""A worker that says nothing for this time, though it reports every two seconds that it runs, is lost."""


class LocalWorker:
    """A :class:`~bakeoff.harness.client.fleet.worker_host.WorkerHost`; see :meth:`started`."""

    clock: WorkerClock = WorkerClock()

    def __init__(self, process: Process, start: Callable[[], Awaitable[Process]]) -> None:
        self._process = process
        self._start = start
        self._decode = msgspec.json.Decoder(Reply).decode
        self.host: str = socket.gethostname()

    @property
    def pid(self) -> int | None:
        """Process id of the worker."""
        return self._process.pid

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, core: int | None = None) -> AsyncGenerator["LocalWorker"]:
        """Start a worker; it ends with the block, or with this process."""
        async with contextlib.AsyncExitStack() as processes:

            async def start() -> Process:
                return await processes.enter_async_context(child_process("bakeoff.harness.client.worker", core))

            yield cls(await start(), start)

    async def renew(self) -> None:
        if self._process.returncode is not None:
            self._process = await self._start()

    async def send(self, order: Order) -> None:
        await send(self._process, order)

    async def reply(self) -> Reply:
        try:
            async with asyncio.timeout(SILENT_S):
                line = await read_line(self._process)
        except TimeoutError:
            kill(self._process)
            await self._process.wait()
            raise WorkerLost(
                f"the client worker on {self.host} was silent for {SILENT_S:g} s and was killed; it was stopped, or "
                "the machine is overloaded"
            ) from None
        if not line:
            code = await self._process.wait()
            raise WorkerLost(f"the client worker on {self.host} ended with status {code}")
        return self._decode(line)

    async def stage(self, path: Path) -> str:
        """The path itself: the worker reads it here."""
        return str(path)

    def remote_path(self, path: Path) -> str:
        """The path itself."""
        return str(path)

    async def collect(self, path: Path) -> None:
        """Do nothing: the file is already there."""
