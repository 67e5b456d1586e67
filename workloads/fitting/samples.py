"""Bounded random samples of streams, the same on every machine."""

from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MAX_ROWS = 200_000
_CHUNK = 32_768


class Sample:
    """A uniform random sample of at most ``MAX_ROWS`` rows of a stream, with the exact mean of all rows.

    Bottom-k sampling: a row's rank is a hash of its number, and the rows of lowest rank stay in the sample. Rows stay
    whole, so columns can be correlated.

    Args:
        columns: numbers per row.
        max_rows: size of the sample.
    """

    def __init__(self, columns: int = 1, max_rows: int = MAX_ROWS) -> None:
        self._columns = columns
        self._max_rows = max_rows
        self._buffer = array("d")
        self._limit = _CHUNK * columns
        self._rows: Floats = np.empty((0, columns))
        self._ranks: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._count = 0
        self._sums: Floats = np.zeros(columns)
        self._highest: Floats = np.full(columns, -np.inf)

    def add(self, row: Iterable[float]) -> None:
        """Add a row of ``columns`` numbers, or several rows concatenated."""
        self._buffer.extend(row)
        if len(self._buffer) >= self._limit:
            self._flush()

    def __len__(self) -> int:
        """Number of rows added."""
        return self._count + len(self._buffer) // self._columns

    def column(self, number: int = 0) -> Floats:
        """The sampled values of a column, in the order of the stream."""
        self._flush()
        return self._rows[:, number]

    def mean(self, number: int = 0) -> float:
        """Exact mean of all rows added; there must be one."""
        self._flush()
        return float(self._sums[number] / self._count)

    def highest(self, number: int = 0) -> float:
        """Exact maximum of all rows added; there must be one."""
        self._flush()
        return float(self._highest[number])

    def _flush(self) -> None:
        if not self._buffer:
            return
        rows = np.array(self._buffer).reshape(-1, self._columns)
        self._buffer = array("d")
        ranks = _hashed(np.arange(self._count, self._count + len(rows), dtype=np.uint64))
        self._count += len(rows)
        self._sums += rows.sum(axis=0)
        self._highest = np.maximum(self._highest, rows.max(axis=0))
        self._rows, self._ranks = np.concatenate((self._rows, rows)), np.concatenate((self._ranks, ranks))
        if len(self._rows) > self._max_rows:
            lowest = np.sort(np.argpartition(self._ranks, self._max_rows - 1)[: self._max_rows])
            self._rows, self._ranks = self._rows[lowest], self._ranks[lowest]


def spearman(x: Floats, y: Floats) -> float:
    """Spearman's rank correlation, ties at their middle rank; 0 if a column is constant."""
    ranks_x, ranks_y = _middle_ranks(x), _middle_ranks(y)
    if len(x) < 2 or np.ptp(ranks_x) == 0 or np.ptp(ranks_y) == 0:
        return 0.0
    return float(np.corrcoef(ranks_x, ranks_y)[0, 1])


def _middle_ranks(values: Floats) -> Floats:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def _hashed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    mixed = numbers * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
