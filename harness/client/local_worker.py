"""A client worker as a child process on this machine."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from harness.client.orders import Answer, Order
from harness.client.station import WorkerClock
from harness.errors import ClientFailed


class LocalWorker:
    """See :class:`~harness.client.station.Station`; made by :meth:`started`."""

    clock = WorkerClock()

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._decode = msgspec.json.Decoder(Answer).decode
        self.host = socket.gethostname()
        self.pid: int | None = process.pid

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, core: int | None = None) -> AsyncGenerator["LocalWorker"]:
        """Start one; it ends with the block, or with this process."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "harness.client", *([] if core is None else [str(core)]),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        try:
            yield cls(process)
        finally:
            process.stdin.close()
            await process.wait()

    async def send(self, order: Order) -> None:
        """See :class:`~harness.client.station.Station`."""
        assert self._process.stdin is not None
        if self._process.stdin.is_closing():  # uvloop would raise a RuntimeError
            return
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            await self._process.stdin.drain()

    async def answer(self) -> Answer:
        """See :class:`~harness.client.station.Station`."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
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
