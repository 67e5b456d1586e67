"""``mooncake``: JSON lines with block hashes, from Mooncake and, in nearly the same form, Bailian.

Qin et al., "Mooncake", FAST 2025 (Apache-2.0): milliseconds, blocks of 512 tokens. Wang et al., "KVCache Cache in the
Wild", ATC 2025 (Qwen-Bailian, Apache-2.0): seconds with decimals, blocks of 16 tokens, and chats, by which its files
are known. Equal hashes mean equal prefixes across all files of one publisher.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.blocks import blocks_of
from bakeoff.workloads.traces.checks import Clock, InputTokens, OutputTokens
from bakeoff.workloads.traces.reading import bad, peeked, records
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.traces.ticks import TooManyRows, spread

_ROOT = -1
"""``parent_chat_id`` of a chat's first turn in Bailian's traces."""


_USUAL_BLOCKS = (16, 32, 64, 128, 256, 512, 1024)
_PEEKED_ROWS = 256
_LEAST_GAP_MS = 10
"""If stamps taken as milliseconds are closer on average, they may be seconds."""


class _Units(NamedTuple):
    block_tokens: int
    time_unit_s: float


class _Line(msgspec.Struct, frozen=True, gc=False):
    timestamp: float
    input_length: InputTokens
    output_length: OutputTokens
    hash_ids: tuple[int, ...] = ()
    chat_id: int | str | None = None
    parent_chat_id: int | str | None = _ROOT


class Mooncake(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """JSON lines of timestamp, input_length, output_length, hash_ids; Bailian adds chat_id and parent_chat_id."""

    path: str
    """The file of JSON lines, plain or gzip."""
    block_tokens: int | None = None
    """Tokens per block of ``hash_ids``. Default: 512, or 16 in a file with ``chat_id``."""
    time_unit_s: float | None = None
    """Seconds per unit of ``timestamp``. Default: 0.001, or 1 in a file with ``chat_id`` and decimals."""
    ticks: Literal["spread", "burst"] = "spread"
    """With a coarse clock, ``spread`` the arrivals of a tick over it, or send them as a ``burst`` at its start."""

    def __post_init__(self) -> None:
        if self.block_tokens is not None and not 1 <= self.block_tokens <= 1_000_000:
            raise ValueError(f"block_tokens must be from 1 to 1000000, not {self.block_tokens}")
        if self.time_unit_s is not None and not 0 < self.time_unit_s <= 86400:
            raise ValueError(f"time_unit_s must be above 0 and at most 86400, not {self.time_unit_s}")

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """The requests, as :class:`bakeoff.workloads.traces.row.Trace` defines them."""
        head, lines = peeked(records(self.path, msgspec.json.Decoder(_Line)), _PEEKED_ROWS)
        units = self._units(head)
        timed = self._timed(lines, units)
        if self.ticks == "spread":
            timed = spread(timed, seed.draws("mooncake", "ticks"))
        first_s: float | None = None
        try:
            for time_s, (line, session) in timed:
                first_s = time_s if first_s is None else first_s
                yield TraceRow(
                    time_s - first_s,
                    line.input_length,
                    line.output_length,
                    session,
                    blocks=line.hash_ids,
                    block_tokens=units.block_tokens if line.hash_ids else 0,
                )
        except TooManyRows as cause:
            raise bad(self.path, None, f"{cause}; set ticks = 'burst' to send them at once") from None
        if first_s is None:
            raise bad(self.path, None, "has no row with output tokens")

    def notes(self) -> list[str]:
        """Block size, treatment of coarse clocks, and what is left out of the trace."""
        ticks = "spread uniformly over it, in the order of the file" if self.ticks == "spread" else "sent as a burst"
        head, _ = peeked(records(self.path, msgspec.json.Decoder(_Line)), _PEEKED_ROWS)
        units = self._units(head)
        unit = "seconds" if units.time_unit_s == 1 else f"{units.time_unit_s:g} s"
        return [
            f"mooncake: lengths and prefix blocks of {units.block_tokens} tokens as recorded; timestamps count {unit}",
            f"mooncake: if the first rows show a coarse clock, the arrivals of a tick are {ticks}",
            "mooncake: rows with 0 output tokens count as failed and are left out",
        ]

    def _units(self, head: Sequence[tuple[int, _Line]]) -> _Units:
        """The units: those given, else what the first rows show.

        Raises:
            BadTrace: their times may be milliseconds or seconds.
        """
        of_chats = any(line.chat_id is not None for _, line in head)
        block_tokens = self.block_tokens or (16 if of_chats else 512)
        if self.time_unit_s is not None:
            return _Units(block_tokens, self.time_unit_s)
        stamps = [line.timestamp for _, line in head]
        if of_chats and not all(stamp.is_integer() for stamp in stamps):
            return _Units(block_tokens, 1.0)
        gap = (stamps[-1] - stamps[0]) / (len(stamps) - 1) if len(stamps) > 1 else 0.0
        if 0 < gap < _LEAST_GAP_MS or (of_chats and gap):
            raise bad(
                self.path,
                None,
                f"has times that advance by {gap:.3g} a row, so {1000 / gap:.3g} requests/s if they are milliseconds "
                f"and {1 / gap:.3g} if they are seconds; set time_unit_s to 0.001 or 1",
            )
        return _Units(block_tokens, 0.001)

    def _timed(
        self, lines: Iterator[tuple[int, _Line]], units: _Units
    ) -> Iterator[tuple[float, tuple[_Line, str | None]]]:
        """Time in seconds, row and session, in the order of the file."""
        clock, roots = Clock(), dict[int | str, str]()
        for row, line in lines:
            session = _session(line, roots)
            if line.output_length == 0:
                continue
            self._check_blocks(row, line, units.block_tokens)
            try:
                yield clock.offset_s(line.timestamp * units.time_unit_s), (line, session)
            except ValueError as cause:
                raise bad(self.path, row, str(cause)) from None

    def _check_blocks(self, row: int, line: _Line, block_tokens: int) -> None:
        count, expected = len(line.hash_ids), blocks_of(line.input_length, block_tokens)
        if not count or count == expected:
            return
        least = blocks_of(line.input_length, count)
        most = (line.input_length - 1) // (count - 1) if count > 1 else None
        fitting = next((size for size in _USUAL_BLOCKS if least <= size and (most is None or size <= most)), least)
        raise bad(
            self.path,
            row,
            f"has {count} hash_ids, but {line.input_length} tokens make {expected} blocks of {block_tokens}; "
            f"set block_tokens to the trace's block size (this row fits {fitting})",
        )


def _session(line: _Line, roots: dict[int | str, str]) -> str | None:
    """Name of a row's chat: the id of its first turn, or of a parent that is not in the file."""
    if line.chat_id is None:
        return None
    parent = _ROOT if line.parent_chat_id is None else line.parent_chat_id
    root = str(line.chat_id) if parent == _ROOT else roots.get(parent, str(parent))
    roots[line.chat_id] = root
    return root
