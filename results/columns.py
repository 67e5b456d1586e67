"""Columns of one kind of value, as numpy arrays in as few bits as hold them."""

import itertools
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
UNKNOWN = np.iinfo(np.int64).min
"""Stands for None in a column of integers."""
_MAX_SMALL = 64
"""Parts of an array that are added before they are joined."""


def _narrowed(values: np.ndarray) -> np.ndarray:
    """Integers of 64 bits in the fewest bits that hold all of them."""
    if values.dtype != np.int64 or not len(values):
        return values
    low, high = int(values.min()), int(values.max())
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return values.astype(kind)
    return values


class _Parts:
    """An array in parts that follow each other, many of them small.

    Small ones are joined from time to time, since an allocator keeps the memory of a thousand small arrays.
    """

    def __init__(self) -> None:
        self._joined: list[np.ndarray] = []
        self._small: list[np.ndarray] = []

    def append(self, part: np.ndarray) -> None:
        """Add a part at the end."""
        self._small.append(part)
        if len(self._small) == _MAX_SMALL:
            self._joined.append(np.concatenate(self._small))
            self._small = []

    def take(self) -> np.ndarray | None:
        """The whole array, which is then no longer held; None if there was no part."""
        parts = [*self._joined, *self._small]
        self._joined, self._small = [], []
        return np.concatenate(parts) if parts else None


class Column(ABC):
    """Values of one field; subclasses store a kind of value.

    A column whose values are all the field's default takes no memory.
    """

    def __init__(self) -> None:
        self._parts = _Parts()

    def add(self, values: Sequence[Any]) -> None:
        """Append values."""
        self._parts.append(_narrowed(self._encoded(values)))

    def extend(self, other: "Column", rows: Ints) -> None:
        """Append rows of another column of the same field."""
        self._parts.append(other.array[rows])

    @cached_property
    def array(self) -> np.ndarray:
        """All values, once nothing is added any more."""
        joined = self._parts.take()
        return _narrowed(self._encoded([]) if joined is None else joined)

    @abstractmethod
    def values(self, rows: Ints) -> list[Any]:
        """Values of rows, as in the records."""

    @abstractmethod
    def _encoded(self, values: Sequence[Any]) -> np.ndarray:
        """Values as this kind of column stores them."""


class IntColumn(Column):
    """Integers, or None."""

    def values(self, rows: Ints) -> list[Any]:
        taken = self.array[rows]
        known = taken.tolist()
        return [None if value == UNKNOWN else value for value in known] if (taken == UNKNOWN).any() else known

    def _encoded(self, values: Sequence[Any]) -> np.ndarray:
        return np.array([UNKNOWN if value is None else value for value in values], dtype=np.int64)


class FloatColumn(Column):
    """Numbers."""

    def values(self, rows: Ints) -> list[Any]:
        return self.array[rows].tolist()

    def _encoded(self, values: Sequence[Any]) -> np.ndarray:
        return np.array(values, dtype=np.float64)


class CodeColumn(Column):
    """One of few values, such as members of an enum.

    Args:
        choices: the values.
    """

    def __init__(self, choices: Sequence[Any]) -> None:
        super().__init__()
        self.choices: list[Any] = list(choices)
        self._codes = {choice: code for code, choice in enumerate(self.choices)}

    def values(self, rows: Ints) -> list[Any]:
        return [self.choices[code] for code in self.array[rows].tolist()]

    def _encoded(self, values: Sequence[Any]) -> np.ndarray:
        return np.array([self._codes[value] for value in values], dtype=np.int8)


class ManyColumn(Column):
    """Several items for each request, behind one another; the array has their numbers, -1 for None."""

    item_type: ClassVar[type[np.generic]]

    def __init__(self) -> None:
        super().__init__()
        self._items = _Parts()

    @cached_property
    def items(self) -> np.ndarray:
        """All items, once nothing is added any more."""
        joined = self._items.take()
        return _narrowed(np.empty(0, self.item_type) if joined is None else joined)

    @cached_property
    def starts(self) -> np.ndarray:
        """Integers of any width, the place of each request's first item."""
        counts = np.maximum(self.array, 0)
        return _narrowed(np.cumsum(counts, dtype=np.int64) - counts)

    def gathered(self, rows: Ints) -> np.ndarray:
        """The items of rows, one row after another."""
        if len(rows) == len(self.array) and (np.diff(rows) == 1).all():
            return self.items
        starts, counts = self.starts[rows], np.maximum(self.array[rows], 0).astype(np.int64)
        places = np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
        return self.items[places]

    def extend(self, other: Column, rows: Ints) -> None:
        super().extend(other, rows)
        assert isinstance(other, ManyColumn)
        self._items.append(other.gathered(rows))

    def _add_items(self, counts: Sequence[int], items: np.ndarray) -> None:
        self._parts.append(np.array(counts, dtype=np.int32))
        self._items.append(_narrowed(items))

    def _encoded(self, values: Sequence[Any]) -> np.ndarray:
        return np.zeros(len(values), dtype=np.int32)


class TextColumn(ManyColumn):
    """Texts or None, in UTF-8."""

    item_type = np.uint8

    def add(self, values: Sequence[Any]) -> None:
        encoded = [b"" if value is None else value.encode("utf-8", "surrogatepass") for value in values]
        counts = [-1 if value is None else len(own) for value, own in zip(values, encoded, strict=True)]
        self._add_items(counts, np.frombuffer(b"".join(encoded), dtype=np.uint8))

    def values(self, rows: Ints) -> list[Any]:
        data = self.gathered(rows).tobytes()
        counts = self.array[rows]
        ends = np.cumsum(np.maximum(counts, 0), dtype=np.int64).tolist()
        return [
            None if count < 0 else data[end - count : end].decode("utf-8", "surrogatepass")
            for end, count in zip(ends, counts.tolist(), strict=True)
        ]


class ListColumn(ManyColumn):
    """Lists of integers, or None.

    Args:
        make: list or tuple.
    """

    item_type = np.int64

    def __init__(self, make: Callable[[list[int]], Any] = list) -> None:
        super().__init__()
        self._make = make

    def add(self, values: Sequence[Any]) -> None:
        counts = [-1 if value is None else len(value) for value in values]
        present = itertools.chain.from_iterable(value for value in values if value is not None)
        self._add_items(counts, np.fromiter(present, np.int64, sum(max(0, count) for count in counts)))

    def values(self, rows: Ints) -> list[Any]:
        items, make = self.gathered(rows).tolist(), self._make
        counts = self.array[rows]
        ends = np.cumsum(np.maximum(counts, 0), dtype=np.int64).tolist()
        return [
            None if count < 0 else make(items[end - count : end])
            for end, count in zip(ends, counts.tolist(), strict=True)
        ]


def column_for(annotation: Any) -> Column:  # noqa: ANN401  (a type)
    """An empty column for the values of a field with this annotation."""
    parts = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    kinds = [part for part in parts if part is not type(None)]
    kind, is_optional = kinds[0], len(kinds) < len(parts)
    if typing.get_origin(kind) in {list, tuple}:
        return ListColumn(typing.get_origin(kind))
    if kind is bool or issubclass(kind, StrEnum):
        choices = (False, True) if kind is bool else tuple(kind)
        return CodeColumn((*choices, None) if is_optional else choices)
    return {int: IntColumn, float: FloatColumn, str: TextColumn}[kind]()
