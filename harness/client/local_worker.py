"""A client worker as a child process on this machine."""

import contextlib
import socket
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from harness.client.orders import Answer, Order
from harness.client.station import WorkerClock
from harness.errors import ClientFailed
from harness.host.child import child_process, read_line, send


class LocalWorker:
    """See :class:`~harness.client.station.Station`; made by :meth:`started`."""

    clock = WorkerClock()

    def __init__(self, process: Process) -> None:
        self._process = process
        self._decode = msgspec.json.Decoder(Answer).decode
        self.host = socket.gethostname()
        self.pid: int | None = process.pid

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, core: int | None = None) -> AsyncGenerator["LocalWorker"]:
        """Start one; it ends with the block, or with this process."""
        async with child_process("harness.client", core) as process:
            yield cls(process)

    async def send(self, order: Order) -> None:
        """See :class:`~harness.client.station.Station`."""
        await send(self._process, order)

    async def answer(self) -> Answer:
        """See :class:`~harness.client.station.Station`."""
        line = await read_line(self._process)
        if not line:
            code = await self._process.wait()
            raise ClientFailed(f"the client worker on {self.host} ended with status {code}; its last words are above")
        return self._decode(line)

    async def stage(self, path: Path) -> str:
        """The path itself: the file is here."""
        return str(path)

    def place(self, path: Path) -> str:
        """The path itself."""
        return str(path)

    async def collect(self, path: Path) -> None:
        """It is where it should be."""
