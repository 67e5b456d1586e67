"""A fake docker daemon and ssh server: processes that they start are not children of their clients and outlive them.

The clients are programs called ``docker``, ``podman`` and ``ssh``, to be put on PATH. An engine listens on the
published or forwarded port, whatever port its command line names.
"""

import contextlib
import itertools
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CLIENT = """#!{python} -S
import json, os, signal, socket, sys

there = socket.socket(socket.AF_UNIX)
there.connect({socket!r})
if "docker" in sys.argv[0] or "podman" in sys.argv[0]:  # ssh just ends
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: there.sendall(bytes([number])))
asked = json.dumps({{"argv": [os.path.basename(sys.argv[0]), *sys.argv[1:]], "env": dict(os.environ)}}).encode()
socket.send_fds(there, [len(asked).to_bytes(4, "big")], [1])
there.sendall(asked)
sys.exit(there.recv(1)[0])
"""


class Elsewhere:
    """The server for the fake clients.

    Attributes:
        calls: the arguments of each client, in order.
        engines: the started processes, in order.
    """

    def __init__(self, folder: Path) -> None:
        self.programs = folder / "programs"
        self.calls: list[list[str]] = []
        self.engines: list[subprocess.Popen[bytes]] = []
        self.environments: list[dict[str, str]] = []
        self._containers: dict[str, subprocess.Popen[bytes]] = {}
        address = str(folder / "socket")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen()
        self.programs.mkdir()
        for name in ("docker", "podman", "ssh"):
            program = self.programs / name
            program.write_text(CLIENT.format(python=sys.executable, socket=address))
            program.chmod(0o755)

    def serve(self) -> None:
        """Answer clients until :meth:`close`."""
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def close(self) -> None:
        """Stop listening, and kill the processes that a failed test has left."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for engine in self.engines:
            engine.kill()
            engine.wait()

    def _answer(self, client: socket.socket) -> None:
        with client:
            head, fds, _, _ = socket.recv_fds(client, 4, 1)
            with os.fdopen(fds[0], "wb") as output:
                asked = json.loads(client.makefile("rb", buffering=0).read(int.from_bytes(head, "big")))
                self.calls.append(asked["argv"])
                program, verb, *words = asked["argv"]
                if program == "ssh":
                    status = self._shell(client, asked["argv"], output)
                elif verb == "run":
                    status = self._run(client, words, asked["env"], output)
                elif verb == "inspect":
                    status = self._inspect(words[-1], output)
                else:
                    status = self._remove(words[-1])
            with contextlib.suppress(OSError):
                client.sendall(bytes([status]))

    def _shell(self, client: socket.socket, argv: list[str], output: Any) -> int:
        """A session whose processes get SIGHUP when the connection ends."""
        _, local_port, _, remote_port = argv[argv.index("-L") + 1].split(":")
        engine = self._start(
            ["sh", "-c", _redirected(argv[-1], remote_port, local_port)], {"PATH": os.environ["PATH"]}, output
        )
        while not _ended(engine, client):
            if not client.recv(1):
                os.killpg(engine.pid, signal.SIGHUP)
                break
        return engine.wait() & 0xFF

    def _run(self, client: socket.socket, words: list[str], env: dict[str, str], output: Any) -> int:
        """A container that keeps running when its client has ended."""
        _, local_port, remote_port = words[words.index("--publish") + 1].split(":")
        name = words[words.index("--name") + 1]
        given = {variable: env[variable] for flag, variable in itertools.pairwise(words) if flag == "--env"}
        command = words[words.index("image") + 1 :]
        inside = [_redirected(word, remote_port, local_port) for word in command]
        engine = self._containers[name] = self._start(inside, given, output)
        while not _ended(engine, client):
            number = client.recv(1)
            if not number:
                return 0
            engine.send_signal(number[0])
        self._containers.pop(name, None)
        status = engine.wait()
        return 128 - status if status < 0 else status

    def _inspect(self, name: str, output: Any) -> int:
        """The container's pid and id."""
        output.write(f"{self._containers[name].pid} {name}\n".encode())
        output.flush()
        return 0

    def _remove(self, name: str) -> int:
        engine = self._containers.pop(name, None)
        if engine is None:
            return 1
        engine.kill()
        engine.wait()
        return 0

    def _start(self, argv: list[str], env: dict[str, str], output: Any) -> "subprocess.Popen[bytes]":
        self.environments.append(env)
        engine = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, start_new_session=True
        )
        self.engines.append(engine)
        return engine


def _redirected(word: str, remote_port: str, local_port: str) -> str:
    return re.sub(rf"\b{remote_port}\b", local_port, word)


def _ended(engine: "subprocess.Popen[bytes]", client: socket.socket) -> bool:
    """Wait until the engine has ended or the client sends something."""
    try:
        pidfd = os.pidfd_open(engine.pid)
    except ProcessLookupError:  # another thread has waited for it already
        return True
    try:
        return pidfd in select.select([pidfd, client], [], [])[0]
    finally:
        os.close(pidfd)


@contextlib.contextmanager
def elsewhere(folder: Path) -> Iterator[Elsewhere]:
    """A running server; ``programs`` is to be put on PATH."""
    side = Elsewhere(folder)
    thread = threading.Thread(target=side.serve)
    thread.start()
    try:
        yield side
    finally:
        side.close()
        thread.join()
