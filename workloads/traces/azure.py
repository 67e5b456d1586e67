"""``azure``: the Azure LLM inference traces of 2023 and 2024 (Microsoft, CC-BY-4.0).

Patel et al., "Splitwise", ISCA 2024; Stojkovic et al., "DynamoLLM", HPCA 2025. A week of 2024 has 27 million rows, so
a block of rows is parsed column by column, in about a microsecond per row. If a row does not fit this path, the block
is parsed again by :meth:`_Reader._strict`, which accepts every valid form and reports errors.
"""

from collections.abc import Iterator
from itertools import compress

import msgspec

from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.checks import BACKWARDS, MAX_TOKENS, stamp_ns, tokens
from bakeoff.workloads.traces.reading import bad, blocks, check_text
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.traces.table import missing_column, plain_name

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_PLAIN = b"0123456789-: .,+\r\n"
"""A block with any other byte takes the strict path, because ``int`` and ``float`` accept ``1_000`` and ``1e3``."""
_MINUTE_CHARS = len("2024-05-10 00:00:")
_ZONE = b"+00:00"


class Azure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows of TIMESTAMP, ContextTokens, GeneratedTokens; stamps have 0 to 9 decimals, with or without a zone."""

    path: str
    """The CSV file, plain or gzip."""

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """The requests, as :class:`bakeoff.workloads.traces.row.Trace` defines them."""
        del seed  # the trace leaves nothing to chance
        reader = _Reader(self.path)
        for row, block in blocks(self.path):
            yield from reader.read(row, block)
        if not reader.has_request:
            raise bad(self.path, None, "has no row with generated tokens below its header")

    def notes(self) -> list[str]:
        """What is left out of the trace."""
        return [
            "azure: arrivals and lengths as recorded; the trace has no sessions, so each request is one",
            "azure: rows with 0 generated tokens count as failed and are left out",
        ]


class _Reader:
    """Parses one file block by block."""

    def __init__(self, path: str) -> None:
        self.has_request = False
        self._path = path
        self._has_header = False
        self._last_s = 0.0
        self._stamps = _Stamps()

    def read(self, row: int, block: bytes) -> Iterator[TraceRow]:
        """Requests in a block whose first row is ``row``."""
        check_text(self._path, row, block)
        if not self.has_request:
            lines = block.split(b"\n")
            head = 0
            while head < len(lines) and not self.has_request:
                yield from self._strict(row + head, lines[head : head + 1])
                head += 1
            row, block = row + head, b"\n".join(lines[head:])
        try:
            yield from self._fast(block)
        except _Unusual:
            yield from self._strict(row, block.split(b"\n"))

    def _fast(self, block: bytes) -> Iterator[TraceRow]:
        """Parse a block column by column.

        Raises:
            _Unusual: a row is written differently from the first row, or is invalid.
        """
        fields = block.rstrip().replace(b"\n", b",").split(b",")
        try:
            inputs, outputs = list(map(int, fields[1::3])), list(map(int, fields[2::3]))
            times_s = self._stamps.fast_s(fields[::3])
        except ValueError:
            raise _Unusual from None
        if 0 in outputs:
            times_s, inputs = list(compress(times_s, outputs)), list(compress(inputs, outputs))
            outputs = list(filter(None, outputs))
        is_valid = (
            len(fields) % 3 == 0
            and not block.translate(None, _PLAIN)
            and min(inputs + outputs, default=1) >= 1
            and max(inputs + outputs, default=1) <= MAX_TOKENS
            and [self._last_s, *times_s] == sorted([self._last_s, *times_s])
        )
        if not is_valid:
            raise _Unusual
        self._last_s = times_s[-1] if times_s else self._last_s
        return map(TraceRow, times_s, inputs, outputs)

    def _strict(self, first: int, lines: list[bytes]) -> Iterator[TraceRow]:
        """Parse lines one by one, the first being row ``first``; raises BadTrace for an invalid line."""
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
        if not self.has_request:
            self.has_request = True
            self._stamps.begin(time_ns, fields[0].encode())
        at_s = self._stamps.strict_s(time_ns)
        if at_s < self._last_s:
            raise ValueError(BACKWARDS)
        self._last_s = at_s
        return TraceRow(at_s, inputs, outputs)

    def _check_header(self, fields: list[str]) -> None:
        header = [name.strip() for name in fields]
        names, needed = list(map(plain_name, header)), list(map(plain_name, _COLUMNS))
        for name, plain in zip(_COLUMNS, needed, strict=True):
            if plain not in names:
                raise ValueError(missing_column(name, header))
        if names != needed:
            raise ValueError(f"has other columns than {', '.join(_COLUMNS)}, or another order; use the format csv")
        self._has_header = True


class _Unusual(Exception):
    """A block that needs the strict path."""


class _Stamps:
    """Converts time stamps to seconds from the first row."""

    def __init__(self) -> None:
        self._first_ns = 0
        self._zone = b""
        self._minute = b""
        self._minute_ns = 0

    def begin(self, first_ns: int, stamp: bytes) -> None:
        """Set the origin, and the time zone that the fast path expects, from the first row."""
        self._first_ns = first_ns
        self._zone = _ZONE if stamp.endswith(_ZONE) else b""

    def strict_s(self, time_ns: int) -> float:
        """Seconds from the first row for a parsed time."""
        return (time_ns - self._first_ns) / 1e9

    def fast_s(self, stamps: list[bytes]) -> list[float]:
        """Seconds from the first row.

        Raises:
            ValueError: a stamp is written differently from the first one.
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
