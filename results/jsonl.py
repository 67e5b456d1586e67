"""Append-only JSON lines that survive ``kill -9``.

One record is one ``write`` of one line, so a crash can tear only the last line. The reader accepts a bad *last*
line, says how many bytes it left out, and never rewrites the file; a bad line before the last is damage.
"""

import os
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

import msgspec

from results.errors import NotWritable, RunUnreadable

R = TypeVar("R", bound=msgspec.Struct)
_BLOCK = 1 << 16


class Log(msgspec.Struct, Generic[R], frozen=True):
    """What a reader found: the records, and the bytes of a torn last line (0 in a clean log)."""

    records: list[R]
    torn_bytes: int = 0


class Appender:
    """Appends records to one file, unbuffered.

    A torn last line that a crash left is cut off first: the next record would be glued to it and both be lost.
    A record is safe from a crash of this process when :meth:`append` returns, and from a power cut after
    :meth:`close`, which syncs.

    Raises:
        NotWritable: the file cannot be opened or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._encoder = msgspec.json.Encoder()
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            _cut_torn_tail(self._handle)
        except OSError as error:
            raise NotWritable(f"cannot write {path}: {error.strerror}; choose a folder you own with --out") from error

    def append(self, record: msgspec.Struct) -> None:
        """Write one record as one line."""
        line = self._encoder.encode(record) + b"\n"
        try:
            written = os.write(self._handle, line)
            while written < len(line):  # a full disk or a signal may cut a write short
                written += os.write(self._handle, line[written:])
        except OSError as error:
            raise NotWritable(f"cannot write {self._path}: {error.strerror}; earlier records are safe") from error

    def close(self) -> None:
        """Sync and close; closing twice is harmless."""
        if self._handle >= 0:
            os.fsync(self._handle)
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _cut_torn_tail(handle: int) -> None:
    """Shorten a file to its last newline."""
    end = os.lseek(handle, 0, os.SEEK_END)
    start = end
    while start > 0:
        block = max(0, start - _BLOCK)
        newline = os.pread(handle, start - block, block).rfind(b"\n")
        if newline >= 0:
            start = block + newline + 1
            break
        start = block
    if start < end:
        os.ftruncate(handle, start)


def read_log(path: Path, record: type[R]) -> Log[R]:
    """Read all records of ``path``; a missing file is an empty log.

    Raises:
        RunUnreadable: a line before the last is not a record.
    """
    if not path.exists():
        return Log([])
    data = path.read_bytes()
    decoder = msgspec.json.Decoder(record)
    lines = data.split(b"\n")
    torn = len(lines.pop())  # what follows the last newline: nothing, in a clean log
    records: list[R] = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(decoder.decode(line))
        except msgspec.MsgspecError as error:
            if number == len(lines) and torn == 0:
                return Log(records, len(line) + 1)
            raise RunUnreadable(f"{path}: line {number} is damaged ({error}); restore the file from a copy") from error
    return Log(records, torn)
