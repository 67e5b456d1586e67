"""Append-only binary records that survive ``kill -9``: for logs that hold raw bytes.

A frame is four bytes of length (big-endian) and that many bytes of msgpack; JSON would escape every quote of an
engine's own JSON, at 27 times the CPU. As in :mod:`results.jsonl`, a crash can tear only the last frame: the reader
leaves it out and says how many bytes that were.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

import msgspec

from results.errors import NotWritable, RunUnreadable

R = TypeVar("R", bound=msgspec.Struct)
_LENGTH_BYTES = 4


class FrameAppender:
    """Appends records to one file.

    Records are safe from a crash of this process when :meth:`flush` returns, and from a power cut after :meth:`close`.
    A torn last frame that a crash left is cut off first.

    Raises:
        NotWritable: the file cannot be opened or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._encode = msgspec.msgpack.Encoder().encode
        self._waiting: list[bytes] = []
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            _cut_torn_tail(self._handle)
        except OSError as error:
            raise NotWritable(f"cannot write {path}: {error.strerror}; choose a folder you own with --out") from error

    def append(self, record: msgspec.Struct) -> None:
        """Encode one record; it is written at the next :meth:`flush`."""
        frame = self._encode(record)
        self._waiting.append(len(frame).to_bytes(_LENGTH_BYTES, "big"))
        self._waiting.append(frame)

    def flush(self) -> None:
        """Write what was appended."""
        if not self._waiting:
            return
        data = b"".join(self._waiting)
        self._waiting.clear()
        try:
            written = os.write(self._handle, data)
            while written < len(data):  # a full disk or a signal may cut a write short
                written += os.write(self._handle, data[written:])
        except OSError as error:
            raise NotWritable(f"cannot write {self._path}: {error.strerror}; earlier records are safe") from error

    def close(self) -> None:
        """Flush, sync and close; closing twice is harmless."""
        if self._handle >= 0:
            self.flush()
            os.fsync(self._handle)
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class FrameLog(Generic[R]):
    """The records of one file, read one at a time; a missing file is an empty log.

    Attributes:
        torn_bytes: size of a torn last frame; known when the iteration has ended.
    """

    def __init__(self, path: Path, record: type[R]) -> None:
        self._path = path
        self._decode = msgspec.msgpack.Decoder(record).decode
        self.torn_bytes = 0

    def __iter__(self) -> Iterator[R]:
        """Read from the start.

        Raises:
            RunUnreadable: a frame is not a record.
        """
        if not self._path.exists():
            return
        with self._path.open("rb", buffering=1 << 20) as file:
            while head := file.read(_LENGTH_BYTES):
                length = int.from_bytes(head, "big")
                frame = file.read(length)
                if len(head) < _LENGTH_BYTES or len(frame) < length:
                    self.torn_bytes = len(head) + len(frame)
                    return
                try:
                    yield self._decode(frame)
                except msgspec.MsgspecError as error:
                    at = file.tell() - length
                    raise RunUnreadable(
                        f"{self._path}: the frame at byte {at} is damaged ({error}); restore the file from a copy"
                    ) from error


def _cut_torn_tail(handle: int) -> None:
    """Shorten a file to its last whole frame."""
    end = os.lseek(handle, 0, os.SEEK_END)
    whole = 0
    while whole + _LENGTH_BYTES <= end:
        after = whole + _LENGTH_BYTES + int.from_bytes(os.pread(handle, _LENGTH_BYTES, whole), "big")
        if after > end:
            break
        whole = after
    if whole < end:
        os.ftruncate(handle, whole)
