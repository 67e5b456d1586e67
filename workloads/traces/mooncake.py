"""``mooncake``: JSON lines with block hashes, from Mooncake and, in nearly the same form, Bailian.

Qin et al., "Mooncake", FAST 2025 (Apache-2.0): milliseconds, blocks of 512 tokens. Wang et al., "KVCache Cache in the
Wild", ATC 2025 (Qwen-Bailian, Apache-2.0): seconds, blocks of 16 tokens, and chats; set ``block_tokens = 16`` and
``time_unit_s = 1``. Equal hashes mean equal prefixes across all files of one publisher.
"""

from collections.abc import Iterator
from typing import Literal

import msgspec

from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.blocks import blocks_of
from bakeoff.workloads.traces.checks import Clock, InputTokens, OutputTokens
from bakeoff.workloads.traces.reading import bad, records
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.traces.ticks import TooManyRows, spread

_ROOT = -1
"""``parent_chat_id`` of a chat's first turn in Bailian's traces."""


_USUAL_BLOCKS = (16, 32, 64, 128, 256, 512, 1024)


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
    block_tokens: int = 512
    """Tokens per block of ``hash_ids``."""
    time_unit_s: float = 0.001
    """Seconds per unit of ``timestamp``."""
    ticks: Literal["spread", "burst"] = "spread"
    """With a coarse clock, ``spread`` the arrivals of a tick over it, or send them as a ``burst`` at its start."""

    def __post_init__(self) -> None:
        if not 1 <= self.block_tokens <= 1_000_000:
            raise ValueError(f"block_tokens must be from 1 to 1000000, not {self.block_tokens}")
        if not 0 < self.time_unit_s <= 86400:
            raise ValueError(f"time_unit_s must be above 0 and at most 86400, not {self.time_unit_s}")

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """The requests, as :class:`bakeoff.workloads.traces.row.Trace` defines them."""
        timed = self._timed()
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
                    block_tokens=self.block_tokens if line.hash_ids else 0,
                )
        except TooManyRows as cause:
            raise bad(self.path, None, f"{cause}; set ticks = 'burst' to send them at once") from None
        if first_s is None:
            raise bad(self.path, None, "has no row with output tokens")

    def notes(self) -> list[str]:
        """Block size, treatment of coarse clocks, and what is left out of the trace."""
        ticks = "spread uniformly over it, in the order of the file" if self.ticks == "spread" else "sent as a burst"
        return [
            f"mooncake: lengths and prefix blocks of {self.block_tokens} tokens as recorded",
            f"mooncake: if the first rows show a coarse clock, the arrivals of a tick are {ticks}",
            "mooncake: rows with 0 output tokens count as failed and are left out",
        ]

    def _timed(self) -> Iterator[tuple[float, tuple[_Line, str | None]]]:
        """Time in seconds, row and session, in the order of the file."""
        clock, roots = Clock(), dict[int | str, str]()
        for row, line in records(self.path, msgspec.json.Decoder(_Line)):
            session = _session(line, roots)
            if line.output_length == 0:
                continue
            self._check_blocks(row, line)
            try:
                yield clock.offset_s(line.timestamp * self.time_unit_s), (line, session)
            except ValueError as cause:
                raise bad(self.path, row, str(cause)) from None

    def _check_blocks(self, row: int, line: _Line) -> None:
        count, expected = len(line.hash_ids), blocks_of(line.input_length, self.block_tokens)
        if not count or count == expected:
            return
        least = blocks_of(line.input_length, count)
        most = (line.input_length - 1) // (count - 1) if count > 1 else None
        fitting = next((size for size in _USUAL_BLOCKS if least <= size and (most is None or size <= most)), least)
        raise bad(
            self.path,
            row,
            f"has {count} hash_ids, but {line.input_length} tokens make {expected} blocks of {self.block_tokens}; "
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
