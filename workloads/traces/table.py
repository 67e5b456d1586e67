"""CSV files with a header, cut to the columns that are asked for."""

import csv
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

from workloads.options import nearest
from workloads.traces.checks import shown
from workloads.traces.reading import bad, blocks, check_text

Header = list[str]


def table(path: str, choose: Callable[[Header], Sequence[str]]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield each row's number and its fields in the chosen columns.

    Quoted fields may run over several lines: a row has the number of its first.

    Args:
        path: the file, plain or gzip.
        choose: names the wanted columns, at least two, when it is shown the header.

    Raises:
        BadTrace: as :func:`workloads.traces.reading.blocks`; the header lacks a chosen column, a row has another number
            of fields than the header, its quotes do not match, or there is no row.
    """
    reader = csv.reader(_text_lines(path), strict=True)
    pick: Callable[[list[str]], tuple[str, ...]] | None = None
    width, found, row = 0, False, 1
    try:
        for fields in reader:
            if not "".join(fields).strip() and len(fields) < 2:
                pass
            elif pick is None:
                pick, width = _columns(path, row, fields, choose), len(fields)
            elif len(fields) != width:
                raise bad(path, row, f"has {_fields(len(fields))}, the header {width}")
            else:
                found = True
                yield row, pick(fields)
            row = reader.line_num + 1
    except csv.Error as cause:
        raise bad(path, row, f"is not valid CSV: {cause}") from None
    if not found:
        raise bad(path, None, "holds no rows below its header" if pick else "holds no rows")


def missing_column(name: str, header: Header) -> str:
    """The message for a header that lacks a column, with the nearest that it has."""
    return f"the header has no column {shown(name)}; {nearest(name, header)}"


def _columns(
    path: str, row: int, fields: Header, choose: Callable[[Header], Sequence[str]]
) -> Callable[[list[str]], tuple[str, ...]]:
    header = [name.strip() for name in fields]
    wanted = choose(header)
    for name in wanted:
        if header.count(name) != 1:
            twice = f"the header has {header.count(name)} columns {shown(name)}; rename all but one"
            raise bad(path, row, twice if name in header else missing_column(name, header))
    return itemgetter(*map(header.index, wanted))


def _fields(count: int) -> str:
    return "1 field" if count == 1 else f"{count} fields"


def _text_lines(path: str) -> Iterator[str]:
    for first, block in blocks(path):
        check_text(path, first, block)
        # str.splitlines would also break at form feeds and other separators, and editors would count otherwise.
        yield from block.decode().removesuffix("\n").split("\n")
