"""Decoded requests in columns: a few hundred bytes each, so that metrics of a million of them fit into memory.

:class:`Requests` is a sequence of :class:`~bakeoff.results.records.RequestRecord`, which it makes when they are asked
for. Metrics read whole columns instead, as numpy arrays.
"""

import itertools
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, overload

import msgspec
import numpy as np
import numpy.typing as npt

from bakeoff.results.columns import UNKNOWN, CodeColumn, Column, FloatColumn, Ints, ManyColumn, column_for
from bakeoff.results.records import Outcome, Phase, RequestRecord, TokenSource, Window
from bakeoff.results.units import NS_PER_S

Places = npt.NDArray[np.int32]
"""Positions of requests."""
Narrow = npt.NDArray[np.integer[Any]]
"""Integers in as few bits as hold all of them."""
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
_SLICE = 4096
"""Records that exist at a time, while columns are made or read."""
_MIN_AT_ONCE, _LEAST_TOKEN_NS = 8, 100_000
"""Tokens of an answer, and nanoseconds between two of them: the fastest engines reach a third of that pace."""
_T = TypeVar("_T")


def inside(times_ns: npt.NDArray[np.integer[Any]], window: Window) -> Flags:
    """Whether times lie within a window; its end does not."""
    return (times_ns >= window.start_ns) & (times_ns < window.end_ns)


_ANNOTATIONS = typing.get_type_hints(RequestRecord)
_FIELDS = {field.name: field for field in msgspec.structs.fields(RequestRecord)}
_REQUIRED = frozenset(name for name, field in _FIELDS.items() if field.required)
_DEFAULTS = {
    name: None if field.required else field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    for name, field in _FIELDS.items()
}


class _Table:
    """The columns of all requests that were added; those whose values are all the default are absent."""

    def __init__(self, records: Iterable[RequestRecord]) -> None:
        self.columns: dict[str, Column] = {}
        self.count: int = 0
        iterator = iter(records)
        while batch := list(itertools.islice(iterator, _SLICE)):
            self._add(batch)

    def extend(self, other: "_Table", rows: Ints) -> None:
        """Append rows of another table."""
        for name in dict.fromkeys((*self.columns, *other.columns)):
            column = self._column(name)
            if name in other.columns:
                column.extend(other.columns[name], rows)
            else:
                _fill(column, name, len(rows))
        self.count += len(rows)

    def _add(self, batch: Sequence[RequestRecord]) -> None:
        for name, default in _DEFAULTS.items():
            values = [getattr(record, name) for record in batch]
            is_needed = name in self.columns or name in _REQUIRED or any(value != default for value in values)
            if is_needed:
                self._column(name).add(values)
        self.count += len(batch)

    def _column(self, name: str) -> Column:
        """A column, filled so far with the default."""
        column = self.columns.get(name)
        if column is None:
            column = self.columns[name] = column_for(_ANNOTATIONS[name])
            _fill(column, name, self.count)
        return column


def _fill(column: Column, name: str, count: int) -> None:
    for first in range(0, count, _SLICE):
        column.add([_DEFAULTS[name]] * min(_SLICE, count - first))


class _Selection(NamedTuple):
    """Rows of a table."""

    table: _Table
    rows: Ints


class Chunks:
    """The token-bearing chunks of some requests, one request after another.

    Attributes:
        ns: int64, when each arrived.
        tokens: integers of any width, how many tokens each carried.
        counts: int64 [requests], chunks of each request.
        starts: int64 [requests], the place of each request's first chunk.
    """

    def __init__(self, ns: Ints, tokens: Narrow, counts: Ints) -> None:
        self.ns: Ints = ns
        self.tokens: Narrow = tokens
        self.counts: Ints = counts
        self.starts: Ints = np.cumsum(counts) - counts

    @cached_property
    def request(self) -> Places:
        """The position of each chunk's request."""
        return np.repeat(np.arange(len(self.counts), dtype=np.int32), self.counts)

    @cached_property
    def first_ns(self) -> Ints:
        """When the first chunk of each request arrived; :data:`UNKNOWN` without one."""
        return self._at(self.ns, self.starts)

    @cached_property
    def last_ns(self) -> Ints:
        """When the last chunk of each request arrived; :data:`UNKNOWN` without one."""
        return self._at(self.ns, self.starts + self.counts - 1)

    @cached_property
    def first_tokens(self) -> Ints:
        """Tokens of each request's first chunk; 0 without one."""
        return np.where(self.counts > 0, self._at(self.tokens, self.starts), 0)

    @cached_property
    def total_tokens(self) -> Ints:
        """Tokens of each request."""
        return self.sums(self.tokens)

    def sums(self, values: npt.NDArray[Any]) -> Ints:
        """Sum of one integer per chunk, over each request."""
        totals = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        return totals[self.starts + self.counts] - totals[self.starts]

    @cached_property
    def reads(self) -> "Chunks":
        """Consecutive chunks with one time as one: how an engine packs events into segments is no pause."""
        is_first = np.ones(len(self.ns), dtype=bool)
        is_first[1:] = (np.diff(self.ns) != 0) | (np.diff(self.request) != 0)
        if is_first.all():
            return self
        places = np.flatnonzero(is_first)
        return Chunks(
            self.ns[places], np.add.reduceat(self.tokens, places, dtype=np.int64), self.sums(is_first.astype(np.int64))
        )

    @cached_property
    def token_reads(self) -> "Chunks":
        """The reads in which a token begins; the last of an answer ends when its last token does, which may be later.

        So the gaps between them sum to the time from the first read to the last one.
        """
        reads = self.reads
        is_first = np.zeros(len(reads.ns), dtype=bool)
        is_first[reads.starts[reads.counts > 0]] = True
        begins = is_first | (reads.tokens > 0)
        if begins.all():
            return reads
        places = np.flatnonzero(begins)
        found = Chunks(reads.ns[places], reads.tokens[places], reads.sums(begins.astype(np.int64)))
        has_gap = found.counts > 1
        found.ns[(found.starts + found.counts - 1)[has_gap]] = reads.last_ns[has_gap]
        return found

    def _at(self, values: Narrow, places: Ints) -> Ints:
        found = np.full(len(self.counts), UNKNOWN, dtype=np.int64)
        has_chunks = self.counts > 0
        found[has_chunks] = values[places[has_chunks]]
        return found


class Requests(Sequence[RequestRecord]):  # noqa: PLW1641  (a sequence that compares by value, and is not hashable)
    """Decoded requests of a trial, or some of them, in columns.

    Args:
        records: to store; other requests are taken as they are.
    """

    def __init__(self, records: "Iterable[RequestRecord] | _Selection" = ()) -> None:
        self._table, self._rows = _rows_of(records)
        self._cache: dict[Any, Any] = {}

    @classmethod
    def joined(cls, parts: "Sequence[Requests]") -> "Requests":
        """Requests of several trials, one trial after another."""
        if len(parts) == 1:
            return parts[0]
        table = _Table(())
        for part in parts:
            table.extend(*part.selection)
        return cls(_Selection(table, np.arange(table.count)))

    def take(self, chosen: Flags | Ints) -> "Requests":
        """Some of these requests, by a flag for each or by their positions."""
        is_all = chosen.all() if chosen.dtype == np.bool_ else np.array_equal(chosen, np.arange(len(self)))
        if is_all:
            return self  # with what was computed from them
        return Requests(_Selection(self._table, self._rows[chosen]))

    @property
    def selection(self) -> _Selection:
        """What :class:`Requests` is made from."""
        return _Selection(self._table, self._rows)

    def once(self, compute: "Callable[[Requests], _T]") -> _T:
        """What ``compute`` returns for these requests; several metrics share it."""
        if compute not in self._cache:
            self._cache[compute] = compute(self)
        return self._cache[compute]

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> RequestRecord: ...
    @overload
    def __getitem__(self, index: slice) -> "Requests": ...
    def __getitem__(self, index: int | slice) -> "RequestRecord | Requests":
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        (record,) = self._records(self._rows[[index]])
        return record

    def __iter__(self) -> Iterator[RequestRecord]:
        for first in range(0, len(self), _SLICE):
            yield from self._records(self._rows[first : first + _SLICE])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return f"<{len(self):,} requests>"

    def ints(self, name: str) -> Ints:
        """A field of integers; :data:`UNKNOWN` for None."""
        column = self._table.columns.get(name)
        if column is not None:
            return column.array[self._rows].astype(np.int64, copy=False)
        default = _DEFAULTS[name]
        return np.full(len(self), UNKNOWN if default is None else default, dtype=np.int64)

    def numbers(self, name: str) -> Floats:
        """A field of integers or numbers; NaN for None."""
        column = self._table.columns.get(name)
        if isinstance(column, FloatColumn):
            return column.array[self._rows]
        if column is None and isinstance(_DEFAULTS[name], float):
            return np.full(len(self), _DEFAULTS[name])
        values = self.ints(name)
        return np.where(values == UNKNOWN, np.nan, values.astype(np.float64))

    def values(self, name: str) -> list[Any]:
        """Any field, as in the records."""
        column = self._table.columns.get(name)
        return [_DEFAULTS[name]] * len(self) if column is None else column.values(self._rows)

    def equal(self, name: str, value: object) -> Flags:
        """Whether a field has a value, for each request; quickest for enums and flags."""
        column = self._table.columns.get(name)
        if column is None:
            return np.full(len(self), _DEFAULTS[name] == value)
        if isinstance(column, CodeColumn):
            return column.array[self._rows] == column.choices.index(value)
        return np.array([each == value for each in column.values(self._rows)], dtype=bool)

    def lengths(self, name: str) -> Ints:
        """Items of a field of lists, or bytes of a field of texts; 0 for None."""
        column = self._table.columns.get(name)
        if column is None:
            return np.zeros(len(self), dtype=np.int64)
        return np.maximum(column.array[self._rows], 0).astype(np.int64)

    def is_present(self, name: str) -> Flags:
        """Whether a field of lists or texts is not None, for each request."""
        column = self._table.columns.get(name)
        if column is None:
            return np.full(len(self), _DEFAULTS[name] is not None)
        return column.array[self._rows] >= 0

    @property
    def is_ok(self) -> Flags:
        """Whether each succeeded."""
        return self.equal("outcome", Outcome.OK)

    @property
    def is_cancelled(self) -> Flags:
        """Whether the client gave each up."""
        return self.equal("outcome", Outcome.CANCELLED)

    @property
    def has_failed(self) -> Flags:
        """Whether each failed; one that the client gave up neither failed nor succeeded."""
        return ~self.is_ok & ~self.is_cancelled

    @property
    def under_load(self) -> "Requests":
        """Those of ramp, window and tail, without warm-up."""
        return self.take(~self.equal("phase", Phase.WARMUP))

    @property
    def ok(self) -> "Requests":
        """Those that succeeded."""
        return self.take(self.is_ok)

    def planned_inside(self, window: Window) -> "Requests":
        """Those planned within a window."""
        return self.take(inside(self.ints("planned_ns"), window))

    @property
    def placed(self) -> Flags:
        """Whether the tokens of each have times of their own."""
        return ~self.equal("token_source", TokenSource.UNPLACED) & ~self.came_at_once

    @property
    def came_at_once(self) -> Flags:
        """Whether each has several tokens that came faster than any engine generates: something held them back."""
        chunks = self.chunks
        later = chunks.total_tokens - chunks.first_tokens
        spans_ns = np.where(chunks.counts > 0, chunks.last_ns - chunks.first_ns, 0)
        return (chunks.total_tokens >= _MIN_AT_ONCE) & (chunks.counts > 1) & (spans_ns < _LEAST_TOKEN_NS * later)

    @property
    def chunks(self) -> Chunks:
        """Their token-bearing chunks."""
        return self.once(_chunks)

    @property
    def is_reasoning(self) -> Flags:
        """Whether each of their chunks is reasoning, as in :attr:`chunks`."""
        return self.once(_is_reasoning)

    @property
    def is_visible(self) -> Flags:
        """Whether a user sees each of their chunks: text or a tool call, with text in it."""
        chunks, seen = self.chunks, ~self.is_reasoning
        seen[np.repeat(chunks.starts, self.lengths("textless_chunks")) + self.flat("textless_chunks")] = False
        return seen

    def flat(self, name: str) -> Narrow:
        """The items of a field of lists, or the bytes of a field of texts, one request after another."""
        column = self._table.columns.get(name)
        if column is None:
            return np.empty(0, dtype=np.int64)
        assert isinstance(column, ManyColumn)
        return column.gathered(self._rows)

    def seconds_from(self, start: str, end_ns: Ints) -> Floats:
        """Seconds from a time of each request to ``end_ns``; NaN where either is unknown."""
        start_ns = self.ints(start)
        is_known = (start_ns != UNKNOWN) & (end_ns != UNKNOWN)
        return np.where(is_known, np.where(is_known, end_ns - start_ns, 0) / NS_PER_S, np.nan)

    def _records(self, rows: Ints) -> Iterator[RequestRecord]:
        columns = self._table.columns
        names = tuple(columns)
        for values in zip(*(column.values(rows) for column in columns.values()), strict=True):
            yield RequestRecord(**dict(zip(names, values, strict=True)))


def _rows_of(records: Iterable[RequestRecord] | _Selection) -> _Selection:
    if isinstance(records, _Selection):
        return records
    if isinstance(records, Requests):
        return records.selection
    table = _Table(records)
    return _Selection(table, np.arange(table.count))


def _is_reasoning(requests: Requests) -> Flags:
    has_kinds = requests.lengths("chunk_kinds") > 0
    is_reasoning = np.zeros(len(requests.chunks.ns), dtype=bool)
    is_reasoning[np.repeat(has_kinds, requests.chunks.counts)] = requests.flat("chunk_kinds") == ord("r")
    return is_reasoning


def _chunks(requests: Requests) -> Chunks:
    times_ns = requests.flat("chunk_ns").astype(np.int64, copy=False)
    return Chunks(times_ns, requests.flat("chunk_tokens"), requests.lengths("chunk_ns"))
