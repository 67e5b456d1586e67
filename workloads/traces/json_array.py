"""Splits a JSON array of any size into its items, in memory that is bounded by the largest item and linear in time."""

import io
import re
from collections.abc import Iterator

MAX_ITEM_BYTES = 16 * 2**20
"""A larger item is no conversation; usually the file has another format."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MAX_DEPTH = 64
"""Levels of nesting within an item."""
_READ_BYTES = 2**20
# Quantifiers keep what they took (Python 3.11), so that a long string is scanned once. The last quote is missing if the
# string goes on behind the bytes read so far.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)|[\[\]{},]', re.DOTALL)


class BadArray(ValueError):
    """The bytes are not a JSON array, or an item is too large or nested too deeply."""


class ArrayItems:
    """The items of an array, as bytes that are not checked further.

    Args:
        file: begins with the array.

    Attributes:
        count: items begun so far.
    """

    def __init__(self, file: io.BufferedIOBase) -> None:
        self._file = file
        self._data = bytearray()
        self.count: int = 0

    def __iter__(self) -> Iterator[bytes]:
        """Yield each item.

        Raises:
            BadArray: what was read so far is not the beginning of an array, or an item exceeds a limit.
        """
        self._next_byte()
        if self._data.startswith(BYTE_ORDER_MARK):
            del self._data[: len(BYTE_ORDER_MARK)]
        first = self._next_byte()
        if not first:
            raise BadArray("is not valid JSON: the file is empty")
        if first != b"[":
            return
        del self._data[:1]
        if self._next_byte() == b"]":
            del self._data[:1]
        else:
            is_last = False
            while not is_last:
                self.count += 1
                end = self._end_of_item()
                item, is_last = bytes(self._data[:end]), self._data[end] == ord("]")
                del self._data[: end + 1]
                yield item
        if self._next_byte():
            raise BadArray("is not valid JSON: the array has ended, and more follows")

    def _read(self) -> bool:
        """Whether there was more to read."""
        data = self._file.read(_READ_BYTES)
        self._data += data
        return bool(data)

    def _next_byte(self) -> bytes:
        """The next byte that is no space; empty at the end of the file."""
        while True:
            self._data = self._data.lstrip()
            if self._data or not self._read():
                return bytes(self._data[:1])

    def _end_of_item(self) -> int:
        """Place of the comma or bracket behind the item with which the data begin."""
        scanned, depth = 0, 0
        while True:
            for token in _TOKEN.finditer(self._data, scanned):
                kind = token[0][:1]
                if kind == b'"' and not token[1]:
                    break
                if kind in b"[{":
                    depth += 1
                    if depth > MAX_DEPTH:
                        raise BadArray(f"is nested more than {MAX_DEPTH} levels deep")
                elif kind in b"]}":
                    depth -= 1
                if depth < 0 or (depth == 0 and kind == b","):
                    return token.start()
                scanned = token.end()
            if len(self._data) > MAX_ITEM_BYTES:
                raise BadArray(f"is larger than {MAX_ITEM_BYTES // 2**20} MiB")
            if not self._read():
                raise BadArray("is not valid JSON: the file ends within the array")
