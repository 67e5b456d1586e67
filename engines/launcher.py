"""Start and stop engine processes; no other module does.

Guarantees: the engine runs in its own process group under :mod:`bakeoff.engines.guard`, so no exit of the harness
(return, exception, Ctrl-C, ``kill -9``) leaves a process behind, nor does the death of the guard while the harness
lives. Output goes to one log file, with the secrets given to the engine masked. The engine is ready when its readiness
URL answers 200. Every failure carries the last lines of the log.
"""

import asyncio
import contextlib
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import aiohttp
import msgspec

from bakeoff import system
from bakeoff.engines import guard, memory
from bakeoff.engines.access import Access
from bakeoff.engines.errors import EngineDied, NotInstalled, NotReady, OutOfMemory, PortInUse
from bakeoff.engines.remains import MARK, kill_remains
from bakeoff.engines.secrets import MASK, conceal_named, is_maskable, known, without_secrets
from bakeoff.engines.server import LOG_TAIL_LINES, Server, file_beside, redirection
from bakeoff.engines.tail import status_text, tail

_POLL_S = 0.05
_REQUEST_S = 5
_GUARD_MARGIN_S = 5.0
_FILE = re.compile(r"\{file:([^}]+)\}")


class Launch(msgspec.Struct, frozen=True):
    """How to start one engine.

    Attributes:
        argv: program and arguments, without a shell. ``{file:NAME}`` becomes the absolute path of one of ``files``.
        port: port on 127.0.0.1 on which it will listen.
        env: variables to add to this process's environment, which it inherits without variables named as secrets.
        files: configuration files by name, written beside its log.
        cleanup: command that the guard runs after the engine ended for any reason, such as removing a container.
        elsewhere: whether the local process is only a client of the engine, so that sampling it is pointless.
        cores: CPU cores that it may use; empty for all.
        container: command that prints pid and id of the engine's container; empty without a container.
        ready_path: path that answers 200 once the engine can serve.
        drawn: parts of ``argv`` that differ from one start to the next, such as ports and the name of a container.
        listed_model: model that /v1/models must list, to detect another server on the port; None to skip the check.
        ready_timeout_s: limit on the time until ready, in seconds.
        stop_grace_s: seconds between SIGINT and SIGTERM, and between SIGTERM and SIGKILL.
    """

    argv: tuple[str, ...]
    port: int
    env: dict[str, str] = {}
    files: dict[str, str] = {}
    cleanup: tuple[str, ...] = ()
    elsewhere: bool = False
    cores: tuple[int, ...] = ()
    container: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()
    ready_path: str = "/health"
    listed_model: str | None = None
    ready_timeout_s: float = 120.0
    stop_grace_s: tuple[float, float] = (10.0, 5.0)


class _Served(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Served]


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


def require_launching() -> None:
    """Refuse to launch an engine on a system whose processes cannot be ended for certain.

    Raises:
        NotInstalled: this system is one.
    """
    if not system.CAN_LAUNCH:
        raise NotInstalled("engines are launched on Linux only; start this one there, and give its address as url")


@contextlib.asynccontextmanager
async def launched(launch: Launch, log: Path, access: Access = Access()) -> AsyncGenerator[Server]:  # noqa: B008
    """Start an engine, wait until it is ready, yield it, and always stop it.

    Raises:
        NotInstalled: this system launches no engines.
        NotReady: the readiness URL did not answer 200 in time.
        EngineDied: the process ended before it was ready.
    """
    require_launching()
    conceal_named(launch.env)
    mark = secrets.token_hex(8)
    killed_before = memory.kernel_kills()
    process = await _spawn(launch, log, mark, access)
    pid: int | None = None
    watcher: asyncio.Future[None] | None = None
    try:
        pid = await _engine_pid(process, launch, log)
        server = Server(f"http://127.0.0.1:{launch.port}", access, pid=None if launch.elsewhere else pid)
        server.log = log
        watcher = asyncio.ensure_future(_watch(process, server, killed_before))
        started = time.monotonic()
        await _ready(launch, server)
        if launch.listed_model is not None:
            await _require_model(launch.listed_model, server)
        server.start_s = time.monotonic() - started
        yield server
    finally:
        if watcher:
            watcher.cancel()  # the process ends on purpose from here on
        await _stop(process, launch)
        if (
            process.returncode is not None and process.returncode < 0
        ):  # the guard was killed, so its work is left to this process
            await asyncio.to_thread(_finish_for_guard, launch, log, mark, pid)


async def _spawn(launch: Launch, log: Path, mark: str, access: Access) -> asyncio.subprocess.Process:
    """Start the guard, which starts the engine."""
    grace = [str(seconds) for seconds in launch.stop_grace_s]
    argv = [_with_files(word, log) for word in launch.argv]
    for name, content in launch.files.items():
        file_beside(log, name).write_text(content, encoding="utf-8")
    cleanup = [*launch.cleanup, "--"] if launch.cleanup else []
    env = {**without_secrets(os.environ), "PYTHONUNBUFFERED": "1", **launch.env, MARK: mark}
    secrets_line = _secrets_line([*env.values(), *argv, *launch.files.values(), *access.headers.values(), access.query])
    masking = [guard.MASK_OPTION] if secrets_line else []
    cores = [guard.CORES_OPTION, ",".join(map(str, launch.cores))] if launch.cores else []
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", guard.__file__, *grace, *masking, *cores, *cleanup, "--", *argv,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=output,
            env=env, start_new_session=True,
        )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(secrets_line)
    return process


def _secrets_line(values: Sequence[str]) -> bytes:
    """Secrets that the guard must mask in the log: known secrets given to the engine; empty if there are none."""
    text = "\0".join(values)
    lines = {line for secret in known() if secret in text for line in secret.splitlines()}
    secrets = sorted(filter(is_maskable, lines), key=len, reverse=True)
    return "\0".join([MASK, *secrets]).encode(errors="surrogateescape") + b"\n" if secrets else b""


async def _engine_pid(process: asyncio.subprocess.Process, launch: Launch, log: Path) -> int:
    """The engine's pid, which is the guard's first line."""
    assert process.stdout is not None
    pid = await process.stdout.readline()
    if pid:
        return int(pid)
    if await process.wait() == guard.EXIT_CANNOT_START:
        raise EngineDied(f"cannot start {launch.argv[0]}; is it installed? See {log}", tail(log, LOG_TAIL_LINES))
    status = status_text(process.returncode or 0)
    raise EngineDied(f"the guard of {launch.argv[0]} ended before it was started ({status})", tail(log, LOG_TAIL_LINES))


def _finish_for_guard(launch: Launch, log: Path, mark: str, session: int | None) -> None:
    """Kill the engine's remaining processes and run the clean-up."""
    kill_remains(mark, session)
    if launch.cleanup:
        with log.open("ab") as output:
            guard.clean_up(launch.cleanup, output.fileno())


def _with_files(word: str, log: Path) -> str:
    """An argument with ``{file:NAME}`` replaced by the path."""
    return _FILE.sub(lambda named: str(file_beside(log, named[1]).absolute()), word)


async def _watch(process: asyncio.subprocess.Process, server: Server, killed_before: int) -> None:
    server.exit_status = await process.wait()
    server.starved = memory.kernel_kills() > killed_before
    server.ended.set()


async def _ready(launch: Launch, server: Server) -> None:
    deadline = time.monotonic() + launch.ready_timeout_s
    url = server.base_url + launch.ready_path
    last = None
    async with aiohttp.ClientSession() as session:
        while (left_s := deadline - time.monotonic()) > 0:
            if server.exit_status is not None:
                raise _not_started(server)
            try:
                limit = aiohttp.ClientTimeout(total=min(_REQUEST_S, left_s))
                async with session.get(
                    url, headers=server.access.headers, timeout=limit, allow_redirects=False
                ) as answer:
                    if answer.status == 200:
                        return
                    place = redirection(answer)
                    last = f"HTTP {answer.status}{f' to {place}' if place else ''}"
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                # The last request is cut short, and then says less than the one before it.
                if left_s > _REQUEST_S or last is None or not isinstance(error, TimeoutError):
                    last = type(error).__name__
            await asyncio.sleep(_POLL_S)
    raise NotReady(
        f"{url} did not answer 200 within {launch.ready_timeout_s:g} s (last: {last or 'no connection'}); "
        f"see {server.log}",
        server.log_tail(),
    )


async def _require_model(model: str, server: Server) -> None:
    """Raise NotReady unless the server that answers serves the model.

    On another host, another program can take the port while the engine is loading.
    """
    listed = await server.get_json("/v1/models")
    try:
        models = msgspec.convert(listed, _Models).data
    except msgspec.ValidationError:
        models = []
    if model not in (served := [entry.id for entry in models]):
        raise NotReady(
            f"another server answers in place of the engine: it serves {', '.join(served) or 'no model'}, not {model}; "
            "start again, which takes another port",
            server.log_tail(),
        )


async def _stop(process: asyncio.subprocess.Process, launch: Launch) -> None:
    """Ask the guard to stop the engine; kill both if even the guard does not end."""
    assert process.stdin is not None
    process.stdin.close()
    limit_s = sum(launch.stop_grace_s) + _GUARD_MARGIN_S + (guard.CLEANUP_S if launch.cleanup else 0)
    try:
        await asyncio.wait_for(process.wait(), limit_s)
    except TimeoutError:
        process.kill()  # the engine dies with it through PR_SET_PDEATHSIG
        await process.wait()


def _not_started(server: Server) -> EngineDied:
    """Error with the last log line, where programs usually report the reason.

    Exit status 2 conventionally means wrong usage; then that line suffices.
    """
    status = server.exit_status or 0
    died = server.died()
    if status < 0 or isinstance(died, OutOfMemory):
        assert died is not None
        return died
    lines = [line.strip() for line in server.log_tail() if line.strip()]
    reason = lines[-1] if lines else f"no output in {server.log}"
    return EngineDied(f"it did not start ({status_text(status)}): {reason}", [] if status == 2 else server.log_tail())
