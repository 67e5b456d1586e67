"""Append-only file, base of both log formats; a crash can leave only its last record incomplete."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from bakeoff.results.errors import NotWritable


class AppendOnlyFile:
    """An open file; data is in the kernel when :meth:`write` returns.

    Args:
        path: the file; created if missing.
        whole_bytes: maps (file descriptor, file size) to the end of the last complete record. Bytes after it, left by
            a crash, are truncated, since the next record would be appended to them and both would be lost.

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
            raise NotWritable(f"cannot write {path}: {error.strerror}") from error

    def write(self, data: bytes) -> None:
        """Append all of ``data`` or nothing: a partial write to a full disk is truncated again."""
        written = 0
        try:
            while written < len(data):  # a full disk or a signal can cause a short write
                written += os.write(self._handle, data[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, os.fstat(self._handle).st_size - written)
            raise NotWritable(f"cannot write {self._path}: {error.strerror}", "earlier records are safe") from error

    def flush(self) -> None:
        """Write buffered records; this base class has no buffer."""

    def sync(self) -> None:
        """Make what was written durable."""
        self.flush()
        try:
            os.fsync(self._handle)
        except OSError as error:
            raise NotWritable(f"cannot write {self._path}: {error.strerror}", "the last records may be lost") from error

    def close(self) -> None:
        """Flush, sync and close; the file is closed even if flushing fails. Idempotent."""
        if self._handle < 0:
            return
        try:
            self.flush()
            os.fsync(self._handle)
        except OSError as error:
            raise NotWritable(f"cannot write {self._path}: {error.strerror}", "the last records may be lost") from error
        finally:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
