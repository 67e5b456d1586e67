"""Entry point of ``bakeoff``: an unexpected error is one line and exit code 3, whichever command met it.

Python's own exit code for an exception is 1, which is a verdict of ``gate``, ``history`` and ``claims``. Importing the
commands is part of what can fail, so they are imported inside.
"""

import errno
import io
import os
import signal
import sys
from typing import TYPE_CHECKING

from bakeoff.harness.unexpected import EXIT_UNEXPECTED, unexpected

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def main() -> None:
    """Run the command of ``sys.argv`` and exit with its code."""
    open_closed_streams()
    for name, dropped in (("stdout", {errno.EPIPE}), ("stderr", None)):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__") is not None:  # tests and notebooks replace the streams
            setattr(sys, name, _lasting(stream, dropped))
    try:
        from bakeoff.harness.cli import make_app  # noqa: PLC0415
        from bakeoff.harness.cli.guarded import guarded  # noqa: PLC0415

        code = guarded(make_app(), sys.argv[1:])
    except KeyboardInterrupt:  # while modules are imported; later ones are answered where they come
        code = 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001
        code = unexpected(error)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError as error:  # a full disk, or a limit on sizes of files
        if code != EXIT_UNEXPECTED:  # else it has been said
            sys.stderr.write(f"bakeoff: cannot write the output: {error.strerror}\n")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python fails once more at its end, with a code of its own
        code = EXIT_UNEXPECTED
    sys.exit(code)


class _Lasting(io.FileIO):
    """A standard stream that drops what nobody reads: whether a reader stays decides no exit code.

    Args:
        number: file descriptor.
        dropped: errors after which output is dropped; None for all.

    Attributes:
        has_reader: whether everything was written so far.
    """

    has_reader = True

    def __init__(self, number: int, dropped: set[int] | None) -> None:
        super().__init__(number, "w", closefd=False)
        self._dropped = dropped

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write, or drop."""
        try:
            return super().write(data)
        except OSError as error:
            if self._dropped is not None and error.errno not in self._dropped:
                raise
            self.has_reader = False
            return memoryview(data).nbytes


def _lasting(stream: io.TextIOWrapper, dropped: set[int] | None) -> io.TextIOWrapper:
    """The stream anew, over a file that lasts; in ASCII there is no "·", which tables contain."""
    file = io.BufferedWriter(_Lasting(stream.fileno(), dropped))
    return io.TextIOWrapper(file, stream.encoding, "backslashreplace", line_buffering=stream.line_buffering)


def open_closed_streams() -> None:
    """Open the null device in place of a standard stream that is closed.

    Its descriptor would become that of the next file or socket, which then would be read or written as that stream.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
