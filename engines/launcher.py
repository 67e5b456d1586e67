"""The one place that starts an engine's process.

Guarantees: the engine runs in a process group of its own under :mod:`engines.guard`, so no exit of the harness
(return, exception, Ctrl-C, ``kill -9``) leaves a process behind; its output goes to one log file; it counts as ready
only when its readiness URL has answered 200; every failure carries the last lines of that log.
"""

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import aiohttp
import msgspec

from engines import guard
from engines.errors import EngineDied, NotReady, PortInUse
from engines.secrets import conceal_named, known, masked
from engines.server import LOG_TAIL_LINES, Access, Server
from engines.tail import status_text, tail

_POLL_S = 0.05
_GUARD_MARGIN_S = 5.0


class Launch(msgspec.Struct, frozen=True):
    """How one engine is started.

    Attributes:
        argv: program and arguments; no shell. ``{file:NAME}`` stands for the path of one of ``files``.
        port: where it will listen on 127.0.0.1.
        env: added to this process's environment.
        files: configuration that it reads, by name; written beside its log.
        cleanup: run by the guard when the engine is gone, whatever ended it: what removes a container.
        ready_path: answers 200 once the engine can serve.
        ready_timeout_s: how long that may take.
        stop_grace_s: how long SIGINT may take before SIGTERM, and SIGTERM before SIGKILL.
    """

    argv: tuple[str, ...]
    port: int
    env: dict[str, str] = {}
    files: dict[str, str] = {}
    cleanup: tuple[str, ...] = ()
    ready_path: str = "/health"
    ready_timeout_s: float = 120.0
    stop_grace_s: tuple[float, float] = (10.0, 5.0)


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


@contextlib.asynccontextmanager
async def launched(launch: Launch, log: Path, access: Access = Access()) -> AsyncGenerator[Server]:  # noqa: B008
    """Start an engine, wait until it is ready, yield it, and stop it whatever happens.

    Raises:
        NotReady: the readiness URL did not answer 200 in time.
        EngineDied: the process ended before that.
    """
    conceal_named(launch.env)
    process, pid = await _spawn(launch, log)
    server = Server(f"http://127.0.0.1:{launch.port}", access, pid=pid)
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
        _mask(log)


async def _spawn(launch: Launch, log: Path) -> tuple[asyncio.subprocess.Process, int]:
    grace = [str(seconds) for seconds in launch.stop_grace_s]
    argv = [_with_file(word, log) for word in launch.argv]
    for name, content in launch.files.items():
        _file(log, name).write_text(content, encoding="utf-8")
    cleanup = [*launch.cleanup, "--"] if launch.cleanup else []
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", guard.__file__, *grace, *cleanup, "--", *argv,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=output,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **launch.env}, start_new_session=True,
        )  # fmt: skip
    assert process.stdout is not None
    pid = await process.stdout.readline()
    if not pid:
        await process.wait()
        raise EngineDied(f"cannot start {launch.argv[0]}; is it installed? See {log}", tail(log, LOG_TAIL_LINES))
    return process, int(pid)


def _file(log: Path, name: str) -> Path:
    return log.with_name(f"{log.stem}-{name}")


def _with_file(word: str, log: Path) -> str:
    """A word of the command line with the path of a configuration file in it, where it names one."""
    before, found, rest = word.partition("{file:")
    if not found:
        return word
    name, _, after = rest.partition("}")
    return f"{before}{_file(log, name).absolute()}{after}"


def _mask(log: Path) -> None:
    """Take secrets out of what the engine printed; engines print their configuration."""
    said = log.read_text(encoding="utf-8", errors="surrogateescape")
    if any(secret in said for secret in known()):
        log.write_text(masked(said), encoding="utf-8", errors="surrogateescape")


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
                limit = aiohttp.ClientTimeout(total=min(5, left_s))
                async with session.get(url, headers=server.access.headers, timeout=limit) as answer:
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
    return EngineDied(f"it did not start ({status_text(status)}): {reason}", [] if status == 2 else server.log_tail())
