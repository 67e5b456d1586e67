"""Processes of engines that the harness did not start: in a container, and at an address."""

import asyncio
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bakeoff import system
from bakeoff.engines.launcher import Launch
from bakeoff.harness.telemetry import OwnProcesses
from bakeoff.harness.telemetry.own_processes import at_address, in_container, own_processes


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def url_of(server: socket.socket, host: str = "127.0.0.1") -> str:
    return f"http://{host}:{server.getsockname()[1]}"


def saying(words: str) -> tuple[str, ...]:
    return (sys.executable, "-c", f"print({words!r})")


def test_an_engine_that_the_harness_launched_is_below_it() -> None:
    assert asyncio.run(own_processes(Launch(("engine",), 8000), "")) == OwnProcesses()


def test_an_engine_on_another_host_uses_nothing_of_this_one() -> None:
    assert asyncio.run(own_processes(None, "http://192.0.2.7:8000")) == OwnProcesses()


def test_an_engine_at_an_address_here_is_who_listens_there(listening: socket.socket) -> None:
    """Its process group counts, too; the listener may be any member of it."""
    processes = at_address(url_of(listening, "localhost"))
    (root,) = processes.pids
    family = [process.pid for process in [psutil.Process(), *psutil.Process().parents()]]
    assert root in family
    assert {os.getpgid(pid) for pid in family[: family.index(root) + 1]} == {os.getpgid(0)}


def test_a_port_without_a_visible_listener() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        processes = at_address(url_of(bound))
    assert processes == OwnProcesses(unknown=f"the engine's processes: none that can be seen listens on port {port}")


@pytest.mark.parametrize("name", ["docker-proxy", "nginx"])
def test_a_forwarder_is_not_the_engine(listening: socket.socket, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(psutil.Process, "name", lambda _process: name)
    unknown = at_address(url_of(listening)).unknown
    assert unknown is not None
    assert unknown.startswith(f"the engine's processes: {name} listens on port ")


def test_a_containers_first_process_is_in_its_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the runtime has another pid namespace, the pid it reports belongs to another process here."""
    monkeypatch.setattr(system, "proc", lambda: tmp_path)
    (tmp_path / "77").mkdir()
    (tmp_path / "77/cgroup").write_text("0::/system.slice/docker-c0ffee.scope\n")
    assert in_container(saying("77 c0ffee")) == OwnProcesses((77,))
    for output in ("77 decaf", "78 c0ffee", "no such object", ""):
        hidden = in_container(saying(output))
        assert hidden == OwnProcesses(unknown="the engine's processes: those of its container cannot be seen from here")


def test_a_runtime_that_cannot_be_asked_is_no_error() -> None:
    launch = Launch(("docker", "run"), 8000, container=("/no/such/docker", "inspect"), elsewhere=True)
    assert asyncio.run(own_processes(launch, "")).unknown is not None
