"""The harness's end of the sampler process."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import msgspec


class Sampler:
    """A running sampler; made by :func:`sampler`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @contextlib.asynccontextmanager
    async def into(self, log: Path, engine_pid: int | None, client_pids: Sequence[int]) -> AsyncGenerator[None]:
        """Sample into ``log`` while the block runs."""
        await self._order({"log": str(log), "engine_pid": engine_pid, "client_pids": list(client_pids)})
        try:
            yield
        finally:
            await self._order({"log": None})

    async def _order(self, order: dict[str, Any]) -> None:
        """Send one order and wait until it holds. A sampler that died costs its log, not the trial."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            await self._process.stdin.drain()
            await self._process.stdout.readline()


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
