"""``azure``: the Azure LLM inference traces of 2023 and 2024 (Microsoft, CC-BY-4.0).

Patel et al., "Splitwise", ISCA 2024; Stojkovic et al., "DynamoLLM", HPCA 2025. A week of 2024 has 27 million rows, so
a block of rows is read column by column, in about a microsecond a row. A block in which any row does not fit that is
read again by :meth:`_Reader._strict`, which knows every form and says what is wrong.
"""

from collections.abc import Iterator
from itertools import compress

import msgspec

from workloads.rng import Seed
from workloads.traces.checks import BACKWARDS, MAX_TOKENS, stamp_ns, tokens
from workloads.traces.reading import bad, blocks, check_text
from workloads.traces.row import TraceRow
from workloads.traces.table import missing_column

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_PLAIN = b"0123456789-: .,+\r\n"
"""A block with any other byte is read strictly: ``int`` and ``float`` alone would take ``1_000`` and ``1e3``."""
_MINUTE_CHARS = len("2024-05-10 00:00:")
_ZONE = b"+00:00"


class Azure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows of TIMESTAMP, ContextTokens, GeneratedTokens; stamps have 0 to 9 decimals, with or without a zone."""

    path: str
    """The CSV file, plain or gzip."""

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """See :class:`workloads.traces.row.Trace`."""
        del seed  # nothing is left open
        reader = _Reader(self.path)
        for row, block in blocks(self.path):
            yield from reader.read(row, block)
        if not reader.found:
            raise bad(self.path, None, "holds no row with generated tokens below its header")

    def notes(self) -> list[str]:
        """What is left out."""
        return [
            "azure: arrivals and lengths as recorded; the trace names no sessions, every request is on its own",
            "azure: rows with 0 generated tokens are left out as failed",
        ]


class _Reader:
    """Reads block after block of one file."""

    def __init__(self, path: str) -> None:
        self.found = False
        self._path = path
        self._has_header = False
        self._last_s = 0.0
        self._stamps = _Stamps()

    def read(self, row: int, block: bytes) -> Iterator[TraceRow]:
        """Requests of a block that begins with row ``row``."""
        check_text(self._path, row, block)
        if not self.found:
            lines = block.split(b"\n")
            head = 0
            while head < len(lines) and not self.found:
                yield from self._strict(row + head, lines[head : head + 1])
                head += 1
            row, block = row + head, b"\n".join(lines[head:])
        try:
            yield from self._quick(block)
        except _Unusual:
            yield from self._strict(row, block.split(b"\n"))

    def _quick(self, block: bytes) -> Iterator[TraceRow]:
        """All requests of a block at once, column by column.

        Raises:
            _Unusual: not every row is written as the first one was, or one is wrong.
        """
        fields = block.rstrip().replace(b"\n", b",").split(b",")
        try:
            inputs, outputs = list(map(int, fields[1::3])), list(map(int, fields[2::3]))
            times_s = self._stamps.quick_s(fields[::3])
        except ValueError:
            raise _Unusual from None
        if 0 in outputs:
            times_s, inputs = list(compress(times_s, outputs)), list(compress(inputs, outputs))
            outputs = list(filter(None, outputs))
        sound = (
            len(fields) % 3 == 0
            and not block.translate(None, _PLAIN)
            and min(inputs + outputs, default=1) >= 1
            and max(inputs + outputs, default=1) <= MAX_TOKENS
            and [self._last_s, *times_s] == sorted([self._last_s, *times_s])
        )
        if not sound:
            raise _Unusual
        self._last_s = times_s[-1] if times_s else self._last_s
        return map(TraceRow, times_s, inputs, outputs)

    def _strict(self, first: int, lines: list[bytes]) -> Iterator[TraceRow]:
        """Requests of lines that begin with row ``first``, in any form; BadTrace says what is wrong with a line."""
        for row, line in enumerate(lines, first):
            fields = line.decode().strip().split(",")
            try:
                if fields == [""]:
                    continue
                if not self._has_header:
                    self._check_header(fields)
                elif (request := self._request(fields)) is not None:
                    yield request
            except ValueError as cause:
                raise bad(self._path, row, str(cause)) from None

    def _request(self, fields: list[str]) -> TraceRow | None:
        if len(fields) != len(_COLUMNS):
            raise ValueError(f"has {len(fields)} fields, the header {len(_COLUMNS)}")
        time_ns, outputs = stamp_ns(fields[0]), tokens(fields[2], _COLUMNS[2], 0)
        if outputs == 0:
            return None
        inputs = tokens(fields[1], _COLUMNS[1], 1)
        if not self.found:
            self.found = True
            self._stamps.begin(time_ns, fields[0].encode())
        at_s = self._stamps.strict_s(time_ns)
        if at_s < self._last_s:
            raise ValueError(BACKWARDS)
        self._last_s = at_s
        return TraceRow(at_s, inputs, outputs)

    def _check_header(self, fields: list[str]) -> None:
        header = [name.strip() for name in fields]
        for name in _COLUMNS:
            if name not in header:
                raise ValueError(missing_column(name, header))
        if header != list(_COLUMNS):
            raise ValueError(f"has columns besides {', '.join(_COLUMNS)}, or in another order; read it as csv")
        self._has_header = True


class _Unusual(Exception):
    """A block that has to be read row by row."""


class _Stamps:
    """Time stamps as seconds from the first row's."""

    def __init__(self) -> None:
        self._first_ns = 0
        self._zone = b""
        self._minute = b""
        self._minute_ns = 0

    def begin(self, first_ns: int, stamp: bytes) -> None:
        """Count from ``first_ns``, and expect the zone of that row's ``stamp``, if it has one, on the others too."""
        self._first_ns = first_ns
        self._zone = _ZONE if stamp.endswith(_ZONE) else b""

    def strict_s(self, time_ns: int) -> float:
        """Seconds from the first row of a time that has been parsed."""
        return (time_ns - self._first_ns) / 1e9

    def quick_s(self, stamps: list[bytes]) -> list[float]:
        """Seconds from the first row.

        Raises:
            ValueError: a stamp is not written as the first one was.
        """
        zone, end, minute, minute_ns = self._zone, -len(self._zone) or None, self._minute, self._minute_ns
        times_s: list[float] = []
        for stamp in stamps:
            if stamp[:_MINUTE_CHARS] != minute:
                minute = stamp[:_MINUTE_CHARS]
                minute_ns = stamp_ns(minute.decode() + "00") - self._first_ns
            second = float(stamp[_MINUTE_CHARS:end])
            if not (0 <= second < 60 and stamp.endswith(zone)):
                raise ValueError
            times_s.append((minute_ns + round(second * 1e9)) / 1e9)
        self._minute, self._minute_ns = minute, minute_ns
        return times_s
