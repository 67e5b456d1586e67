"""What runs of schema 1 keep otherwise than today's: the raw log, as JSON lines in one file.

JSON has no bytes, so each byte of a read is one character there (Latin-1).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from results.jsonl import read_log
from results.records import Exchange, StreamRecord


class _Line(Exchange, frozen=True, kw_only=True, omit_defaults=True):
    """A :class:`~results.records.StreamRecord` with text in place of bytes."""

    end: str
    read_ns: list[int] = []  # noqa: RUF012  (msgspec copies it)
    reads: list[str] = []  # noqa: RUF012
    detail: str | None = None


class LineLog:
    """Reads as :class:`~results.frames.FrameLog` does.

    Attributes:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def torn_bytes(self) -> int:
        """Size of a torn last line, which is left out; 0 in a clean log."""
        return read_log(self.path, _Line).torn_bytes

    def __iter__(self) -> Iterator[StreamRecord]:
        """Read from the start.

        Raises:
            RunUnreadable: a line before the last is not a record.
        """
        for line in read_log(self.path, _Line).records:
            fields: dict[str, Any] = msgspec.structs.asdict(line)
            fields["reads"] = [read.encode("latin-1") for read in line.reads]
            yield StreamRecord(**fields)
