"""Power over the processes of one replica on this machine: kill, start, pause."""

import asyncio
import contextlib
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import psutil

from bakeoff.engines import EngineError, Launch, Server, launched
from bakeoff.engines.errors import NotReady
from bakeoff.engines.server import require_listener
from bakeoff.engines.tail import status_text, tail
from bakeoff.harness.errors import FaultFailed
from bakeoff.harness.telemetry.own_processes import at_address

_END_S, _POLL_S = 5.0, 0.01


class Control(Protocol):
    """Power over one replica. Commands are those of the fault; an empty one means its processes on this machine.

    Raises:
        FaultFailed: from every method but ``close``, with the reason.
    """

    async def kill(self, command: Sequence[str], undo: Sequence[str]) -> None:
        """End its processes at once; if they are not started again before ``close``, ``undo`` is run there."""
        ...

    async def start(self, command: Sequence[str], limit_s: float) -> None:
        """Start it again, and wait until it is ready, or ``limit_s`` seconds."""
        ...

    async def pause(self, command: Sequence[str]) -> None:
        """Stop its processes."""
        ...

    async def resume(self, command: Sequence[str]) -> None:
        """Let them continue."""
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

    async def kill(self, command: Sequence[str], undo: Sequence[str]) -> None:  # noqa: ARG002  (it has none)
        """See `Control.kill`."""
        await asyncio.to_thread(_kill, self._roots())

    async def start(self, command: Sequence[str], limit_s: float) -> None:  # noqa: ARG002
        """See `Control.start`."""
        try:
            async with asyncio.timeout(limit_s):
                running = launched(self._launch, self._log, self._server.access)
                self._server = await self._stack.enter_async_context(running)
        except (EngineError, TimeoutError) as error:
            raise FaultFailed(str(error) or f"the engine was not ready after {limit_s:g} s") from error

    async def pause(self, command: Sequence[str]) -> None:  # noqa: ARG002
        """See `Control.pause`."""
        _signal(self._roots(), signal.SIGSTOP)

    async def resume(self, command: Sequence[str]) -> None:  # noqa: ARG002
        """See `Control.resume`."""
        _signal(self._roots(), signal.SIGCONT)

    async def close(self) -> None:
        """See `Control.close`."""
        await self._stack.aclose()

    def _roots(self) -> Sequence[int]:
        if self._server.pid is None:
            raise FaultFailed("the engine's processes are not on this machine")
        return [self._server.pid]


class AddressControl:
    """Power over a running server: over the processes that listen at its address, or by commands.

    Args:
        url: its address.
        log: file that the output of commands is appended to.
    """

    def __init__(self, url: str, log: Path) -> None:
        self._url = url
        self._log = log
        self._paused: Sequence[int] = ()
        self._undo: Sequence[str] = ()

    async def kill(self, command: Sequence[str], undo: Sequence[str]) -> None:
        """See `Control.kill`."""
        self._undo = undo  # before the kill: an interruption may come between
        try:
            if command:
                await self._run(command)
            else:
                await asyncio.to_thread(lambda: _kill(self._roots()))
        except FaultFailed:
            self._undo = ()
            raise

    async def start(self, command: Sequence[str], limit_s: float) -> None:
        """See `Control.start`."""
        self._undo = ()
        process = await self._spawn(command)
        try:
            async with asyncio.timeout(limit_s):
                while not await self._listens():
                    if process.returncode:
                        raise FaultFailed(self._failure(command, process.returncode))
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            raise FaultFailed(f"nothing listened at {self._url} after {limit_s:g} s") from error

    async def pause(self, command: Sequence[str]) -> None:
        """See `Control.pause`."""
        if command:
            await self._run(command)
            return
        self._paused = self._paused or await asyncio.to_thread(self._roots)
        _signal(self._paused, signal.SIGSTOP)

    async def resume(self, command: Sequence[str]) -> None:
        """See `Control.resume`."""
        if command:
            await self._run(command)
        elif self._paused:
            _signal(self._paused, signal.SIGCONT)

    async def close(self) -> None:
        """See `Control.close`."""
        if self._undo:
            with contextlib.suppress(FaultFailed):  # an interrupted load must not leave the user's server dead
                await self._spawn(self._undo)

    def _roots(self) -> Sequence[int]:
        found = at_address(self._url)
        if not found.pids:
            raise FaultFailed(
                f"{found.unknown or f'no process of this machine listens at {self._url}'}; give begin and end"
            )
        return found.pids

    async def _listens(self) -> bool:
        try:
            await require_listener(self._url)
        except NotReady:
            return False
        return True

    async def _run(self, words: Sequence[str]) -> None:
        if status := await (await self._spawn(words)).wait():
            raise FaultFailed(self._failure(words, status))

    async def _spawn(self, words: Sequence[str]) -> asyncio.subprocess.Process:
        with self._log.open("ab") as output:
            try:
                return await asyncio.create_subprocess_exec(
                    *words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
            except OSError as error:
                raise FaultFailed(f"{words[0]} cannot be started: {error.strerror}") from error

    def _failure(self, words: Sequence[str], status: int) -> str:
        last = next(iter(tail(self._log, 1)), "it printed nothing")
        return f"{words[0]} failed ({status_text(status)}): {last.strip()}"


def _tree(roots: Sequence[int]) -> list[psutil.Process]:
    """Processes and their descendants, parents first."""
    found: dict[int, psutil.Process] = {}
    for root in roots:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(root)
            found |= {each.pid: each for each in (process, *process.children(recursive=True))}
    if not found:
        raise FaultFailed("its processes had ended already")
    return list(found.values())


def _signal(roots: Sequence[int], number: signal.Signals) -> None:
    for process in _tree(roots):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _kill(roots: Sequence[int]) -> None:
    """Kill processes and their descendants, and wait until they have ended."""
    tree = _tree(roots)
    for process in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
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


def control_of(launch: Launch | None, server: Server, url: str, log: Path) -> Control:
    """Power over a replica.

    Args:
        launch: how the harness started it; None if it ran already.
        server: the running engine.
        url: of the replica, if it ran already.
        log: for the output of commands.
    """
    return LaunchedControl(launch, server, server.log or log) if launch else AddressControl(url, log)
