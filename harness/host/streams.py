"""Standard streams that no exit code depends on: closed ones, and those whose reader goes away."""

import errno
import io
import os
import sys
from collections.abc import Container
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Lasting(io.FileIO):
    """A standard stream that drops what nobody reads: whether a reader stays decides no exit code.

    Args:
        number: file descriptor.
        dropped: errors after which output is dropped.

    Attributes:
        has_reader: whether everything was written so far.
    """

    has_reader = True

    def __init__(self, number: int, dropped: Container[int | None]) -> None:
        super().__init__(number, "w", closefd=False)
        self._dropped = dropped

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write, or drop."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in self._dropped:
                raise
            self.has_reader = False
            return memoryview(data).nbytes


def keep_streams() -> None:
    """Let stdout drop what nobody reads, and stderr whatever it does not take; in ASCII "·" of tables is escaped."""
    for name, dropped in (("stdout", {errno.EPIPE}), ("stderr", errno.errorcode)):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__") is not None:  # tests and notebooks replace the streams
            file = io.BufferedWriter(_Lasting(stream.fileno(), dropped))
            kept = io.TextIOWrapper(file, stream.encoding, "backslashreplace", line_buffering=stream.line_buffering)
            setattr(sys, name, kept)


def has_reader(stream: BinaryIO) -> bool:
    """Whether a stream has taken everything so far."""
    raw = getattr(stream, "raw", None)
    return not isinstance(raw, _Lasting) or raw.has_reader


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
