"""``mooncake``: JSON lines with block hashes, from Mooncake and, in nearly the same form, Bailian.

Qin et al., "Mooncake", FAST 2025 (Apache-2.0): milliseconds, blocks of 512 tokens. Wang et al., "KVCache Cache in the
Wild", ATC 2025 (Qwen-Bailian, Apache-2.0): seconds with decimals, blocks of 16 tokens, and chats, by which its files
are known. Equal hashes mean equal prefixes across all files of one publisher. AIPerf adds sessions, pauses and text:
:mod:`bakeoff.workloads.traces.mooncake_sessions`.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.blocks import blocks_of
from bakeoff.workloads.traces.checks import Clock, InputTokens, OutputTokens, check_output_tokens
from bakeoff.workloads.traces.mooncake_sessions import Sessions, is_session_form, session_rows
from bakeoff.workloads.traces.reading import bad, decoded, lines, peeked
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.traces.ticks import TooManyRows, spread

_ROOT = -1
"""``parent_chat_id`` of a chat's first turn in Bailian's traces."""


_BLOCK_TOKENS = 512
_USUAL_BLOCKS = (16, 32, 64, 128, 256, 512, 1024)
_PEEKED_ROWS = 256
_LEAST_EPOCH_S, _MOST_EPOCH_S = 1.4e9, 2.2e9
"""Seconds since 1970, from 2014 to 2039; milliseconds since then have three digits more."""
_LEAST_GAP_MS = 10
"""If stamps taken as milliseconds are closer on average, they may be seconds."""


class _Stamped(msgspec.Struct):
    timestamp: float | None = None


def _stamp(text: bytes) -> float | None:
    """The time of a row in AIPerf's form; None if it has none, or cannot be read, which is said when it is."""
    try:
        return msgspec.json.decode(text, type=_Stamped, strict=False).timestamp
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _is_epoch_s(stamps: Sequence[float]) -> bool:
    return bool(stamps) and _LEAST_EPOCH_S <= stamps[0] < _MOST_EPOCH_S


def _unit_text(unit_s: float) -> str:
    return "seconds" if unit_s == 1 else f"{unit_s:g} s"


class _Units(NamedTuple):
    block_tokens: int
    time_unit_s: float


class _Line(msgspec.Struct, frozen=True, gc=False):
    timestamp: float
    input_length: InputTokens
    output_length: OutputTokens
    hash_ids: tuple[int, ...] | None = ()
    chat_id: int | str | None = None
    parent_chat_id: int | str | None = _ROOT
    session_id: str | int | None = None


class Mooncake(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """JSON lines of timestamp, input_length, output_length, hash_ids; Bailian adds chat_id and parent_chat_id.

    A file has AIPerf's form if its first row has one of its fields, or lacks timestamp or output_length.
    """

    path: str
    """The file of JSON lines, plain or gzip."""
    block_tokens: int | None = None
    """Tokens per block of ``hash_ids``. Default: 512, or 16 in a file with ``chat_id``."""
    time_unit_s: float | None = None
    """Seconds per unit of ``timestamp``. Default: 0.001, or 1 in a file with ``chat_id`` and decimals."""
    ticks: Literal["spread", "burst"] = "spread"
    """With a coarse clock, ``spread`` the arrivals of a tick over it, or send them as a ``burst`` at its start."""
    output_tokens: int = 256
    """Requested length of the answer of a row that states none, in AIPerf's form."""

    def __post_init__(self) -> None:
        if self.block_tokens is not None and not 1 <= self.block_tokens <= 1_000_000:
            raise ValueError(f"block_tokens must be from 1 to 1000000, not {self.block_tokens}")
        if self.time_unit_s is not None and not 0 < self.time_unit_s <= 86400:
            raise ValueError(f"time_unit_s must be above 0 and at most 86400, not {self.time_unit_s}")
        check_output_tokens(self.output_tokens)

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """The requests, as :class:`bakeoff.workloads.traces.row.Trace` defines them."""
        first, texts = peeked(lines(self.path), _PEEKED_ROWS)
        if first and is_session_form(first[0][1]):
            reading = Sessions(self.block_tokens or _BLOCK_TOKENS, self._session_unit_s(first), self.output_tokens)
            yield from session_rows(self.path, texts, reading, self._check_blocks)
            return
        head, plain = peeked(self._decoded(texts), _PEEKED_ROWS)
        units = self._units(head)
        timed = self._timed(plain, units)
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
                    blocks=line.hash_ids or (),
                    block_tokens=units.block_tokens if line.hash_ids else 0,
                )
        except TooManyRows as cause:
            raise bad(self.path, None, f"{cause}; set ticks = 'burst' to send them at once") from None
        if first_s is None:
            raise bad(self.path, None, "has no row with output tokens")

    def notes(self) -> list[str]:
        """Block size, treatment of coarse clocks, and what is left out of the trace."""
        first, texts = peeked(lines(self.path), _PEEKED_ROWS)
        if first and is_session_form(first[0][1]):
            return self._session_notes(first)
        ticks = "spread uniformly over it, in the order of the file" if self.ticks == "spread" else "sent as a burst"
        head, _ = peeked(self._decoded(texts), _PEEKED_ROWS)
        units = self._units(head)
        unit = _unit_text(units.time_unit_s)
        return [
            f"mooncake: lengths and prefix blocks of {units.block_tokens} tokens as recorded; timestamps count {unit}",
            f"mooncake: if the first rows show a coarse clock, the arrivals of a tick are {ticks}",
            "mooncake: rows with 0 output tokens count as failed and are left out",
        ]

    def _decoded(self, texts: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, _Line]]:
        decoder = msgspec.json.Decoder(_Line, strict=False)
        for row, text in texts:
            yield row, decoded(self.path, row, text, decoder)

    def _session_unit_s(self, head: Sequence[tuple[int, bytes]]) -> float:
        """The unit of times in AIPerf's form: the one given, else what the first rows show."""
        if self.time_unit_s is not None:
            return self.time_unit_s
        stamps = [stamp for _, text in head if (stamp := _stamp(text)) is not None]
        is_whole = all(stamp.is_integer() for stamp in stamps) and not _is_epoch_s(stamps)
        return 0.001 if is_whole else self._unit_s(stamps)  # milliseconds by definition, unless they show otherwise

    def _unit_s(self, stamps: Sequence[float], *, is_open: bool = False) -> float:
        """Seconds of a unit of times; ``is_open`` if it is as likely a second as a millisecond.

        Raises:
            BadTrace: the times may be milliseconds or seconds.
        """
        if _is_epoch_s(stamps):
            return 1.0
        gap = (stamps[-1] - stamps[0]) / (len(stamps) - 1) if len(stamps) > 1 else 0.0
        if 0 < gap < _LEAST_GAP_MS or (is_open and gap):
            raise bad(
                self.path,
                None,
                f"has times that advance by {gap:.3g} a row, so {1000 / gap:.3g} requests/s if they are milliseconds "
                f"and {1 / gap:.3g} if they are seconds; set time_unit_s to 0.001 or 1",
            )
        return 0.001

    def _session_notes(self, head: Sequence[tuple[int, bytes]]) -> list[str]:
        """The same for AIPerf's form."""
        block_tokens = self.block_tokens or _BLOCK_TOKENS
        unit = _unit_text(self._session_unit_s(head))
        return [
            f"mooncake: sessions in AIPerf's form, with blocks of {block_tokens} tokens; timestamps count {unit}",
            "mooncake: input_length and text_input are new text, behind the session's earlier text and answers",
            "mooncake: answers are not recorded, so in text the assistant's messages between turns are empty",
            "mooncake: hash_ids of later turns are not used, as an answer that is not recorded precedes their text",
            "mooncake: delay is the pause before a later turn; without it, the time since the timestamp before",
            "mooncake: of extra and payload only prompt, tools and lengths are sent; other fields, as group_id, not",
            "mooncake: the model ends an answer for which tools are recorded; other answers have the stated length",
            f"mooncake: a row without output_length requests {self.output_tokens} tokens; rows with 0 are left out",
        ]

    def _units(self, head: Sequence[tuple[int, _Line]]) -> _Units:
        """The units: those given, else what the first rows show.

        Raises:
            BadTrace: their times may be milliseconds or seconds.
        """
        of_chats = any(line.chat_id is not None for _, line in head)
        block_tokens = self.block_tokens or (16 if of_chats else _BLOCK_TOKENS)
        if self.time_unit_s is not None:
            return _Units(block_tokens, self.time_unit_s)
        stamps = [line.timestamp for _, line in head]
        if of_chats and not all(stamp.is_integer() for stamp in stamps):
            return _Units(block_tokens, 1.0)
        return _Units(block_tokens, self._unit_s(stamps, is_open=of_chats))

    def _timed(
        self, lines: Iterator[tuple[int, _Line]], units: _Units
    ) -> Iterator[tuple[float, tuple[_Line, str | None]]]:
        """Time in seconds, row and session, in the order of the file."""
        clock, roots = Clock(), dict[int | str, str]()
        for row, line in lines:
            session = _session(line, roots)
            if line.output_length == 0:
                continue
            if line.session_id is not None:
                problem = "has a session_id, but the first row has none of the fields of AIPerf's form"
                raise bad(self.path, row, f"{problem}; give every row a session_id, or split the file")
            self._check_blocks(row, line.input_length, line.hash_ids or (), units.block_tokens)
            try:
                yield clock.offset_s(line.timestamp * units.time_unit_s), (line, session)
            except ValueError as cause:
                raise bad(self.path, row, str(cause)) from None

    def _check_blocks(self, row: int, input_tokens: int, hash_ids: tuple[int, ...], block_tokens: int) -> None:
        count, expected = len(hash_ids), blocks_of(input_tokens, block_tokens)
        if not count or count == expected:
            return
        least = blocks_of(input_tokens, count)
        most = (input_tokens - 1) // (count - 1) if count > 1 else None
        fitting = next((size for size in _USUAL_BLOCKS if least <= size and (most is None or size <= most)), least)
        raise bad(
            self.path,
            row,
            f"has {count} hash_ids, but {input_tokens} tokens make {expected} blocks of {block_tokens}; "
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
