"""Measure a trace in one pass and in bounded memory."""

from collections.abc import Iterator

import msgspec

from bakeoff.workloads.errors import BadTrace
from bakeoff.workloads.fitting.lengths import Lengths, Step
from bakeoff.workloads.fitting.prefixes import Bound, Leading
from bakeoff.workloads.fitting.starts import Arrivals, Starts
from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.grouping import sessions_of
from bakeoff.workloads.traces.row import Trace, TraceRow

FEWEST_ROWS = 50
"""Fewer requests are too few to estimate a distribution."""


class Prefixes(msgspec.Struct, frozen=True):
    """Prefixes that prompts share.

    Attributes:
        bound: fraction of prompt tokens that an unlimited cache hits, in whole blocks.
        block_tokens: tokens per block.
        shared_tokens: length of the prefix that at least 90 % of the sessions share.
        is_cut: whether the trace has more distinct blocks than fit in memory, so that ``bound`` covers its beginning.
    """

    bound: float
    block_tokens: int
    shared_tokens: int
    is_cut: bool


class Observed(msgspec.Struct, frozen=True):
    """Measurements of a trace.

    Attributes:
        arrivals: session starts; None if the trace has no times or all sessions start at once.
        at_once: whether the trace has times and all sessions start at once.
        lengths: lengths, pauses and turns.
        prefixes: None if rows have no block hashes.
        has_sessions: whether rows name their session.
        arrival_thinks: number of pauses measured from request to request, because the end of answers is unknown.
    """

    arrivals: Arrivals | None
    at_once: bool
    lengths: Lengths
    prefixes: Prefixes | None
    has_sessions: bool
    arrival_thinks: int


def observe(trace: Trace, seed: Seed) -> Observed:
    """Read a trace once.

    Raises:
        BadTrace: a row cannot be read or has no lengths, there are fewer than 50 rows, or times decrease.
    """
    observer = _Observer(seed)
    for rows in sessions_of(trace.rows(seed)):
        observer.add(rows)
    return observer.done()


class _Observer:
    def __init__(self, seed: Seed) -> None:
        self._starts = Starts(seed.draws("fit", "ticks"))
        self._timed_sessions = 0
        self._lengths = Lengths()
        self._leading = Leading()
        self._bound = Bound()
        self._block_tokens = 0
        self._has_sessions = False
        self._arrival_thinks = 0

    def add(self, rows: list[TraceRow]) -> None:
        """Add a session."""
        first = rows[0]
        if first.at_s is not None:
            self._timed_sessions += 1
            try:
                self._starts.add(first.at_s)
            except ValueError as error:
                raise _no_arrivals(error) from error
        self._has_sessions = self._has_sessions or first.session is not None
        self._lengths.add(list(self._steps(rows)))
        if first.blocks:
            self._leading.add(_whole_blocks(first))
        for row in rows:
            if row.blocks:
                self._block_tokens = row.block_tokens
                self._bound.add(_whole_blocks(row), row.block_tokens, row.input_tokens or 0)

    def done(self) -> Observed:
        """The measurements so far."""
        rows = len(self._lengths.requests)
        if rows < FEWEST_ROWS:
            raise BadTrace(f"the trace has {rows} requests; a fit needs at least {FEWEST_ROWS}")
        try:
            arrivals = self._starts.done()
        except ValueError as error:
            raise _no_arrivals(error) from error
        bound, prefixes = self._bound.share, None
        if bound is not None:
            shared = self._leading.common() * self._block_tokens
            prefixes = Prefixes(bound, self._block_tokens, shared, self._bound.is_full)
        return Observed(
            arrivals=arrivals,
            at_once=arrivals is None and self._timed_sessions > 1,
            lengths=self._lengths,
            prefixes=prefixes,
            has_sessions=self._has_sessions,
            arrival_thinks=self._arrival_thinks,
        )

    def _steps(self, rows: list[TraceRow]) -> Iterator[Step]:
        last: TraceRow | None = None
        for row in rows:
            if row.input_tokens is None or row.output_tokens is None:
                number = len(self._lengths.requests) + 1
                raise BadTrace(f"request {number} of the trace has no lengths, only text; a fit needs lengths")
            yield row.input_tokens, row.output_tokens, self._think_s(row, last)
            last = row

    def _think_s(self, row: TraceRow, last: TraceRow | None) -> float | None:
        """The recorded pause, or else the time since the previous request."""
        if last is None or row.think_s is not None or row.at_s is None or last.at_s is None:
            return row.think_s
        self._arrival_thinks += 1
        return max(0.0, row.at_s - last.at_s)


def _no_arrivals(error: ValueError) -> BadTrace:
    """Error for times that decrease, or span more than three years."""
    return BadTrace(f"the times of the trace are not valid arrivals: {error}")


def _whole_blocks(row: TraceRow) -> tuple[int, ...]:
    return row.blocks[: (row.input_tokens or 0) // row.block_tokens]
