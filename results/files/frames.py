"""Append-only log of binary records that survives ``kill -9``.

A frame is a four-byte big-endian length followed by that many bytes of msgpack; JSON would escape every quote in the
engine's own JSON, at 27 times the CPU. As in :mod:`bakeoff.results.files.jsonl`, a crash can leave only the last frame
incomplete: the reader skips it and reports its size. A length beyond the end of the file is damage, though, if a whole
record or more follows it. Frames longer than :data:`MAX_FRAME_BYTES` are neither written nor read, so that a foreign
log cannot make its reader allocate 4 GiB.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from bakeoff.results.errors import UNDECODABLE, NotWritable, RunUnreadable
from bakeoff.results.files.append_only import AppendOnlyFile
from bakeoff.results.files.integrity import RESTORE, verify
from bakeoff.results.records import StoredFile
from bakeoff.results.schema import decoder_of

R = TypeVar("R", bound=msgspec.Struct)
MAX_FRAME_BYTES = 256 * 2**20
"""About a hundred times the longest answer with all its events."""
_LENGTH_BYTES = 4


class FrameAppender(AppendOnlyFile):
    """Appends records to one file.

    Records survive a crash of this process once :meth:`flush` returns, and a power loss once :meth:`close` returns. An
    incomplete last frame left by a crash is truncated first.

    Raises:
        NotWritable: the file cannot be opened or written.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, _whole_bytes)
        self._encode = msgspec.msgpack.Encoder().encode
        self._waiting: list[bytes] = []

    def append(self, record: msgspec.Struct) -> None:
        """Encode a record and buffer it until the next :meth:`flush`.

        Raises:
            NotWritable: the record is longer than :data:`MAX_FRAME_BYTES`.
        """
        frame = self._encode(record)
        if len(frame) > MAX_FRAME_BYTES:
            raise NotWritable(f"cannot write {self._path}: a record of {_size(len(frame))}", "ask for shorter answers")
        self._waiting.append(len(frame).to_bytes(_LENGTH_BYTES, "big"))
        self._waiting.append(frame)

    def flush(self) -> None:
        """Write the buffered records; if that fails they stay buffered."""
        if self._waiting:
            self.write(b"".join(self._waiting))
            self._waiting.clear()


class FrameLog(Generic[R]):
    """Iterates over the records of a file; a missing file is an empty log.

    Args:
        path: of the file.
        record: type of each frame.
        stored: what the file was when its trial was finished; None if that is not known.
        schema: the file's; None for today's.

    Attributes:
        path: path of the file.
        schema: the file's; None for today's.
    """

    def __init__(
        self, path: Path, record: type[R], stored: StoredFile | None = None, schema: int | None = None
    ) -> None:
        self.path: Path = path
        self.schema: int | None = schema
        self._stored = stored
        self._decode = decoder_of(record, path, schema, msgspec.msgpack)

    @property
    def torn_bytes(self) -> int:
        """Size of an incomplete last frame, which is skipped; 0 in a clean log. Reads only the frame lengths."""
        if not self.path.exists():
            return 0
        with self.path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            return end - _whole_bytes(file.fileno(), end)

    def __iter__(self) -> Iterator[R]:
        """Iterate from the start.

        Raises:
            RunUnreadable: a frame is damaged or longer than :data:`MAX_FRAME_BYTES`, or the file is not what was
                stored.
        """
        verify(self.path, self._stored)
        return (record for record, _ in self.after(0))

    def between(self, start: int, end: int) -> Iterator[R]:
        """Iterate over the frames of one of :meth:`ranges`.

        Raises:
            RunUnreadable: as :meth:`after`.
        """
        for record, following in self.after(start) if start < end else ():
            yield record
            if following >= end:
                return

    def ranges(self, size_bytes: int) -> list[tuple[int, int]]:
        """Byte ranges of whole frames that follow each other, each but the last of at least ``size_bytes``.

        The last one goes to the end of the file, so that a torn or damaged frame there is met by who reads it.

        Raises:
            RunUnreadable: the file is not what was stored.
        """
        verify(self.path, self._stored)
        if not self.path.exists():
            return []
        found: list[tuple[int, int]] = []
        with self.path.open("rb") as file:
            start, end = 0, file.seek(0, os.SEEK_END)
            for whole in _ends(file.fileno(), end):
                if whole - start >= size_bytes:
                    found.append((start, whole))
                    start = whole
        return [*found, (start, end)] if end > start else found

    def after(self, start: int) -> Iterator[tuple[R, int]]:
        """Iterate from a byte offset: each record with the offset of the next one.

        Args:
            start: 0, or an offset that an earlier call yielded.

        Raises:
            RunUnreadable: a frame is damaged or longer than :data:`MAX_FRAME_BYTES`.
        """
        if not self.path.exists():
            return
        with self.path.open("rb", buffering=1 << 20) as file:
            end = os.fstat(file.fileno()).st_size
            file.seek(start)
            # Not beyond this end: the file may grow meanwhile.
            while start + _LENGTH_BYTES <= end and len(head := file.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
                at, length = start + _LENGTH_BYTES, int.from_bytes(head, "big")
                if length > MAX_FRAME_BYTES:
                    raise RunUnreadable(f"{self.path}: the frame at byte {at} claims {_size(length)}; {RESTORE}")
                if at + length > end:
                    if _holds_a_value(file.read(end - at)):
                        raise RunUnreadable(
                            f"{self.path}: the frame at byte {at} claims {length:,} bytes, beyond the end of the file; "
                            f"{RESTORE}"
                        )
                    return
                start = at + length
                try:
                    yield self._decode(file.read(length)), start
                except UNDECODABLE as error:
                    raise RunUnreadable(
                        f"{self.path}: the frame at byte {at} is damaged ({error}); {RESTORE}"
                    ) from error


_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""First byte of binary data and texts → bytes of their length."""
_COUNTS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""First byte of arrays and maps → bytes of their count, and values per item."""
_FIXED = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
"""First byte of numbers → bytes that follow."""


def _holds_a_value(data: bytes) -> bool:
    """Whether ``data`` begins with a whole value in msgpack (https://github.com/msgpack/msgpack/blob/master/spec.md).

    The torn last frame of a crash never does.
    """
    at, left = 0, 1
    while left and at < len(data):
        first = data[at]
        at, left = at + 1, left - 1
        if 0x80 <= first <= 0x8F:
            left += 2 * (first & 0x0F)
        elif 0x90 <= first <= 0x9F:
            left += first & 0x0F
        elif 0xA0 <= first <= 0xBF:
            at += first & 0x1F
        elif first in _LENGTHS:
            size = _LENGTHS[first]
            at += size + int.from_bytes(data[at : at + size], "big")
        elif first in _COUNTS:
            size, values = _COUNTS[first]
            left += values * int.from_bytes(data[at : at + size], "big")
            at += size
        else:
            at += _FIXED.get(first, 0)
    return not left and at <= len(data)


def _size(length: int) -> str:
    return f"{length / 2**20:,.0f} MiB, above the limit of {MAX_FRAME_BYTES // 2**20} MiB"


def count_frames(path: Path) -> int:
    """Number of complete frames in a file. Reads only their lengths."""
    with path.open("rb") as file:
        return _whole(file.fileno(), file.seek(0, os.SEEK_END))[1]


def _whole_bytes(handle: int, end: int) -> int:
    """End of the last complete frame in a file of ``end`` bytes."""
    return _whole(handle, end)[0]


def _whole(handle: int, end: int) -> tuple[int, int]:
    """End of the last complete frame in a file of ``end`` bytes, and the number of complete ones."""
    whole, count = 0, 0
    for end_of_frame in _ends(handle, end):
        whole, count = end_of_frame, count + 1
    return whole, count


def _ends(handle: int, end: int) -> Iterator[int]:
    """End of each complete frame in a file of ``end`` bytes."""
    whole = 0
    while whole + _LENGTH_BYTES <= end:
        whole += _LENGTH_BYTES + int.from_bytes(os.pread(handle, _LENGTH_BYTES, whole), "big")
        if whole > end:
            return
        yield whole
