"""Lines that end with a hash of themselves and of all lines before, so that a lost or changed line is noticed.

The hash is the last field of the line's object: ``{"type":"run_ended",…,"chain":"9f86d081884c7d65"}``.
"""

import hashlib

_FIELD = b',"chain":"'
_DIGITS = 16
_END_BYTES = len(_FIELD) + _DIGITS + len(b'"}')


class Chain:
    """The hash of all lines so far.

    Attributes:
        is_used: whether lines have hashes; None before the first line. Those of runs by earlier versions have none.
    """

    def __init__(self) -> None:
        self._hash = ""
        self.is_used: bool | None = None

    def link(self, line: bytes) -> bytes:
        """Add the hash to a line.

        Args:
            line: an object in JSON with one field or more.
        """
        if self.is_used is False:
            return line
        self.is_used = True
        self._hash = self._next(line[:-1])
        return line[:-1] + _FIELD + self._hash.encode() + b'"}'

    def holds(self, line: bytes) -> bool:
        """Whether a line is the next one and was not changed."""
        body, field = line[:-_END_BYTES], line[-_END_BYTES:]
        has_hash = field.startswith(_FIELD)
        if self.is_used is None:
            self.is_used = has_hash
        if has_hash is not self.is_used:
            return False
        if has_hash:
            self._hash = self._next(body)
        return not has_hash or field == _FIELD + self._hash.encode() + b'"}'

    def _next(self, body: bytes) -> str:
        return hashlib.sha256(self._hash.encode() + body).hexdigest()[:_DIGITS]
