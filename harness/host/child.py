"""Child processes that the harness speaks to in lines: one line on stdin is an order, one on stdout an answer.

A child leads a session of its own, so Ctrl-C in a terminal reaches the harness alone. It ends when its stdin closes, so
it never outlives the harness, not even one that is killed.
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
_LONGEST_LINE_BYTES = 1 << 31
_TAIL_BYTES = 1 << 16


@contextlib.asynccontextmanager
async def child_process(
    module: str, *arguments: object, stderr: IO[bytes] | None = None, stop_s: float = _STOP_S
) -> AsyncGenerator[Process]:
    """Start ``python -m MODULE ARGUMENTS``; it ends with the block, or with this process.

    Args:
        module: what to run.
        arguments: those that are None are left out.
        stderr: file for its stderr; None for this process's own.
        stop_s: from the end of the block, when its stdin closes, until its process group is killed.

    Raises:
        OSError: it cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *(str(argument) for argument in arguments if argument is not None),
        stdin=PIPE, stdout=PIPE, stderr=stderr, limit=_LONGEST_LINE_BYTES, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(stop_s):
                await process.wait()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def send(process: Process, order: object) -> None:
    """Write a line of JSON, or a ``msgspec.Raw`` as it is; that the child has ended shows at :func:`read_line`."""
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


def tail(stderr: IO[bytes]) -> str:
    """The end of a file, 64 KiB at most; its position, which it shares with the child, stays."""
    size_bytes = os.fstat(stderr.fileno()).st_size
    return os.pread(stderr.fileno(), _TAIL_BYTES, max(0, size_bytes - _TAIL_BYTES)).decode(errors="replace").strip()
