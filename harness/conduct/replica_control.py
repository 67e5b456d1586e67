"""Power over one replica: its processes on this machine, or commands that reach it elsewhere."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psutil

from bakeoff.engines import EngineError, Launch, Server, launched
from bakeoff.engines.deployment import is_here
from bakeoff.engines.endpoint import endpoint
from bakeoff.engines.errors import NotReady
from bakeoff.engines.server import require_listener
from bakeoff.engines.tail import status_text, tail
from bakeoff.harness.errors import FaultFailed
from bakeoff.harness.telemetry.own_processes import FORWARDERS, listeners

T = TypeVar("T")
_END_S, _POLL_S = 5.0, 0.01
_COMMAND_S = 30.0
"""Limit of a command that causes or ends a fault, but for one that starts a server."""
_CONTINUE = """
import os, signal, sys
sys.stdin.read()
for pid in sys.argv[1:]:
    try:
        os.kill(int(pid), signal.SIGCONT)
    except OSError:
        pass
"""
_ANYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104  (nothing binds to it)


class Control(Protocol):
    """Power over one replica. Commands are those of the fault; an empty one means its processes on this machine.

    Raises:
        FaultFailed: from every method but ``close``, with the reason.
    """

    async def find(self) -> Sequence[psutil.Process]:
        """Its processes on this machine, parents first."""
        ...

    async def run(self, command: Sequence[str]) -> None:
        """Run a command to its end."""
        ...

    async def kill(self, command: Sequence[str], undo: Sequence[str]) -> None:
        """End its processes at once; if they are not started again before ``close``, ``undo`` is run there."""
        ...

    async def is_back(self) -> bool:
        """Whether it answers again by itself."""
        ...

    async def start(self, command: Sequence[str], limit_s: float) -> Server | None:
        """Start it, and wait until it is ready, or ``limit_s`` seconds; the server, if the harness launches it."""
        ...

    async def close(self) -> None:
        """End a server that the harness launched again; one that ran before the load goes on."""
        ...


class LaunchedControl:
    """Power over an engine that the harness launched.

    Args:
        launch: how.
        server: the running engine.
        log: file that its output is appended to.
    """

    def __init__(self, launch: Launch, server: Server, log: Path) -> None:
        self._launch = launch
        self._server = server
        self._log = log
        self._stack = contextlib.AsyncExitStack()

    async def find(self) -> Sequence[psutil.Process]:
        if self._server.pid is None:
            raise FaultFailed("the engine's processes are not on this machine")
        return _tree([self._server.pid])

    async def run(self, command: Sequence[str]) -> None:
        """Fail: such an engine is started and ended without commands.

        Raises:
            FaultFailed: always.
        """
        raise FaultFailed(f"Bakeoff has started the engine, which {command[0]} cannot reach; leave out begin and end")

    async def kill(self, command: Sequence[str], undo: Sequence[str]) -> None:  # noqa: ARG002  (it has none)
        await asyncio.to_thread(_kill, await self.find())

    async def is_back(self) -> bool:
        """False: only the harness starts it."""
        return False

    async def start(self, command: Sequence[str], limit_s: float) -> Server:  # noqa: ARG002
        try:
            async with asyncio.timeout(limit_s):
                running = launched(self._launch, self._log, self._server.access)
                self._server = await self._stack.enter_async_context(running)
        except (EngineError, TimeoutError) as error:
            raise FaultFailed(str(error) or f"the engine was not ready after {limit_s:g} s") from error
        return self._server

    async def close(self) -> None:
        await self._stack.aclose()


class AddressControl:
    """Power over a running server: over the processes that listen at its address, or by commands.

    Args:
        server: at the address.
        log: file that the output of commands is appended to.
    """

    def __init__(self, server: Server, log: Path) -> None:
        self._server = server
        self._url = server.base_url
        self._log = log
        self._undo: Sequence[str] = ()
        self._started: asyncio.subprocess.Process | None = None

    async def find(self) -> Sequence[psutil.Process]:
        return await asyncio.to_thread(processes_at, self._url)

    async def run(self, command: Sequence[str]) -> None:
        process, start = await self._spawn(command)

        async def ended() -> int:
            try:
                return await asyncio.wait_for(process.wait(), _COMMAND_S)
            except TimeoutError as error:
                os.killpg(process.pid, signal.SIGKILL)  # it has a session of its own
                raise FaultFailed(f"{command[0]} did not end within {_COMMAND_S:g} s") from error

        if status := await _to_its_end(ended()):
            raise FaultFailed(self._failure(command, status, start))

    async def kill(self, command: Sequence[str], undo: Sequence[str]) -> None:
        self._undo = undo  # before the kill: an interruption may come between
        try:
            if command:
                await self.run(command)
                await self._silence(command)
            else:
                await _to_its_end(self._killed(await self.find()))
        except FaultFailed:
            if await self._listens():
                self._undo = ()
            raise

    async def _killed(self, processes: Sequence[psutil.Process]) -> None:
        """Kill processes; one that was started here is waited for, so that nothing of it is left to the event loop."""
        await asyncio.to_thread(_kill, processes)
        if self._started is not None and self._started.pid in {process.pid for process in processes}:
            await self._started.wait()

    async def is_back(self) -> bool:
        return await self._answers()

    async def start(self, command: Sequence[str], limit_s: float) -> None:
        self._undo = ()
        process, start = await self._spawn(command)
        self._started = process
        try:
            async with asyncio.timeout(limit_s):
                while not await self._answers():
                    if process.returncode:
                        raise FaultFailed(self._failure(command, process.returncode, start))
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            raise FaultFailed(f"{self._url} did not answer within {limit_s:g} s of {command[0]}") from error

    async def close(self) -> None:
        if self._undo:
            with contextlib.suppress(FaultFailed):  # an interrupted load must not leave the user's server dead
                await self._silence(self._undo)
                await self._spawn(self._undo)

    async def _silence(self, command: Sequence[str]) -> None:
        """Wait until nothing listens.

        Raises:
            FaultFailed: something does, long after the command.
        """
        deadline_s = time.monotonic() + _END_S
        while await self._listens():
            if time.monotonic() > deadline_s:
                raise FaultFailed(f"{self._url} still answers {_END_S:g} s after {command[0]}")
            await asyncio.sleep(_POLL_S)

    async def _listens(self) -> bool:
        try:
            await require_listener(self._url)
        except NotReady:
            return False
        return True

    async def _answers(self) -> bool:
        """Whether it is ready: servers that load their model answer 503 on their health page, or nothing."""
        if not await self._listens():
            return False
        status, _ = await self._server.ask("GET", "/health", timeout_s=_END_S)
        return 0 < status < 500

    async def _spawn(self, words: Sequence[str]) -> tuple[asyncio.subprocess.Process, int]:
        """Start a command; returns it, and where its output begins in the log."""
        with self._log.open("ab") as output:
            start = output.tell()
            try:
                process = await asyncio.create_subprocess_exec(
                    *words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
            except OSError as error:
                raise FaultFailed(f"{words[0]} cannot be started: {error.strerror}") from error
        return process, start

    def _failure(self, words: Sequence[str], status: int, start: int) -> str:
        is_silent = self._log.stat().st_size == start
        last = "it printed nothing" if is_silent else next(iter(tail(self._log, 1)), "").strip()
        return f"{words[0]} failed ({status_text(status)}): {last}"


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, which goes on to its end if this is cancelled: what undoes it must come after it."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def send_signal(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to those that have not ended.

    Raises:
        FaultFailed: one of them is another user's.
    """
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue
        except psutil.Error as error:
            raise FaultFailed(f"process {process.pid} cannot be signalled: {error}") from error


@contextlib.asynccontextmanager
async def continued_at_the_end(processes: Sequence[psutil.Process]) -> AsyncGenerator[None]:
    """Send SIGCONT at the end of the block, even if this process is killed in it: by a child that waits for the end."""
    pids = [str(process.pid) for process in processes]
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", _CONTINUE, *pids, stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield
    finally:
        send_signal(processes, signal.SIGCONT)
        assert child.stdin is not None
        child.stdin.close()


def processes_at(url: str) -> list[psutil.Process]:
    """The processes of the server at an address of this machine, parents first.

    From the process that listens it goes up to the topmost ancestor of the same process group that started nothing
    else: not the harness, nor what started it, nor a server at another port.

    Raises:
        FaultFailed: none can be seen, or one that only forwards requests listens there.
    """
    address = endpoint(url)
    host, port = address.host, address.port
    if not is_here(host):
        raise FaultFailed(f"{url} is on another host; give begin and end")
    try:
        ports: dict[int, set[int]] = {}
        for each in (sockets := listeners()):
            ports.setdefault(each.pid, set()).add(each.port)
        here = {str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        at_port = [each for each in sockets if each.port == port]
        # A server at this very address comes before one at all addresses.
        exact = [each.pid for each in at_port if each.ip in here]
        found = [psutil.Process(pid) for pid in exact or [each.pid for each in at_port if each.ip in _ANYWHERE]]
        if not found:
            raise FaultFailed(f"no process of this machine that can be seen listens at {url}; give begin and end")
        if forwarder := next((each.name() for each in found if each.name() in FORWARDERS), None):
            raise FaultFailed(f"{forwarder} listens at {url} for the server; give begin and end")
        own = {own_port for each in found for own_port in ports[each.pid]}
        return _tree([_root(each, own, ports).pid for each in found])
    except (psutil.Error, OSError) as error:
        raise FaultFailed(f"the processes at {url} cannot be seen: {error}; give begin and end") from error


def _root(process: psutil.Process, own: set[int], ports: dict[int, set[int]]) -> psutil.Process:
    group = os.getpgid(process.pid)
    while (parent := process.parent()) is not None and parent.pid > 1 and os.getpgid(parent.pid) == group:
        tree = {parent.pid, *(child.pid for child in parent.children(recursive=True))}
        if os.getpid() in tree or any(ports.get(pid, own) - own for pid in tree):
            break
        process = parent
    return process


def _tree(roots: Sequence[int]) -> list[psutil.Process]:
    """Processes and their descendants, parents first.

    Raises:
        FaultFailed: they have ended, or the harness is one of them.
    """
    found: dict[int, psutil.Process] = {}
    for root in roots:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(root)
            found |= {each.pid: each for each in (process, *process.children(recursive=True))}
    if os.getpid() in found:
        raise FaultFailed("the server started this run, which would end with it; start them apart")
    if not any(map(_runs, found.values())):
        raise FaultFailed("its processes had ended already")
    return list(found.values())


def _kill(tree: Sequence[psutil.Process]) -> None:
    """Kill processes, and wait until they have ended."""
    send_signal(tree, signal.SIGKILL)
    deadline_s = time.monotonic() + _END_S
    while left := list(filter(_runs, tree)):
        if time.monotonic() > deadline_s:
            raise FaultFailed(f"process {left[0].pid} did not end within {_END_S:g} s of SIGKILL")
        time.sleep(_POLL_S)


def _runs(process: psutil.Process) -> bool:
    """Whether a process has not ended; one that its parent has not waited for has."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def control_of(launch: Launch | None, server: Server, log: Path) -> Control:
    """Power over a server.

    Args:
        launch: how the harness starts it; None if it ran already.
        server: itself.
        log: for the output of commands.
    """
    if launch is None:
        return AddressControl(server, log)
    return LaunchedControl(launch, server, server.log or log)
