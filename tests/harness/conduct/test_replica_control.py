"""Power over real processes: they end, start, stop and continue."""

import asyncio
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from bakeoff.engines import Launch, attached, launched, pick_port
from bakeoff.engines.errors import NotReady
from bakeoff.engines.server import require_listener
from bakeoff.harness.conduct.faults import FaultInjector
from bakeoff.harness.conduct.replica_control import AddressControl, LaunchedControl, processes_at
from bakeoff.harness.errors import FaultFailed
from bakeoff.harness.experiment.faults import Fault
from bakeoff.results.records import FaultAction
from tests.engines.processes import Held


def server(port: int) -> list[str]:
    """A program that listens, in a child of its first process."""
    serve = f"{sys.executable} -S -m http.server {port} --bind 127.0.0.1"
    return ["sh", "-c", f"{serve} & wait"]


async def nothing(_: object) -> None:
    """Nobody waits for a replica, or samples it."""


def injecting(fault: Fault, control: AddressControl, label: str | None = None) -> FaultInjector:
    return FaultInjector(
        [fault], {label: control}, time.monotonic_ns, joined=nothing, launched=nothing, ready_s=10
    )  # fmt: skip


async def listens(port: int) -> bool:
    try:
        await require_listener(f"http://127.0.0.1:{port}")
    except NotReady:
        return False
    return True


async def running(tmp_path: Path) -> tuple[AddressControl, int, str]:
    """A server, with power over it, its port and its address."""
    port = pick_port()
    control = AddressControl(attached(f"http://127.0.0.1:{port}"), tmp_path / "log")
    await control.start(server(port), 10)
    return control, port, f"http://127.0.0.1:{port}"


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  (another process does it)
            await asyncio.sleep(0.002)


def test_a_launched_engine_is_killed_with_its_children_and_launched_again(tmp_path: Path):
    async def live() -> None:
        port, log = pick_port(), tmp_path / "log"
        launch = Launch(argv=tuple(server(port)), port=port, ready_path="/", stop_grace_s=(0.1, 0.1))
        async with launched(launch, log) as running:
            control = LaunchedControl(launch, running, log)
            await control.kill((), ())
            assert not await listens(port)
            with pytest.raises(FaultFailed, match="ended already"):
                await control.find()
            await control.start((), 10)
            assert await listens(port)
            await control.close()
            assert not await listens(port)

    asyncio.run(live())


def test_a_running_server_is_stopped_killed_and_started_by_its_command(tmp_path: Path):
    async def live() -> None:
        port = pick_port()
        control = AddressControl(attached(f"http://127.0.0.1:{port}"), tmp_path / "log")
        with pytest.raises(FaultFailed, match=f"listens at http://127.0.0.1:{port}; give begin and end"):
            await control.kill((), ())
        await control.start(server(port), 10)
        (listener,) = {
            each.pid for each in psutil.net_connections() if each.laddr and each.laddr.port == port and each.pid
        }
        fault = Fault(FaultAction.STOP, 0.0, 0.1, replica="a")
        injector = injecting(fault, control, "a")
        injector.opened(time.monotonic_ns())
        await until(lambda: psutil.Process(listener).status() == psutil.STATUS_STOPPED)
        (record,) = await injector.finish()
        assert record.error is None
        assert psutil.Process(listener).status() != psutil.STATUS_STOPPED
        restart = Fault(FaultAction.RESTART, 0.0, 1000.0, replica="a", end=server(port))
        interrupted = injecting(restart, control, "a")
        interrupted.opened(time.monotonic_ns())
        await until(lambda: not psutil.pid_exists(listener))
        await interrupted.aclose()  # the load was interrupted: the user's server comes back
        await control.start(["true"], 10)
        await control.kill((), ())
        assert not await listens(port)

    asyncio.run(live())


def test_nothing_is_taken_for_a_server_that_also_started_another_or_this_process(tmp_path: Path):
    async def live() -> None:
        ports = [pick_port(), pick_port()]
        serve = f"{sys.executable} -S -m http.server {{}} --bind 127.0.0.1"
        script = " & ".join([*(serve.format(port) for port in ports), "wait"])
        # In the process group of this process, as in a script without job control.
        process = await asyncio.create_subprocess_exec("sh", "-c", script)
        while not (await listens(ports[0]) and await listens(ports[1])):  # noqa: ASYNC110  (other processes do it)
            await asyncio.sleep(0.01)
        found = [{each.pid for each in processes_at(f"http://127.0.0.1:{port}")} for port in ports]
        assert [len(pids) for pids in found] == [1, 1]
        assert not (found[0] | found[1]) & {process.pid, os.getpid()}
        for port in ports:
            await AddressControl(attached(f"http://127.0.0.1:{port}"), tmp_path / "log").kill((), ())
        await process.wait()

    asyncio.run(live())


def test_a_server_at_another_address_of_this_machine_is_another_one(tmp_path: Path):
    async def live() -> None:
        control, port, _ = await running(tmp_path)
        with pytest.raises(FaultFailed, match=r"listens at http://127\.0\.0\.2"):
            processes_at(f"http://127.0.0.2:{port}")
        await control.kill((), ())

    asyncio.run(live())


def test_a_server_that_comes_back_by_itself_is_not_started_again(tmp_path: Path):
    async def live() -> None:
        control, port, url = await running(tmp_path)
        again = " ".join(map(shlex.quote, server(port)))
        (*_, listener) = processes_at(url)
        begin = ["sh", "-c", f"kill $1; setsid {again} &", "-", str(listener.pid)]
        fault = Fault(FaultAction.RESTART, 0.0, 9.0, begin=begin, end=["false"])
        injector = injecting(fault, control)
        with Held(listener.pid) as held:
            injector.opened(time.monotonic_ns())
            await until(lambda: not held.alive())
        (record,) = await injector.finish()
        assert (record.error, record.ended_ns) == (None, record.begun_ns)
        await control.kill((), ())

    asyncio.run(live())


def test_an_interruption_waits_for_the_command_that_it_undoes(tmp_path: Path):
    """Else the end of the fault would come before its beginning, and the server would stay stopped."""

    async def live() -> None:
        begun, ended = tmp_path / "begun", tmp_path / "ended"
        fault = Fault(
            FaultAction.STOP, 0.0, 9.0, begin=["sh", "-c", f"touch {begun}; sleep 0.2; echo begin >> {ended}"],
            end=["sh", "-c", f"echo end >> {ended}"],
        )  # fmt: skip
        control = AddressControl(attached("http://127.0.0.1:9"), tmp_path / "log")
        injector = injecting(fault, control)
        injector.opened(time.monotonic_ns())
        await until(begun.exists)
        await injector.aclose()
        assert ended.read_text(encoding="ascii") == "begin\nend\n"

    asyncio.run(live())


def test_a_fault_that_has_not_begun_when_its_load_ends_is_not_caused(tmp_path: Path):
    async def live() -> None:
        fault = Fault(FaultAction.STOP, 3000.0, 9.0, begin=["false"], end=["false"])
        control = AddressControl(attached("http://127.0.0.1:9"), tmp_path / "log")
        injector = injecting(fault, control)
        injector.opened(time.monotonic_ns())
        await asyncio.sleep(0)
        assert await injector.finish() == []

    asyncio.run(live())


def test_a_server_of_another_host_is_not_sought_here():
    with pytest.raises(FaultFailed, match="is on another host; give begin and end"):
        processes_at("http://192.0.2.1:80")


def test_a_stopped_server_continues_when_the_harness_is_killed(tmp_path: Path):
    async def live() -> None:
        control, _, url = await running(tmp_path)
        (*_, listener) = processes_at(url)
        harness = await asyncio.create_subprocess_exec(
            sys.executable, "-c",
            "import asyncio, signal\n"
            "from bakeoff.harness.conduct.replica_control import continued_at_the_end, processes_at, send_signal\n"
            "async def stop():\n"
            f"    found = processes_at({url!r})\n"
            "    async with continued_at_the_end(found):\n"
            "        send_signal(found, signal.SIGSTOP)\n"
            "        await asyncio.sleep(60)\n"
            "asyncio.run(stop())",
        )  # fmt: skip
        await until(lambda: listener.status() == psutil.STATUS_STOPPED)
        harness.kill()
        await harness.wait()
        await until(lambda: listener.status() != psutil.STATUS_STOPPED)
        await control.kill((), ())

    asyncio.run(live())


def test_a_command_that_fails_says_why(tmp_path: Path):
    control = AddressControl(attached("http://127.0.0.1:9"), tmp_path / "log")
    with pytest.raises(FaultFailed, match=r"sh failed \(.*3.*\): no such pod"):
        asyncio.run(control.kill(["sh", "-c", "echo no such pod; exit 3"], ()))
    with pytest.raises(FaultFailed, match="no-such-program cannot be started: No such file"):
        asyncio.run(control.start(["no-such-program"], 1))
    with pytest.raises(FaultFailed, match=r"sh failed"):
        asyncio.run(control.start(["sh", "-c", "exit 2"], 10))
