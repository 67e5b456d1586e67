"""A client worker as a child process on this machine."""

import contextlib
import socket
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from harness.client.orders import Order, Reply
from harness.client.worker_host import WorkerClock
from harness.errors import ClientFailed
from harness.host.child import child_process, read_line, send


class LocalWorker:
    """A :class:`~harness.client.worker_host.WorkerHost`; see :meth:`started`."""

    clock = WorkerClock()

    def __init__(self, process: Process) -> None:
        self._process = process
        self._decode = msgspec.json.Decoder(Reply).decode
        self.host = socket.gethostname()
        self.pid: int | None = process.pid

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, core: int | None = None) -> AsyncGenerator["LocalWorker"]:
        """Start a worker; it ends with the block, or with this process."""
        async with child_process("harness.client", core) as process:
            yield cls(process)

    async def send(self, order: Order) -> None:
        """See :class:`~harness.client.worker_host.WorkerHost`."""
        await send(self._process, order)

    async def reply(self) -> Reply:
        """See :class:`~harness.client.worker_host.WorkerHost`."""
        line = await read_line(self._process)
        if not line:
            code = await self._process.wait()
            raise ClientFailed(f"the client worker on {self.host} ended with status {code}; its error output is above")
        return self._decode(line)

    async def stage(self, path: Path) -> str:
        """The path itself: the worker reads it here."""
        return str(path)

    def remote_path(self, path: Path) -> str:
        """The path itself."""
        return str(path)

    async def collect(self, path: Path) -> None:
        """Do nothing: the file is already there."""
