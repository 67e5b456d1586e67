"""Finds the processes of an engine that are not descendants of the harness, so that they do not count as foreign load.

Clients, sampler and launched engines are descendants of the harness. An engine in a container is a child of the
container runtime, and an engine at a URL was started by someone else. If its processes cannot be seen, foreign load is
unknown.
"""

import asyncio
import contextlib
import os
import subprocess
from typing import Any, NamedTuple

import psutil

from bakeoff import system
from bakeoff.engines.deployment import is_here
from bakeoff.engines.endpoint import endpoint
from bakeoff.engines.launcher import Launch
from bakeoff.harness.telemetry import OwnProcesses

_ASK_S = 5.0
_SHOWN = 15
"""Characters of a process's name that Linux keeps."""
FORWARDERS = frozenset(
    {
        "OrbStack Helper",
        "caddy",
        "com.docker.backend",
        "docker-proxy",
        "envoy",
        "gvproxy",
        "haproxy",
        "kubectl",
        "limactl",
        "nginx",
        "pasta",
        "rootlessport",
        "slirp4netns",
        "socat",
        "ssh",
        "traefik",
        "vpnkit",
    }
)
"""Programs that listen on an engine's port on its behalf."""


async def own_processes(launch: Launch | None, url: str) -> OwnProcesses:
    """The processes of a server of an engine.

    Args:
        launch: how the harness started it; None if it did not.
        url: its address.
    """
    if launch is not None:
        return await asyncio.to_thread(in_container, launch.container) if launch.container else OwnProcesses()
    return await asyncio.to_thread(at_address, url)


def in_container(argv: tuple[str, ...]) -> OwnProcesses:
    """The first process of a container, as its runtime reports it.

    Args:
        argv: command that prints its pid and the container's id. The pid may belong to another pid namespace, so the
            process must be in a control group of that id.
    """
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        output = subprocess.run(argv, capture_output=True, text=True, timeout=_ASK_S, check=True).stdout
        pid, container = output.split()
        files = system.proc()
        if files is not None and container in (files / str(int(pid)) / "cgroup").read_text(encoding="utf-8"):
            return OwnProcesses((int(pid),))
    return OwnProcesses(unknown="the engine's processes: those of its container cannot be seen from here")


class Listener(NamedTuple):
    """A TCP socket that listens."""

    ip: str
    port: int
    pid: int


def listeners() -> list[Listener]:
    """The listening sockets of the processes of this machine that can be seen.

    Raises:
        psutil.Error, OSError: none can be.
    """
    sockets: list[tuple[Any, int | None]]
    try:
        sockets = [(each, each.pid) for each in psutil.net_connections("tcp")]
    except psutil.AccessDenied:  # on macOS only root sees those of all processes
        processes = psutil.process_iter(["net_connections"])  # None where they cannot be seen
        sockets = [(each, process.pid) for process in processes for each in process.info["net_connections"] or ()]
    listening = ((each, pid) for each, pid in sockets if each.status == psutil.CONN_LISTEN and each.laddr and pid)
    return [Listener(each.laddr.ip, each.laddr.port, pid) for each, pid in listening]


def at_address(url: str) -> OwnProcesses:
    """The processes that listen at ``url``, and those started together with them."""
    address = endpoint(url)
    port = address.port
    if not is_here(address.host):
        return OwnProcesses()
    pids, names = set[int](), set[str]()
    with contextlib.suppress(psutil.Error, OSError):
        listening = {each.pid for each in listeners() if each.port == port}
        names = {psutil.Process(pid).name() for pid in listening}
        pids = {_root(pid) for pid in listening}
    if not pids:
        return OwnProcesses(unknown=f"the engine's processes: none that can be seen listens on port {port}")
    if forwarders := {name for name in names if any(name[:_SHOWN] == each[:_SHOWN] for each in FORWARDERS)}:
        return OwnProcesses(unknown=f"the engine's processes: {', '.join(forwarders)} listens on port {port} for them")
    return OwnProcesses(tuple(sorted(pids)))


def _root(pid: int) -> int:
    """The topmost ancestor in the same process group, since any process of an engine may be the one that listens."""
    process = psutil.Process(pid)
    group = os.getpgid(pid)
    while (parent := process.parent()) is not None and parent.pid > 1 and os.getpgid(parent.pid) == group:
        process = parent
    return process.pid
