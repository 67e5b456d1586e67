"""Child processes with a line protocol: an order is a line on stdin, a reply is a line on stdout.

A child has a session of its own, so Ctrl-C in a terminal reaches only the harness. It ends when its stdin closes, so it
never outlives the harness, even one that is killed.
"""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from typing import IO

import msgspec

_STOP_S = 10.0
_MAX_LINE_BYTES = 1 << 31
_TAIL_BYTES = 1 << 16


@contextlib.asynccontextmanager
async def child_process(
    module: str, *arguments: object, stderr: IO[bytes] | int | None = None, stop_s: float = _STOP_S
) -> AsyncGenerator[Process]:
    """Start ``python -m MODULE ARGUMENTS``; it ends with the block, or with this process.

    Args:
        module: module to run.
        arguments: command line; None values are left out.
        stderr: file or descriptor for its stderr; None to inherit this process's.
        stop_s: time to end by itself once its stdin closes, at the end of the block; then its process group is killed.

    Raises:
        OSError: it cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *(str(argument) for argument in arguments if argument is not None),
        stdin=PIPE, stdout=PIPE, stderr=stderr, limit=_MAX_LINE_BYTES, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(stop_s):
                    await process.wait()
        finally:  # also if this end is interrupted
            if process.returncode is None:
                kill(process)
                await process.wait()


async def send(process: Process, order: object) -> None:
    """Write a line of JSON, or a ``msgspec.Raw`` unchanged; if the child has ended, :func:`read_line` shows it."""
    assert process.stdin is not None
    if process.stdin.is_closing():  # uvloop would raise a RuntimeError
        return
    with contextlib.suppress(ConnectionError):
        process.stdin.write(msgspec.json.encode(order) + b"\n")
        await process.stdin.drain()


async def read_line(process: Process) -> bytes:
    """The next line of stdout; empty once the child has ended."""
    assert process.stdout is not None
    with contextlib.suppress(ConnectionError):
        return await process.stdout.readline()
    return b""


def kill(process: Process) -> None:
    """Kill the child and its process group, stopped or not."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def tail(stderr: IO[bytes]) -> str:
    """The last 64 KiB of a file, without moving its position, which the child shares."""
    size_bytes = os.fstat(stderr.fileno()).st_size
    return os.pread(stderr.fileno(), _TAIL_BYTES, max(0, size_bytes - _TAIL_BYTES)).decode(errors="replace").strip()
