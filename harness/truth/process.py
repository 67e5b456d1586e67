"""The truth server in a process of its own, and its parent's handle."""

import asyncio
import contextlib
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator

import msgspec

from bakeoff.harness.errors import TruthFailed
from bakeoff.harness.host.child import child_process, read_line, send
from bakeoff.harness.truth.answered import Answered, Ending
from bakeoff.harness.truth.schedule import Schedule

_READY = b"ready "


class Options(msgspec.Struct):
    """The argument of ``python -m bakeoff.harness.truth``, as JSON."""

    schedule: Schedule = Schedule()
    """Timing and faults of every answer."""
    port: int = 0
    """To listen on; 0 for a free one."""
    core: int | None = None
    """Core to pin the process to, at real-time priority where that is allowed (root)."""
    host: str = "127.0.0.1"
    model: str = "truth"
    """Name that ``/v1/models`` lists."""
    replica: int | None = None
    """Number of this replica, from 1; None if it is none."""
    keep: bool = True
    """Whether to keep the record for :meth:`Truth.answered`."""
    log: str | None = None
    """File to append the record of each answer to."""


class Summary(msgspec.Struct):
    """What a server has done."""

    accepted: int
    """Connections."""
    endings: dict[Ending, int]
    """Count of answers by how they ended."""

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {ending}" for ending, count in sorted(self.endings.items()))
        return f"{sum(self.endings.values())} answers over {self.accepted} connections{': ' * bool(ends)}{ends}"


@contextlib.asynccontextmanager
async def truth_process(
    schedule: Schedule,
    port: int = 0,
    *,
    core: int | None = None,
    host: str = "127.0.0.1",
    model: str = "truth",
    replica: int | None = None,
    keep: bool = True,
    log: str | None = None,
) -> AsyncGenerator["Truth"]:
    """Run the server in a process of its own until the end of the block.

    The arguments are the fields of :class:`Options`.

    Raises:
        TruthFailed: it cannot listen there, be pinned to that core, or write the log.
    """
    options = msgspec.json.encode(Options(schedule, port, core, host, model, replica, keep, log)).decode()
    async with child_process("bakeoff.harness.truth", options) as process:
        line = await read_line(process)
        if not line.startswith(_READY):
            raise TruthFailed(line.decode().strip() or "the truth server ended before it was ready")
        yield Truth(process, host, int(line.removeprefix(_READY)))


class Truth:
    """A running truth process.

    Attributes:
        url: its base URL.
        port: on which it listens.
        pid: its process id.
    """

    def __init__(self, process: Process, host: str, port: int) -> None:
        self.url: str = f"http://{host}:{port}"
        self.port = port
        self.pid: int = process.pid
        self._process = process
        self._exchange = asyncio.Lock()

    async def answered(self) -> list[Answered]:
        """The record so far. The server writes nothing while it sends it."""
        return msgspec.json.decode(await self._call(b"answered"), type=list[Answered])

    async def reset(self) -> None:
        """Clear the record: the next request has number 0, and stalls and restart count from it."""
        await self._call(b"reset")

    async def stop(self) -> Summary:
        """End the server: answers in progress are cut off, and its log is complete."""
        return msgspec.json.decode(await self._call(b"stop"), type=Summary)

    async def ended(self) -> int:
        """Wait until the process has ended; returns its exit code."""
        return await self._process.wait()

    async def _call(self, command: bytes) -> bytes:
        async with self._exchange:
            await send(self._process, msgspec.Raw(command))
            line = await read_line(self._process)
        if not line:
            raise TruthFailed(f"the truth server has ended (exit code {await self._process.wait()})")
        return line
