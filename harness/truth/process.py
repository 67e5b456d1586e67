"""The truth server in a process of its own, and the handle that its parent holds."""

import asyncio
import contextlib
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator

import msgspec

from harness.errors import TruthFailed
from harness.host.child import child_process, read_line, send
from harness.truth.answered import Answered
from harness.truth.schedule import Schedule

_READY = b"ready "


class Order(msgspec.Struct):
    """What a truth process is told when it starts: the argument of ``python -m harness.truth``, as JSON."""

    schedule: Schedule = Schedule()
    """The timetable of every answer."""
    port: int = 0
    """To listen on; 0 for a free one."""
    core: int | None = None
    """A core to stay on, at real-time priority where that is allowed (root)."""
    host: str = "127.0.0.1"
    model: str = "truth"
    """The name that ``/v1/models`` lists."""


@contextlib.asynccontextmanager
async def truth_process(
    schedule: Schedule, port: int = 0, *, core: int | None = None, host: str = "127.0.0.1", model: str = "truth"
) -> AsyncGenerator["Truth"]:
    """The server in a process of its own, optionally with a core of its own; ends with the block.

    The arguments are those of :class:`Order`.

    Raises:
        TruthFailed: it cannot listen there, or stay on that core.
    """
    order = msgspec.json.encode(Order(schedule, port, core, host, model)).decode()
    async with child_process("harness.truth", order) as process:
        line = await read_line(process)
        if not line.startswith(_READY):
            raise TruthFailed(line.decode().strip() or "the truth server ended before it was ready")
        yield Truth(process, host, int(line.removeprefix(_READY)))


class Truth:
    """A running truth process.

    Attributes:
        url: its base URL.
        port: on which it listens.
        pid: of the process.
    """

    def __init__(self, process: Process, host: str, port: int) -> None:
        self.url = f"http://{host}:{port}"
        self.port = port
        self.pid = process.pid
        self._process = process
        self._turn = asyncio.Lock()

    async def answered(self) -> list[Answered]:
        """What has been answered so far, with the true times; it writes nothing while it tells."""
        return msgspec.json.decode(await self._order(b"answered"), type=list[Answered])

    async def reset(self) -> None:
        """Forget what has been answered: the next request has number 0, and stalls and restart count from it."""
        await self._order(b"reset")

    async def _order(self, order: bytes) -> bytes:
        async with self._turn:
            await send(self._process, msgspec.Raw(order))
            line = await read_line(self._process)
        if not line:
            raise TruthFailed(f"the truth server has ended (exit code {await self._process.wait()})")
        return line
