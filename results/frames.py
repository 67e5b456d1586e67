"""Append-only binary records that survive ``kill -9``: for logs that hold raw bytes.

A frame is four bytes of length (big-endian) and that many bytes of msgpack; JSON would escape every quote of an
engine's own JSON, at 27 times the CPU. As in :mod:`results.jsonl`, a crash can tear only the last frame: the reader
leaves it out and says how many bytes that were. A frame longer than :data:`MAX_FRAME_BYTES` is neither written nor
read: a log from elsewhere must not make its reader allocate what four bytes can ask for.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from results.append_only import AppendOnlyFile
from results.errors import NotWritable, RunUnreadable

R = TypeVar("R", bound=msgspec.Struct)
MAX_FRAME_BYTES = 256 * 2**20
"""Some hundred times the longest answer with all its events."""
_LENGTH_BYTES = 4


class FrameAppender(AppendOnlyFile):
    """Appends records to one file.

    Records are safe from a crash of this process when :meth:`flush` returns, and from a power cut after :meth:`close`.
    A torn last frame that a crash left is cut off first.

    Raises:
        NotWritable: the file cannot be opened or written.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, _whole_bytes)
        self._encode = msgspec.msgpack.Encoder().encode
        self._waiting: list[bytes] = []

    def append(self, record: msgspec.Struct) -> None:
        """Encode one record; it is written at the next :meth:`flush`.

        Raises:
            NotWritable: it is longer than :data:`MAX_FRAME_BYTES`.
        """
        frame = self._encode(record)
        if len(frame) > MAX_FRAME_BYTES:
            raise NotWritable(f"cannot write {self._path}: a record of {_size(len(frame))}; ask for shorter answers")
        self._waiting.append(len(frame).to_bytes(_LENGTH_BYTES, "big"))
        self._waiting.append(frame)

    def flush(self) -> None:
        """Write what was appended; what could not be written waits for the next time."""
        if self._waiting:
            self.write(b"".join(self._waiting))
            self._waiting.clear()


class FrameLog(Generic[R]):
    """The records of one file, read one at a time; a missing file is an empty log.

    Attributes:
        path: of the file.
    """

    def __init__(self, path: Path, record: type[R]) -> None:
        self.path = path
        self._decode = msgspec.msgpack.Decoder(record).decode

    @property
    def torn_bytes(self) -> int:
        """Size of a torn last frame, which is left out; 0 in a clean log. Only the lengths of frames are read."""
        if not self.path.exists():
            return 0
        with self.path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            return end - _whole_bytes(file.fileno(), end)

    def __iter__(self) -> Iterator[R]:
        """Read from the start.

        Raises:
            RunUnreadable: a frame is not a record, or longer than :data:`MAX_FRAME_BYTES`.
        """
        return (record for record, _ in self.after(0))

    def after(self, start: int) -> Iterator[tuple[R, int]]:
        """Read from a byte on: each record, and the byte at which the next one begins.

        Args:
            start: 0, or what an earlier call gave with a record.

        Raises:
            RunUnreadable: as when it is read from the start.
        """
        if not self.path.exists():
            return
        with self.path.open("rb", buffering=1 << 20) as file:
            end = os.fstat(file.fileno()).st_size
            file.seek(start)
            while len(head := file.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
                at, length = start + _LENGTH_BYTES, int.from_bytes(head, "big")
                if at + length > end:
                    return
                if length > MAX_FRAME_BYTES:
                    raise RunUnreadable(f"{self.path}: the frame at byte {at} claims {_size(length)}; no log of ours")
                start = at + length
                try:
                    yield self._decode(file.read(length)), start
                except msgspec.MsgspecError as error:
                    raise RunUnreadable(
                        f"{self.path}: the frame at byte {at} is damaged ({error}); restore the file from a copy"
                    ) from error


def _size(length: int) -> str:
    return f"{length / 2**20:,.0f} MiB, above the limit of {MAX_FRAME_BYTES // 2**20} MiB"


def _whole_bytes(handle: int, end: int) -> int:
    """End of the last whole frame of a file of ``end`` bytes."""
    whole = 0
    while whole + _LENGTH_BYTES <= end:
        after = whole + _LENGTH_BYTES + int.from_bytes(os.pread(handle, _LENGTH_BYTES, whole), "big")
        if after > end:
            break
        whole = after
    return whole
