"""The truth server in a process of its own, and the handle that its parent holds."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator

import msgspec

from harness.errors import TruthFailed
from harness.truth.answered import Answered
from harness.truth.schedule import Schedule

_LONGEST_LINE_BYTES = 1 << 31
_READY = b"ready "


class Order(msgspec.Struct):
    """What a truth process is told when it starts: the argument of ``python -m harness.truth``, as JSON."""

    schedule: Schedule = Schedule()
    port: int = 0
    """0 for a free one."""
    core: int | None = None
    """A core to stay on, at real-time priority where that is allowed."""
    host: str = "127.0.0.1"
    model: str = "truth"


@contextlib.asynccontextmanager
async def truth_process(
    schedule: Schedule, port: int = 0, *, core: int | None = None, host: str = "127.0.0.1", model: str = "truth"
) -> AsyncGenerator["Truth"]:
    """The server in a process of its own, optionally with a core of its own; ends with the block.

    Args:
        schedule: the timetable of every answer.
        port: to listen on; 0 for a free one.
        core: the core to stay on, at real-time priority where that is allowed (root).
        host: address to listen on.
        model: the name that ``/v1/models`` lists.

    Raises:
        TruthFailed: it cannot listen there, or stay on that core.
    """
    order = msgspec.json.encode(Order(schedule, port, core, host, model)).decode()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "harness.truth", order,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=_LONGEST_LINE_BYTES,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = await process.stdout.readline()
        if not line.startswith(_READY):
            raise TruthFailed(line.decode().strip() or "the truth server ended before it was ready")
        yield Truth(process, host, int(line.removeprefix(_READY)))
    finally:
        process.stdin.close()
        await process.wait()


class Truth:
    """A running truth process.

    Attributes:
        url: its base URL.
        port: on which it listens.
        pid: of the process.
    """

    def __init__(self, process: asyncio.subprocess.Process, host: str, port: int) -> None:
        self.url = f"http://{host}:{port}"
        self.port = port
        self.pid = process.pid
        self._process = process
        self._turn = asyncio.Lock()

    async def answered(self) -> list[Answered]:
        """What has been answered so far, with the true times; it writes nothing while it tells."""
        return msgspec.json.decode(await self._order(b"answered\n"), type=list[Answered])

    async def reset(self) -> None:
        """Forget what has been answered: the next request has number 0, and stalls and restart count from it."""
        await self._order(b"reset\n")

    async def _order(self, order: bytes) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        async with self._turn:
            self._process.stdin.write(order)
            await self._process.stdin.drain()
            line = await self._process.stdout.readline()
        if not line:
            raise TruthFailed(f"the truth server has ended (exit code {await self._process.wait()})")
        return line
