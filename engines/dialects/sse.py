"""Incremental parser of server-sent events.

Follows https://html.spec.whatwg.org/multipage/server-sent-events.html: lines end in LF, CRLF or CR; a blank line ends
an event; one space after ``data:`` is dropped; several ``data`` lines of one event are joined by LF; lines that begin
with a colon are comments; an event without data is dropped; a byte order mark at the beginning is ignored. The parser
works on bytes, so reads may split UTF-8 characters. Beyond the standard, events whose type is that of a keep-alive are
dropped, JSON objects in successive lines are events of their own, the end mark of OpenAI's streams is known however it
is written, :meth:`SseParser.rest` has what an event without its blank line holds, and lines of no field are kept, since
proxies write their errors between events.
"""

KEEP_ALIVE = frozenset({b"ping", b"pong", b"heartbeat", b"keepalive", b"keep-alive", b"keep_alive", b"hb"})
"""Words, in lower case, of events that only keep a connection open."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ERROR_TYPES = (b"error", b"exception")
DONE = b"[DONE]"
"""The ``data`` behind the last event of an OpenAI stream."""
_DONE_WORDS = frozenset({DONE, b"DONE"})
_LONGEST_DONE = 12
_SHORTEST_WHOLE = len(b"data: \n\n") + _LONGEST_DONE + 1
_OTHER_FIELDS = frozenset({b"", b"id", b"retry"})
_MAX_STRAY_BYTES = 1000


class ErrorData(bytes):
    """The ``data`` of an event whose type says that it is an error."""


class SseParser:
    """Parses one stream.

    Attributes:
        stray: the first lines that are no field of an event.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._after_cr = False
        self._type = b""
        self._is_first_line = True
        self.stray: bytes = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add the bytes of one read; return the ``data`` of every event that they complete."""
        events: list[bytes] = []
        if not chunk:
            return events
        if (whole := self._whole(chunk)) is not None:
            return [whole]
        if self._after_cr:
            self._after_cr = False
            if chunk[0] == 0x0A:  # the second half of a CRLF that was split between two reads
                chunk = chunk[1:]
        self._after_cr = chunk.endswith(b"\r")
        # A single CR also ends a line; with normalised line ends one split is enough.
        lines = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for end in lines[:-1]:
            self._line += end
            line = bytes(self._line)
            self._take_line(line.removeprefix(_BYTE_ORDER_MARK) if self._is_first_line else line, events)
            self._is_first_line = False
            self._line.clear()
        self._line += lines[-1]
        return events

    def _whole(self, chunk: bytes) -> bytes | None:
        """The ``data`` of a read that is one plain event, as most are; None for any other read."""
        if not chunk.startswith(b"data: ") or chunk.find(b"\n") != len(chunk) - 2 or not chunk.endswith(b"\n\n"):
            return None
        if self._line or self._data or self._type or self._after_cr or len(chunk) < _SHORTEST_WHOLE or b"\r" in chunk:
            return None
        self._is_first_line = False
        return chunk[6:-2]

    def rest(self) -> list[bytes]:
        """The ``data`` of events that have no blank line behind them, at the end of a stream."""
        events: list[bytes] = []
        if self._line:
            self._take_line(bytes(self._line), events)
        self._end(events)
        return events

    def _take_line(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            self._end(events)
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            if self._data and self._data[-1].rstrip().endswith(b"}") and value.startswith((b"{", DONE)):
                self._end(events)
            self._data.append(value)
        elif field == b"event":
            if self._data and self._data[-1].rstrip().endswith(b"}"):
                self._end(events)
            self._type = value.strip().lower()
        elif field not in _OTHER_FIELDS and len(self.stray) < _MAX_STRAY_BYTES:
            self.stray += line + b"\n"

    def _end(self, events: list[bytes]) -> None:
        data = b"\n".join(self._data)
        if len(data) <= _LONGEST_DONE and data.strip(b' "').upper() in _DONE_WORDS:
            data = DONE
        if data and self._type not in KEEP_ALIVE:
            is_error = any(word in self._type for word in _ERROR_TYPES) and not self._type.startswith(b"no_")
            events.append(ErrorData(data) if is_error else data)
        self._data, self._type = [], b""
