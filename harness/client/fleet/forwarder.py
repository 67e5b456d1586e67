"""What Ray runs on a node: it starts the worker there and forwards lines and files without interpreting them.

The worker is a child process without Ray, the same as on the harness's own machine. During a load this process is
blocked in a read of the child's stdout.
"""

import contextlib
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.harness.client.fleet.machine import Machine
from bakeoff.harness.host.child import tail
from bakeoff.harness.host.environment import VERSION

CHUNK_BYTES = 4 << 20
"""Files are transferred in pieces of this size."""
_END_S = 5.0


class Forwarder:
    """Forwards to one worker on one node; a Ray actor of :mod:`bakeoff.harness.client.fleet.ray_fleet`.

    Args:
        core: to pin the worker to; None for none.
    """

    def __init__(self, core: int | None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="bakeoff-"))
        self._stderr = self._folder / "stderr"
        self._write_lock = threading.Lock()
        package = Path(__file__).parents[3]  # the child runs the same package as this process
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bakeoff.harness.client.worker", *([] if core is None else [str(core)])],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, cwd=package, start_new_session=True,
            )  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """Version, machine, process and folder, as plain data because the reader may run another version."""
        return {
            "version": VERSION,
            "machine": msgspec.to_builtins(Machine.here()),
            "pid": self._process.pid,
            "folder": str(self._folder),
        }

    def send(self, line: bytes) -> None:
        """Send the worker a line. If it has ended, the next :meth:`reply` is empty."""
        assert self._process.stdin is not None
        with self._write_lock, contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def reply(self) -> bytes:
        """The worker's next line; empty when it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def call(self, line: bytes) -> bytes:
        """Send a line and return the reply to it; only while no other reply is expected."""
        self.send(line)
        return self.reply()

    def exit_message(self) -> str:
        """How the worker ended, in one line."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        code = self._process.poll()
        with self._stderr.open("rb") as stderr:
            output = tail(stderr)
        return f"ended with status {code}" + (f": {output.splitlines()[-1].strip()}" if output else "")

    def write(self, name: str, offset: int, piece: bytes) -> None:
        """Write a piece of a file at ``offset``; the piece at 0 truncates the file."""
        with (self._folder / name).open("r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(piece)

    def read(self, name: str, offset: int) -> bytes:
        """The piece of a file at ``offset``; empty at its end, or if there is no such file."""
        path = self._folder / name
        if not path.exists():
            return b""
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(CHUNK_BYTES)

    def remove(self, name: str) -> None:
        """Delete a file if it exists."""
        (self._folder / name).unlink(missing_ok=True)

    def decode(self, setup: bytes, frames: bytes) -> bytes | None:
        """Decode a part of a log, which only a node without a load is asked for."""
        from bakeoff.harness.client.decode.log import decoded_lines  # noqa: PLC0415  (it loads the dialects)

        return decoded_lines(setup, frames)

    def close(self) -> None:
        """End the worker and delete its folder."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
