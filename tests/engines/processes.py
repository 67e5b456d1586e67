"""A small engine that misbehaves on request, and helpers that wait for processes to end."""

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path

import aiohttp
import psutil

from bakeoff.engines import Access, Launch, Server, launched, pick_port


def own_children() -> list[psutil.Process]:
    """This process's children that have not ended: another test's may not have been waited for yet."""
    running: list[psutil.Process] = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it may end between the two questions
            if child.status() != psutil.STATUS_ZOMBIE:
                running.append(child)
    return running


FAKE_ENGINE = r'''
"""Usage: fake_engine.py PORT FOLDER [BEHAVIOUR…]. Answers /health; /die, /exit, /starve end it; signals are noted."""
import os, signal, socket, sys

port, folder, behaviours = int(sys.argv[1]), sys.argv[2], sys.argv[3:]


def note(name, text):
    with open(f"{folder}/{name}", "a") as file:
        file.write(text)


def heard(number, frame):
    name = signal.Signals(number).name
    note("signals", name + "\n")
    if f"ignore-{name}" not in behaviours:
        print("bye", flush=True)
        os._exit(0)


def orphan():
    """A daemon as they are made: own session, parent gone, deaf to everything that can be ignored."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            os.write(write, f"{os.getpid()}".encode())
            while True:
                signal.pause()
        os._exit(0)
    os.wait()
    note("orphan", os.read(read, 32).decode())


signal.signal(signal.SIGINT, heard)
signal.signal(signal.SIGTERM, heard)
print("loading", os.environ.get("BAKEOFF_MARK"), os.environ.get("PYTHONUNBUFFERED"), flush=True)
if "announce" in behaviours:
    note("announced", "loading")  # a FIFO, whose reader waits for this
if "orphan" in behaviours:
    orphan()
for behaviour in behaviours:
    if behaviour.startswith("exit="):
        print("no such model", flush=True)
        sys.exit(int(behaviour[5:]))
    if behaviour.startswith("signal="):
        os.kill(os.getpid(), int(behaviour[7:]))
    if behaviour.startswith("print="):
        print(open(behaviour[6:]).read(), flush=True)


def starve():
    """Ask for more memory than there may be."""
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))
    bytearray(1 << 30)


if "starve" in behaviours:
    starve()
listener = socket.create_server(("127.0.0.1", port))
refusals = 2 if "slow" in behaviours else 10**9 if "never-ready" in behaviours else 0
held = []
while True:
    connection, _ = listener.accept()
    if "hang" in behaviours:
        held.append(connection)
        continue
    path = connection.recv(65536).split(b" ")[1]
    if path == b"/die":
        os.kill(os.getpid(), signal.SIGKILL)
    if path == b"/starve":
        starve()
    if path == b"/exit":
        print("assertion failed", flush=True)
        os._exit(5)
    body = b"".join(b'{"data": [{"id": "%s"}]}' % b[7:].encode() for b in behaviours if b.startswith("serves="))
    if path == b"/v1/models" and body:
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body)
        connection.close()
        continue
    status = b"503 Service Unavailable" if refusals > 0 else b"200 OK" if path == b"/health" else b"404 Not Found"
    refusals -= 1
    connection.sendall(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    connection.close()
'''


def fake_engine(folder: Path, *behaviours: str, **changes: object) -> Launch:
    """A launch of a fake engine that writes its notes to ``folder``; ``changes`` are further fields of the launch."""
    script = folder / "fake_engine.py"
    script.write_text(FAKE_ENGINE)
    port = pick_port()
    argv = (sys.executable, "-S", str(script), str(port), str(folder), *behaviours)
    return Launch(**{"argv": argv, "port": port, "ready_timeout_s": 20.0, "stop_grace_s": (10.0, 10.0), **changes})


class Held:
    """Processes held by pidfd, so that a reused pid is not mistaken for them."""

    def __init__(self, *pids: int) -> None:
        self._fds = {os.pidfd_open(pid) for pid in pids}

    def __enter__(self) -> "Held":
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._fds:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)  # so that a failed test leaves no process
            os.close(fd)

    def alive(self) -> int:
        """The number of running processes."""
        return len(self._fds) - len(self._ended(self._fds, 0))

    def gone_within(self, seconds: float) -> bool:
        """Wait for the end of all of them, up to a deadline."""
        deadline = time.monotonic() + seconds
        left = set(self._fds)
        while left and (wait_s := deadline - time.monotonic()) > 0:
            left -= self._ended(left, wait_s)
        return not left

    @staticmethod
    def _ended(fds: set[int], wait_s: float) -> set[int]:
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        return {fd for fd, _ in poll.poll(wait_s * 1000)}


async def visit(launch: Launch, log: Path, access: Access = Access()) -> Server:  # noqa: B008
    """Start the engine and stop it."""
    async with launched(launch, log, access) as server:
        return server


def guard_of(server: Server) -> int:
    """The process that the engine runs under."""
    return psutil.Process(server.pid).ppid()


async def get(server: Server, path: str) -> None:
    """Send a request that may kill the engine."""
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(server.base_url + path):
                pass
        except aiohttp.ClientError:
            return
