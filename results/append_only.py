"""A file that only grows, and that a crash can tear only at its end: what both kinds of log are written through."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from results.errors import NotWritable


class AppendOnlyFile:
    """An open file; what is written is in the kernel when :meth:`write` returns.

    Args:
        path: the file; made when it is missing.
        whole_bytes: says how long the file is, up to the end of its last whole record. What a crash left after that is
            cut off: the next record would be glued to it and both be lost.

    Raises:
        NotWritable: the file cannot be opened or written.
    """

    def __init__(self, path: Path, whole_bytes: Callable[[int, int], int]) -> None:
        self._path = path
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            end = os.lseek(self._handle, 0, os.SEEK_END)
            whole = whole_bytes(self._handle, end)
            if whole < end:
                os.ftruncate(self._handle, whole)
        except OSError as error:
            raise NotWritable(f"cannot write {path}: {error.strerror}; choose a folder you own with --out") from error

    def write(self, data: bytes) -> None:
        """Append all of ``data``, or nothing: what a full disk took of it is cut off again."""
        written = 0
        try:
            while written < len(data):  # a full disk or a signal may cut a write short
                written += os.write(self._handle, data[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, os.fstat(self._handle).st_size - written)
            raise NotWritable(f"cannot write {self._path}: {error.strerror}; earlier records are safe") from error

    def flush(self) -> None:
        """Write what waits; nothing does here."""

    def sync(self) -> None:
        """Make what was written durable."""
        self.flush()
        try:
            os.fsync(self._handle)
        except OSError as error:
            raise NotWritable(f"cannot write {self._path}: {error.strerror}; the last records may be lost") from error

    def close(self) -> None:
        """Flush, sync and close, whatever fails on the way; closing twice is harmless."""
        if self._handle < 0:
            return
        try:
            self.flush()
            os.fsync(self._handle)
        except OSError as error:
            raise NotWritable(f"cannot write {self._path}: {error.strerror}; the last records may be lost") from error
        finally:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
