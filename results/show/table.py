"""A table as a value."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, StrEnum, auto
from typing import Any

import msgspec
from markupsafe import Markup

from bakeoff.results.text.format import ABSENT

Texts = Iterable[Sequence[str]]
"""Rows of texts."""


class Tone(StrEnum):
    """What a figure says, as a class of the page's style."""

    BAD = "bad"
    ZERO = "zero"
    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    UNCLEAR = "unclear"


class Cell(msgspec.Struct, frozen=True):
    """A cell.

    Attributes:
        text: a name, or a centre with its unit, in one line.
        detail: what qualifies it, such as the bounds of its interval.
        tone: None for most figures.
        colour: class of the engine that the text names; empty for another text.
        picture: draws the figure, for the page; None for none.
        link: address that the text leads to; empty for none.
        value: what programs read instead of the text; None for the text.
    """

    text: str
    detail: str = ""
    tone: Tone | None = None
    colour: str = ""
    picture: Callable[[], Markup] | None = None
    link: str = ""
    value: Any = None


class Kind(Enum):
    """What the cells of a column are."""

    GROUP = auto()
    """What neighbouring rows share: a heading above them in a terminal and on the page. Only the first column."""
    NAME = auto()
    FIGURE = auto()
    """Numbers, which stand on the right."""
    PICTURE = auto()
    """Drawings, which only the page has."""
    REASON = auto()
    """Sentences, of which many rows share one: footnotes in a terminal."""


TEXTS = (Kind.GROUP, Kind.NAME, Kind.FIGURE, Kind.REASON)
"""The kinds of cells that are texts."""


class Column(msgspec.Struct, frozen=True):
    """A column.

    Attributes:
        title: its heading.
        kind: what its cells are.
        is_wide: whether a terminal, which has no room for all columns, leaves it out.
        group: a heading above this one, which neighbours share; empty for none.
        anchor: of its definition on the page; empty for none.
    """

    title: str
    kind: Kind = Kind.FIGURE
    is_wide: bool = False
    group: str = ""
    anchor: str = ""

    @property
    def heading(self) -> str:
        """The title, with that of its group."""
        return f"{self.group} {self.title}".strip()


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
        """The columns of the page, those that share a group together."""
        columns = [self.columns[number] for number in self.shown(Kind.NAME, Kind.FIGURE, Kind.PICTURE, Kind.REASON)]
        of_group = itertools.groupby(enumerate(columns), lambda pair: pair[1].group or pair[0])
        return [[column for _, column in pairs] for _, pairs in of_group]

    @property
    def groups(self) -> list[tuple[str, list[list[Cell]]]]:
        """The rows below each heading; the total, and rows without headings, below none."""
        is_grouped = self.columns[0].kind is Kind.GROUP
        of_title = itertools.groupby(self.rows, lambda row: row[0].text if is_grouped else "")
        return [(title, list(rows)) for title, rows in of_title] + ([("", [self.total])] if self.total else [])

    def shown(self, *kinds: Kind, is_narrow: bool = False) -> list[int]:
        """Numbers of the columns of some kinds; ``is_narrow`` leaves out the wide ones."""
        return [
            number
            for number, column in enumerate(self.columns)
            if column.kind in kinds and not (is_narrow and column.is_wide)
        ]

    def entries(self) -> list[dict[str, Any]]:
        """The rows for programs: values, else texts, by the headings of their columns."""
        shown = [(number, self.columns[number].heading) for number in self.shown(*TEXTS)]
        return [{heading: _plain(row[number]) for number, heading in shown} for row in self.rows]


def _plain(cell: Cell) -> Any:  # noqa: ANN401  (any JSON value)
    """What programs read of a cell; None for the mark of absence."""
    return cell.value if cell.value is not None else None if cell.text == ABSENT else cell.text


def names(*titles: str) -> list[Column]:
    """Columns of texts."""
    return [Column(title, Kind.NAME) for title in titles]


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
