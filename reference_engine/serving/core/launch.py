"""Starts engine processes."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Protocol

from bakeoff.reference_engine.core.config import EngineConfig

_GRACE_S = 10.0  # seconds that the current step may take after the server has closed the socket


class Core(Protocol):
    """An engine that runs beside the event loop.

    Attributes:
        socket: our end; closing it ends the engine.
    """

    socket: socket.socket

    def kill(self) -> None:
        """Kills the engine at once."""
        ...

    async def ended(self) -> str:
        """Waits until the engine has ended; returns how it ended."""
        ...


Starter = Callable[[EngineConfig, int], Core]
"""Starts the engine of one replica."""


class CoreProcess:
    """A child process; see `Core`.

    Args:
        config: has the number of replicas, among which the GPUs are divided.
        number: of the replica, from 0.
    """

    def __init__(self, config: EngineConfig, number: int) -> None:
        self.socket, child_end = socket.socketpair()
        with child_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bakeoff.reference_engine.serving.core", str(child_end.fileno())],
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_devices(config, number)},
            )

    def kill(self) -> None:
        self._process.kill()

    async def ended(self) -> str:
        try:
            status = await asyncio.to_thread(self._process.wait, _GRACE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            status = await asyncio.to_thread(self._process.wait)
        if status == -signal.SIGKILL:
            return "killed; perhaps memory ran out"
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _devices(config: EngineConfig, number: int) -> dict[str, str]:
    """Environment with only a replica's own GPUs visible; an empty variable hides all and stays empty."""
    if config.data_parallel_size == 1 or config.device == "cpu":
        return {}
    visible, share = os.environ.get("CUDA_VISIBLE_DEVICES"), config.num_ranks
    names = [str(i) for i in range(config.num_processes)] if visible is None else visible.split(",")
    return {"CUDA_VISIBLE_DEVICES": ",".join(names[number * share : (number + 1) * share])}
