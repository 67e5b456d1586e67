"""``mooncake``: JSON lines with names of prefix blocks: Mooncake's traces, and Bailian's in nearly the same form.

Qin et al., "Mooncake", FAST 2025 (Apache-2.0): milliseconds, blocks of 512 tokens. Wang et al., "KVCache Cache in the
Wild", ATC 2025 (Qwen-Bailian, Apache-2.0): seconds, blocks of 16 tokens, and chats: read with ``block_tokens = 16`` and
``time_unit_s = 1``. Equal names mean equal prefixes, in all files of one publisher.
"""

from collections.abc import Iterator
from typing import Literal

import msgspec

from workloads.rng import Seed
from workloads.traces.blocks import blocks_of
from workloads.traces.checks import Clock, InputTokens, OutputTokens
from workloads.traces.reading import bad, records
from workloads.traces.row import TraceRow
from workloads.traces.ticks import TooManyRows, spread

_ROOT = -1
"""Bailian's parent of a chat's first turn."""


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
    """Tokens that one of ``hash_ids`` stands for."""
    time_unit_s: float = 0.001
    """Seconds in one unit of ``timestamp``."""
    ticks: Literal["spread", "burst"] = "spread"
    """Where the clock ticks coarsely: ``spread`` arrivals over their tick, or keep them a ``burst`` at its start."""

    def __post_init__(self) -> None:
        if not 1 <= self.block_tokens <= 1_000_000:
            raise ValueError(f"block_tokens must be from 1 to 1000000, not {self.block_tokens}")
        if not 0 < self.time_unit_s <= 86400:
            raise ValueError(f"time_unit_s must be above 0 and at most 86400, not {self.time_unit_s}")

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """See :class:`workloads.traces.row.Trace`."""
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
            raise bad(self.path, None, "holds no row with output tokens")

    def notes(self) -> list[str]:
        """What is spread, left out, and what names a block."""
        ticks = "spread uniformly over it, in the order of the file" if self.ticks == "spread" else "kept a burst"
        return [
            f"mooncake: lengths and prefix blocks of {self.block_tokens} tokens as recorded",
            f"mooncake: where the first rows show a coarse clock, the arrivals of a tick are {ticks}",
            "mooncake: rows with 0 output tokens are left out as failed",
        ]

    def _timed(self) -> Iterator[tuple[float, tuple[_Line, str | None]]]:
        """Time in seconds, row and session, as the file has them."""
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
        named, wanted = len(line.hash_ids), blocks_of(line.input_length, self.block_tokens)
        if not named or named == wanted:
            return
        least = blocks_of(line.input_length, named)
        most = (line.input_length - 1) // (named - 1) if named > 1 else None
        fitting = next((size for size in _USUAL_BLOCKS if least <= size and (most is None or size <= most)), least)
        raise bad(
            self.path,
            row,
            f"names {named} blocks, but {line.input_length} input tokens are {wanted} of {self.block_tokens}; "
            f"set block_tokens to the trace's own (this row fits {fitting})",
        )


def _session(line: _Line, roots: dict[int | str, str]) -> str | None:
    """Name of the chat that a row belongs to: its first turn's id. A parent that the file lacks begins one too."""
    if line.chat_id is None:
        return None
    parent = _ROOT if line.parent_chat_id is None else line.parent_chat_id
    root = str(line.chat_id) if parent == _ROOT else roots.get(parent, str(parent))
    roots[line.chat_id] = root
    return root
