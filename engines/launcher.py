"""The one place that starts an engine's process.

Guarantees: the engine runs in a process group of its own under :mod:`engines.guard`, so no exit of the harness
(return, exception, Ctrl-C, ``kill -9``) leaves a process behind; its output goes to one log file; it counts as ready
only when its readiness URL has answered 200; every failure carries the last lines of that log.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator
from pathlib import Path

import aiohttp
import msgspec

from engines import guard
from engines.errors import EngineDied, NotReady, PortInUse

LOG_TAIL_LINES = 20
_POLL_S = 0.05
_GUARD_MARGIN_S = 5.0


class Launch(msgspec.Struct, frozen=True):
    """How one engine is started.

    Attributes:
        argv: program and arguments; no shell.
        port: where it will listen on 127.0.0.1.
        env: added to this process's environment.
        ready_path: answers 200 once the engine can serve.
        ready_timeout_s: how long that may take.
        stop_grace_s: how long SIGINT may take before SIGTERM, and SIGTERM before SIGKILL.
    """

    argv: tuple[str, ...]
    port: int
    env: dict[str, str] = {}
    ready_path: str = "/health"
    ready_timeout_s: float = 120.0
    stop_grace_s: tuple[float, float] = (10.0, 5.0)


class Server:
    """An engine that answers: started by :func:`launched`, or running already (:func:`attached`).

    Attributes:
        base_url: ``http://127.0.0.1:port``, without a trailing slash.
        pid: of the engine's first process; None when it is not ours.
        start_s: from launch to ready; None when it is not ours.
    """

    def __init__(self, base_url: str, *, pid: int | None = None, start_s: float | None = None) -> None:
        self.base_url = base_url
        self.pid = pid
        self.start_s = start_s
        self.exit_status: int | None = None
        """Set when the engine's process has ended while it should run."""
        self.ended = asyncio.Event()
        """Set together with ``exit_status``."""
        self.log: Path | None = None

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> list[str]:
        """The last lines of the engine's output; empty when the engine is not ours."""
        return tail(self.log, lines) if self.log else []

    def died(self) -> EngineDied | None:
        """The error to raise when the engine's process has ended, else None."""
        if self.exit_status is None:
            return None
        return EngineDied(f"the engine's process ended by itself ({_status(self.exit_status)})", self.log_tail())


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a text file, undecodable bytes replaced; empty when there is no file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", errors="replace") as file:
        return [line.rstrip("\n") for line in deque(file, lines)]


def pick_port(wanted: int | None = None) -> int:
    """A free port of 127.0.0.1, or ``wanted`` if it is free.

    Raises:
        PortInUse: something listens on ``wanted``.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted or 0))
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not in 0-65535"
            raise PortInUse(f"port {wanted} cannot be used ({reason}); choose another or leave it out") from error
        return probe.getsockname()[1]


def attached(base_url: str) -> Server:
    """A server that somebody else runs."""
    return Server(base_url)


@contextlib.asynccontextmanager
async def launched(launch: Launch, log: Path) -> AsyncGenerator[Server]:
    """Start an engine, wait until it is ready, yield it, and stop it whatever happens.

    Raises:
        NotReady: the readiness URL did not answer 200 in time.
        EngineDied: the process ended before that.
    """
    process, pid = await _spawn(launch, log)
    server = Server(f"http://127.0.0.1:{launch.port}", pid=pid)
    server.log = log
    watcher = asyncio.ensure_future(_watch(process, server))
    try:
        started = time.monotonic()
        await _ready(launch, server)
        server.start_s = time.monotonic() - started
        yield server
    finally:
        watcher.cancel()  # from here on its end is what we ask for
        await _stop(process, launch)


async def _spawn(launch: Launch, log: Path) -> tuple[asyncio.subprocess.Process, int]:
    grace = [str(seconds) for seconds in launch.stop_grace_s]
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", guard.__file__, *grace, "--", *launch.argv,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=output,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **launch.env}, start_new_session=True,
        )  # fmt: skip
    assert process.stdout is not None
    pid = await process.stdout.readline()
    if not pid:
        await process.wait()
        raise EngineDied(f"cannot start {launch.argv[0]}; is it installed? See {log}", tail(log, LOG_TAIL_LINES))
    return process, int(pid)


async def _watch(process: asyncio.subprocess.Process, server: Server) -> None:
    server.exit_status = await process.wait()
    server.ended.set()


async def _ready(launch: Launch, server: Server) -> None:
    deadline = time.monotonic() + launch.ready_timeout_s
    url = server.base_url + launch.ready_path
    last = "no connection"
    async with aiohttp.ClientSession() as session:
        while (left_s := deadline - time.monotonic()) > 0:
            if server.exit_status is not None:
                raise _not_started(server)
            try:
                async with session.get(url, timeout=aiohttp.ClientTimeout(total=min(5, left_s))) as answer:
                    if answer.status == 200:
                        return
                    last = f"HTTP {answer.status}"
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                last = type(error).__name__
            await asyncio.sleep(_POLL_S)
    raise NotReady(
        f"{url} did not answer 200 within {launch.ready_timeout_s:g} s (last: {last}); see {server.log}",
        server.log_tail(),
    )


async def _stop(process: asyncio.subprocess.Process, launch: Launch) -> None:
    """Ask the guard to stop the engine; kill both if even the guard does not end."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), sum(launch.stop_grace_s) + _GUARD_MARGIN_S)
    except TimeoutError:
        process.kill()  # the engine follows by PR_SET_PDEATHSIG
        await process.wait()


def _not_started(server: Server) -> EngineDied:
    """Why it ended before it was ready: the last thing that it said, which is where programs put their reason.

    Exit status 2 is a program's word for a mistake of its caller: then that line is all there is to know.
    """
    said = [line.strip() for line in server.log_tail() if line.strip()]
    reason = said[-1] if said else f"no output in {server.log}"
    status = server.exit_status or 0
    return EngineDied(f"it did not start ({_status(status)}): {reason}", [] if status == 2 else server.log_tail())


def _status(status: int) -> str:
    return f"signal {status - 128}" if 128 < status <= 128 + signal.NSIG else f"exit status {status}"
