"""Append-only JSON lines that survive ``kill -9``.

One record is one ``write`` of one line, so a crash can tear only the last line. The reader accepts a bad *last*
line, reports how many bytes it skipped, and never rewrites the file; a bad line before the last is damage.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from bakeoff.results.errors import UNDECODABLE, RunUnreadable
from bakeoff.results.files.append_only import AppendOnlyFile
from bakeoff.results.files.integrity import RESTORE, read_stored, verify
from bakeoff.results.records import StoredFile
from bakeoff.results.schema import decoder_of

R = TypeVar("R", bound=msgspec.Struct)
_BLOCK = 1 << 16
_SLICE = 4 << 20
"""Bytes of a file that are decoded at a time."""


class Log(msgspec.Struct, Generic[R], frozen=True):
    """Result of reading a log: the records, and the bytes of a torn last line (0 in a clean log)."""

    records: list[R]
    torn_bytes: int = 0


class Appender(AppendOnlyFile):
    """Appends records to one file, unbuffered.

    A torn last line left by a crash is truncated first. A record is safe from a crash of this process when
    :meth:`append` returns, and from a power cut after :meth:`close`, which syncs.

    Raises:
        NotWritable: the file cannot be opened or written.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, _whole_bytes)
        self._encoder = msgspec.json.Encoder()

    def append(self, record: msgspec.Struct) -> None:
        """Write one record as one line."""
        self.write(self._encoder.encode(record) + b"\n")


def _whole_bytes(handle: int, end: int) -> int:
    """End of the last line of a file of ``end`` bytes."""
    start = end
    while start > 0:
        block = max(0, start - _BLOCK)
        newline = os.pread(handle, start - block, block).rfind(b"\n")
        if newline >= 0:
            return block + newline + 1
        start = block
    return 0


def read_after(path: Path, record: type[R], start: int) -> tuple[list[R], int]:
    """The complete lines of a growing log from a byte offset on, and the offset of the next line.

    Args:
        path: of the log; a missing file is an empty one.
        record: type of each line.
        start: 0, or an offset that an earlier call returned.

    Raises:
        RunUnreadable: a line is not a record.
    """
    if not path.exists():
        return [], start
    with path.open("rb") as file:
        file.seek(start)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    try:
        return msgspec.json.Decoder(record).decode_lines(whole), start + len(whole)
    except UNDECODABLE as error:
        raise RunUnreadable(f"{path}: a line after byte {start} is damaged ({error})") from error


def read_log(
    path: Path,
    record: type[R],
    stored: StoredFile | None = None,
    follows: Callable[[bytes], bool] = lambda _: True,
    schema: int | None = None,
) -> Log[R]:
    """Read all records of ``path``; a missing file is an empty log.

    Args:
        path: of the log.
        record: type of each line.
        stored: what the file was when its trial was finished; None if that is not known.
        follows: whether a line belongs after the lines before.
        schema: the file's; None for today's.

    Raises:
        RunUnreadable: a line before the last is not a record, one does not belong where it is, or the file is not what
            was stored.
    """
    data = read_stored(path, stored)
    if data is None:
        return Log([])
    decode = decoder_of(record, path, schema)
    lines = data.split(b"\n")
    torn = len(lines.pop())  # the bytes after the last newline; none in a clean log
    records: list[R] = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(decode(line))
        except UNDECODABLE as error:
            if number == len(lines) and torn == 0:
                return Log(records, len(line) + 1)
            raise RunUnreadable(f"{path}: line {number} is damaged ({error}); {RESTORE}") from error
        if not follows(line):
            raise RunUnreadable(f"{path}: line {number}, or one before it, was changed or removed; {RESTORE}")
    return Log(records, torn)


def whole_records(
    path: Path, record: type[R], stored: StoredFile | None, remedy: str = RESTORE, schema: int | None = None
) -> Iterator[R]:
    """Read the records of a file that is written as a whole, so that no crash can leave a torn line.

    Only some of them are in memory at a time.

    Args:
        path: of the file; a missing one has no records.
        record: type of each line.
        stored: as for :func:`read_log`.
        remedy: what to do if it is damaged.
        schema: the file's; None for today's.

    Raises:
        RunUnreadable: a line is incomplete or no record, or the file is not what was stored.
    """
    verify(path, stored, remedy)
    if not path.exists():
        return
    decode, rest, lines = decoder_of(record, path, schema), b"", 0
    try:
        with path.open("rb") as file:
            while block := file.read(_SLICE):
                whole, newline, rest = (rest + block).rpartition(b"\n")
                for line in whole.split(b"\n") if newline else ():
                    lines += 1
                    try:
                        yield decode(line)
                    except UNDECODABLE as error:
                        raise RunUnreadable(f"{path}: line {lines} is damaged ({error}); {remedy}") from error
    except OSError as error:
        raise RunUnreadable(f"{path} cannot be read ({error.strerror}); {remedy}") from error
    if rest:
        raise RunUnreadable(f"{path} ends within a line; {remedy}")
