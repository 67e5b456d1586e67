"""Samples of bounded size from streams of any length, the same on every machine."""

from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
KEPT = 200_000
_CHUNK = 32_768


class Sample:
    """Keeps at most ``KEPT`` rows of a stream, every one as likely as every other, and the mean of all.

    A row's rank is a hash of its number; the rows of lowest rank are kept (bottom-k sampling). Columns of one row stay
    together, so that pairs can be ranked against each other.

    Args:
        columns: numbers in a row.
        kept: most rows that are kept.
    """

    def __init__(self, columns: int = 1, kept: int = KEPT) -> None:
        self._columns = columns
        self._kept = kept
        self._waiting = array("d")
        self._limit = _CHUNK * columns
        self._rows: Floats = np.empty((0, columns))
        self._ranks: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._taken = 0
        self._sums: Floats = np.zeros(columns)
        self._highest: Floats = np.full(columns, -np.inf)

    def add(self, row: Iterable[float]) -> None:
        """Take in a row of ``columns`` numbers, or several rows one after another."""
        self._waiting.extend(row)
        if len(self._waiting) >= self._limit:
            self._take_in()

    def __len__(self) -> int:
        """Rows that were taken in."""
        return self._taken + len(self._waiting) // self._columns

    def column(self, number: int = 0) -> Floats:
        """The kept values of a column, in the order of the stream."""
        self._take_in()
        return self._rows[:, number]

    def mean(self, number: int = 0) -> float:
        """Exact, of all rows; there must be one."""
        self._take_in()
        return float(self._sums[number] / self._taken)

    def highest(self, number: int = 0) -> float:
        """Exact, of all rows; there must be one."""
        self._take_in()
        return float(self._highest[number])

    def _take_in(self) -> None:
        if not self._waiting:
            return
        rows = np.array(self._waiting).reshape(-1, self._columns)
        self._waiting = array("d")
        ranks = _hashed(np.arange(self._taken, self._taken + len(rows), dtype=np.uint64))
        self._taken += len(rows)
        self._sums += rows.sum(axis=0)
        self._highest = np.maximum(self._highest, rows.max(axis=0))
        self._rows, self._ranks = np.concatenate((self._rows, rows)), np.concatenate((self._ranks, ranks))
        if len(self._rows) > self._kept:
            lowest = np.sort(np.argpartition(self._ranks, self._kept - 1)[: self._kept])
            self._rows, self._ranks = self._rows[lowest], self._ranks[lowest]


def spearman(x: Floats, y: Floats) -> float:
    """Rank correlation of two columns, ties at their middle rank; 0 where one of them never changes."""
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
