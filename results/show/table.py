"""A table as a value."""

import itertools
from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

Texts = Iterable[Sequence[str]]
"""Rows of texts."""


class Tone(StrEnum):
    """What a figure says, as a class of the page's style."""

    BAD = "bad"
    ZERO = "zero"


class Cell(msgspec.Struct, frozen=True):
    """A cell.

    Attributes:
        text: a name, or a centre with its unit, in one line.
        detail: what qualifies it, such as the bounds of its interval.
        tone: None for most figures.
        colour: class of the engine that the text names; empty for another text.
    """

    text: str
    detail: str = ""
    tone: Tone | None = None
    colour: str = ""


class Column(msgspec.Struct, frozen=True):
    """A column.

    Attributes:
        title: its heading.
        is_number: whether its cells are figures, which stand on the right.
        is_wide: whether a terminal, which has no room for all columns, leaves it out.
        group: a heading above this one, which neighbours share; empty for none.
        anchor: of its definition on the page; empty for none.
    """

    title: str
    is_number: bool = True
    is_wide: bool = False
    group: str = ""
    anchor: str = ""


class Table(msgspec.Struct, frozen=True):
    """A table.

    Attributes:
        label: what it shows, for screen readers.
        columns: from left to right.
        rows: cells by column.
        title: its heading; empty where it needs none.
        lead: a sentence above it, on the page.
        notes: lines below it.
        total: a last row, set apart; empty for none.
    """

    label: str
    columns: list[Column]
    rows: list[list[Cell]]
    title: str = ""
    lead: str = ""
    notes: list[str] = []
    total: list[Cell] = []

    @property
    def heads(self) -> list[list[Column]]:
        """The columns, those that share a group together."""
        of_group = itertools.groupby(enumerate(self.columns), lambda pair: pair[1].group or pair[0])
        return [[column for _, column in pairs] for _, pairs in of_group]


def names(*titles: str) -> list[Column]:
    """Columns of texts."""
    return [Column(title, is_number=False) for title in titles]


def figures(titles: Sequence[str]) -> list[Column]:
    """Columns of figures."""
    return [Column(title) for title in titles]


def text_table(
    label: str, headings: Sequence[str], rows: Texts, *, named: int = 1, title: str = "", total: Sequence[str] = ()
) -> Table:
    """A table of plain texts.

    Args:
        label: as in :class:`Table`.
        headings: of the columns.
        rows: a text for each heading.
        named: number of the first columns, which name what the figures in the others are of.
        title: as in :class:`Table`.
        total: likewise.
    """
    columns = [*names(*headings[:named]), *figures(headings[named:])]
    return Table(label, columns, [list(map(Cell, row)) for row in rows], title, total=list(map(Cell, total)))
