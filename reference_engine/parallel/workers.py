"""Starts, feeds, watches and stops the worker processes of the other ranks."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.errors import EngineUnavailableError
from bakeoff.reference_engine.models.execution import Batch
from bakeoff.reference_engine.parallel.messages import READY, Assignment, encode_assignment, encode_batch

_GRACE_S = 5.0
"""Seconds to wait for a process to exit."""
_PACKAGES = str(Path(__file__).parents[3])


class Workers:
    """The processes of ranks 1 and up; they end with this process, with this object, or on `close`.

    Args:
        config: fully resolved.

    Attributes:
        folder: for rendezvous.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.folder: Path = Path(tempfile.mkdtemp(prefix="reference-engine-"))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Connection] = []
        self._is_closing = threading.Event()
        # An argument that refers to `self` would keep it alive for ever.
        self.close = weakref.finalize(self, _close, self._processes, self._pipes, self._is_closing, self.folder)
        for rank in range(1, config.num_ranks):
            pipe, worker_pipe = Pipe()
            self._pipes.append(pipe)
            with worker_pipe:
                self._processes.append(_start(worker_pipe.fileno()))
            with contextlib.suppress(OSError):  # reported by `await_ready`
                pipe.send_bytes(encode_assignment(Assignment(config, rank, str(self.folder))))

    def await_ready(self) -> None:
        """Waits until every worker has sent `READY`.

        Raises:
            EngineUnavailableError: a worker failed.
        """
        for index, pipe in enumerate(self._pipes):
            message = _read(pipe)
            if message != READY:
                raise _lost([self._described(index, message)])

    def watch(self, on_exit: Callable[[], None]) -> None:
        """Calls `on_exit` from another thread as soon as a worker exits, until `stop_watching`."""
        # Not the pipes: they may hold a message that nobody has read yet.
        ends = [os.pidfd_open(process.pid) for process in self._processes]
        threading.Thread(target=_watch, args=(ends, self._is_closing, on_exit), daemon=True).start()

    def stop_watching(self) -> None:
        """From now on, workers may exit."""
        self._is_closing.set()

    def send(self, batch: Batch) -> None:
        """Sends a batch to all workers.

        Raises:
            EngineUnavailableError: a worker exited.
        """
        message = encode_batch(batch)
        try:
            for pipe in self._pipes:
                pipe.send_bytes(message)
        except OSError as error:
            raise self.failure(error) from error

    def check(self) -> None:
        """Raises EngineUnavailableError if a worker exited."""
        if wait(self._pipes, 0):
            raise self.failure(None)

    def failure(self, error: Exception | None) -> EngineUnavailableError:
        """The error to raise after a failed step; names the workers that exited.

        Args:
            error: raised on rank 0.
        """
        wait(self._pipes, _GRACE_S)
        exited = {index: self._described(index, _read(pipe)) for index, pipe in enumerate(self._pipes) if pipe.poll()}
        # Others end because of one that was killed.
        killed = [described for index, described in exited.items() if (self._processes[index].returncode or 0) < 0]
        return _lost(killed or [*exited.values()] or [f"rank 0 failed: {type(error).__name__}: {error}"])

    def _described(self, index: int, message: bytes | None) -> str:
        process = self._processes[index]
        try:
            status = process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            how = "gave up"
        else:
            how = f"ended with signal {-status}" if status < 0 else f"ended with status {status}"
        reason = f": {message.decode(errors='replace')}" if message else ""
        return f"rank {index + 1} (pid {process.pid}) {how}{reason}"


def _start(descriptor: int) -> "subprocess.Popen[bytes]":
    paths = os.pathsep.join(filter(None, (_PACKAGES, os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-m", "bakeoff.reference_engine.engine.worker", str(descriptor)],
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        stdout=2,  # keeps the output of libraries out of this process's stdout
        env=os.environ | {"PYTHONPATH": paths},
    )


def _read(pipe: Connection) -> bytes | None:
    """Waits for a worker's message; None if it exited."""
    try:
        return pipe.recv_bytes()
    except (EOFError, OSError):
        return None


def _lost(failures: list[str]) -> EngineUnavailableError:
    return EngineUnavailableError(f"a process of the engine failed: {'; '.join(failures)}; start the engine again")


def _watch(ends: list[int], is_closing: threading.Event, on_exit: Callable[[], None]) -> None:
    wait(ends)
    for end in ends:
        os.close(end)
    if not is_closing.is_set():
        on_exit()


def _close(
    processes: "list[subprocess.Popen[bytes]]", pipes: list[Connection], is_closing: threading.Event, folder: Path
) -> None:
    is_closing.set()
    for pipe in pipes:  # only this direction: another thread may be reading
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(pipe.fileno())) as end:
            end.shutdown(socket.SHUT_WR)
    for process in processes:
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:  # it is still starting, or suspended
            process.kill()
            process.wait()
    for pipe in pipes:
        pipe.close()
    shutil.rmtree(folder, ignore_errors=True)
