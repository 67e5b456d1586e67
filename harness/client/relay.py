"""What Ray runs on a node: it starts the worker there, passes lines and files on, and knows neither orders nor times.

The worker is a child process without Ray, the same as on the harness's own machine. While a load is on, this process
sits blocked in a read of the child's stdout.
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

from harness.client.machine import Machine
from harness.host.child import tail
from harness.host.environment import VERSION

CHUNK_BYTES = 4 << 20
"""Files travel in pieces of this size."""
_END_S = 5.0


class Relay:
    """One worker on one node; made by Ray from :mod:`harness.client.ray_fleet`.

    Args:
        core: for the worker to be pinned to; None for none.
    """

    def __init__(self, core: int | None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="bakeoff-"))
        self._words = self._folder / "stderr"
        self._orders = threading.Lock()
        package = Path(__file__).parents[2]  # what is imported here is what the child runs
        with self._words.open("wb") as words:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.client", *([] if core is None else [str(core)])],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words, cwd=package, start_new_session=True,
            )  # fmt: skip

    def hello(self) -> dict[str, Any]:
        """Who is there. Plain data: whoever reads it may be of another version."""
        return {
            "version": VERSION,
            "machine": msgspec.to_builtins(Machine.here()),
            "pid": self._process.pid,
            "folder": str(self._folder),
        }

    def send(self, line: bytes) -> None:
        """Give the worker a line. That it is gone shows at the next :meth:`answer`."""
        assert self._process.stdin is not None
        with self._orders, contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def answer(self) -> bytes:
        """The worker's next line; empty when it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def ask(self, line: bytes) -> bytes:
        """Send and answer in one call; for a worker that has nothing else to say."""
        self.send(line)
        return self.answer()

    def last_words(self) -> str:
        """How the worker ended, in one line."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        code = self._process.poll()
        with self._words.open("rb") as words:
            said = tail(words)
        return f"ended with status {code}" + (f": {said.splitlines()[-1].strip()}" if said else "")

    def write(self, name: str, offset: int, piece: bytes) -> None:
        """Put a piece of a file at ``offset``; the piece at 0 begins it anew."""
        with (self._folder / name).open("r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(piece)

    def read(self, name: str, offset: int) -> bytes:
        """The piece of a file at ``offset``; empty at its end, or when there is no such file."""
        path = self._folder / name
        if not path.exists():
            return b""
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(CHUNK_BYTES)

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        (self._folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        """End the worker and leave nothing behind."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
