"""``claude-code-flat``: the same sessions as one table with the length of each request's shared prefix."""

from collections.abc import Iterator

import msgspec

from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.blocks import BlockHashes, blocks_of
from bakeoff.workloads.traces.checks import amount, quoted, tokens
from bakeoff.workloads.traces.reading import bad
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.traces.table import Header, table

_COLUMNS = ("trace_id", "req_index", "input_tokens", "output_tokens", "prefix_hit_blocks", "think_time_s")
_START = "t_s"


class ClaudeCodeFlat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows of trace_id, req_index, input_tokens, output_tokens, prefix_hit_blocks, think_time_s and optionally t_s.

    Other columns are ignored.
    """

    path: str
    """The CSV file, plain or gzip; rows of one session must be adjacent."""
    block_tokens: int = 64
    """Tokens per block of ``prefix_hit_blocks``."""

    def __post_init__(self) -> None:
        if not 1 <= self.block_tokens <= 1_000_000:
            raise ValueError(f"block_tokens must be from 1 to 1000000, not {self.block_tokens}")

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """The requests, as :class:`bakeoff.workloads.traces.row.Trace` defines them."""
        del seed  # the trace leaves nothing to chance
        session: _Session | None = None
        names = set[str]()
        for row, (name, *fields) in table(self.path, _chosen):
            try:
                if session is None or session.name != name:
                    session = _Session(name, self.block_tokens, names)
                request = session.turn(*fields)
            except ValueError as cause:
                raise bad(self.path, row, str(cause)) from None
            yield request

    def notes(self) -> list[str]:
        """How prefixes are reconstructed and what is added."""
        return [
            "claude-code-flat: lengths and think times as recorded; sessions have no common clock",
            "claude-code-flat: a missing think time is the time since the previous request (t_s), its answer included",
            f"claude-code-flat: prefix_hit_blocks are shared with an earlier request, {self.block_tokens} tokens each",
            "claude-code-flat: an answer abandoned at 0 tokens is requested with 1",
        ]


def _chosen(header: Header) -> tuple[str, ...]:
    return (*_COLUMNS, _START) if _START in header else _COLUMNS


class _Session:
    """The prompts of one session that later ones can share."""

    def __init__(self, name: str, block_tokens: int, names: set[str]) -> None:
        if name in names:
            raise ValueError(f"trace_id {quoted(name)} is not in adjacent rows; sort by trace_id and req_index")
        names.add(name)
        self.name = name
        self._block_tokens = block_tokens
        self._hashes = BlockHashes(name)
        self._named = 0
        self._index: int | None = None
        self._start_s: float | None = None
        self._is_first = True
        self._last: tuple[int, ...] = ()
        self._longest: tuple[int, ...] = ()

    def turn(self, index: str, inputs: str, outputs: str, hits: str, *pause: str) -> TraceRow:
        """Parse the next request.

        Raises:
            ValueError: a field is not a number, out of range, or inconsistent with the previous requests.
        """
        last_index = self._index
        self._is_first = last_index is None
        self._index = tokens(index, "req_index", 0)
        if last_index is not None and self._index <= last_index:
            raise ValueError(f"req_index {self._index} follows {last_index}; sort by trace_id and req_index")
        input_tokens = tokens(inputs, "input_tokens", 1)
        blocks = self._prompt(blocks_of(input_tokens, self._block_tokens), tokens(hits, "prefix_hit_blocks", 0))
        think_s = self._pause_s(*pause)
        output_tokens = max(1, tokens(outputs, "output_tokens", 0))
        return TraceRow(None, input_tokens, output_tokens, self.name, think_s, blocks, self._block_tokens)

    def _pause_s(self, think: str, start: str = "") -> float | None:
        last_start_s, self._start_s = self._start_s, amount(start, _START) if start else None
        if think or last_start_s is None or self._start_s is None:
            return amount(think, "think_time_s") if think and not self._is_first else None
        return max(0.0, self._start_s - last_start_s)

    def _prompt(self, count: int, hits: int) -> tuple[int, ...]:
        shared = self._last if hits <= len(self._last) else self._longest
        most = min(count, len(shared))
        if hits > most:
            raise ValueError(
                f"prefix_hit_blocks is {hits}, but this prompt can share {most} blocks with an earlier one"
            )
        fresh = range(self._named, self._named + count - hits)
        self._named = fresh.stop
        self._last = shared[:hits] + tuple(map(self._hashes.__getitem__, fresh))
        if count >= len(self._longest):
            self._longest = self._last
        return self._last
