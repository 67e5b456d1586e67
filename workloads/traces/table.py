"""CSV files with a header, reduced to selected columns."""

import csv
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

from bakeoff.workloads.options import nearest
from bakeoff.workloads.traces.checks import quoted
from bakeoff.workloads.traces.reading import bad, blocks, check_text

Header = list[str]


def table(path: str, choose: Callable[[Header], Sequence[str]]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the number of each row and its fields in the selected columns.

    Quoted fields may span lines; a row's number is that of its first line.

    Args:
        path: the file, plain or gzip.
        choose: selects at least two columns, given the header.

    Raises:
        BadTrace: as :func:`bakeoff.workloads.traces.reading.blocks`; the header lacks a selected column, a row has more
            or
            fewer fields than the header, quotes are unbalanced, or there is no row.
    """
    reader = csv.reader(_text_lines(path), strict=True)
    pick: Callable[[list[str]], tuple[str, ...]] | None = None
    width, has_rows, row = 0, False, 1
    try:
        for fields in reader:
            if not "".join(fields).strip() and len(fields) < 2:
                pass
            elif pick is None:
                pick, width = _columns(path, row, fields, choose), len(fields)
            elif len(fields) != width:
                raise bad(path, row, f"has {_fields(len(fields))}, the header {width}")
            else:
                has_rows = True
                yield row, pick(fields)
            row = reader.line_num + 1
    except csv.Error as cause:
        raise bad(path, row, f"is not valid CSV: {cause}") from None
    if not has_rows:
        raise bad(path, None, "has no rows below its header" if pick else "has no rows")


def plain_name(column: str) -> str:
    """A column's name without case, spaces and other marks, which tools that save a table anew often change."""
    return "".join(filter(str.isalnum, column)).lower()


def missing_column(name: str, header: Header) -> str:
    """Message for a missing column, with the nearest name in the header."""
    return f"the header has no column {quoted(name)}; {nearest(name, header)}"


def _columns(
    path: str, row: int, fields: Header, choose: Callable[[Header], Sequence[str]]
) -> Callable[[list[str]], tuple[str, ...]]:
    header = [name.strip() for name in fields]
    columns = [name if name in header else _alike(path, row, name, header) for name in choose(header)]
    for name in columns:
        if header.count(name) != 1:
            twice = f"the header has {header.count(name)} columns {quoted(name)}; rename all but one"
            raise bad(path, row, twice if name in header else missing_column(name, header))
    return itemgetter(*map(header.index, columns))


def _alike(path: str, row: int, name: str, header: Header) -> str:
    """The column that has this name in another spelling; the name itself if there is none."""
    alike = [column for column in header if plain_name(column) == plain_name(name)]
    if len(alike) > 1:
        raise bad(path, row, f"the header has {' and '.join(map(quoted, alike))}; rename all but one")
    return alike[0] if alike else name


def _fields(count: int) -> str:
    return "1 field" if count == 1 else f"{count} fields"


def _text_lines(path: str) -> Iterator[str]:
    for first, block in blocks(path):
        check_text(path, first, block)
        # str.splitlines would also split at form feeds and other separators, unlike the row numbers of editors.
        yield from block.decode().removesuffix("\n").split("\n")
