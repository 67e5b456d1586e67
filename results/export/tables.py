"""Export a run's tables as CSV, Parquet or JSON.

Spreadsheets treat CSV text that starts with ``= + - @`` as a formula; such cells are prefixed with a quote mark (OWASP,
"CSV injection"). Numbers stay numbers, and times stay in the units of their column names.
"""

import csv
import io
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from bakeoff.installation import how_to_install
from bakeoff.results.errors import NotExportable
from bakeoff.results.run.run import Run

if TYPE_CHECKING:
    import pandas as pd

_ROWS = 50_000
"""Requests whose rows exist at a time."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


class Table(StrEnum):
    """Tables of a run, which :class:`~bakeoff.results.run.run.Run` has as data frames."""

    SUMMARY = "summary"
    TRIALS = "trials"
    REQUESTS = "requests"
    CHUNKS = "chunks"
    TELEMETRY = "telemetry"
    ATTRIBUTION = "attribution"


class Format(StrEnum):
    """File formats."""

    CSV = "csv"
    PARQUET = "parquet"
    JSON = "json"


def table(run: Run, which: Table, how: Format) -> bytes:
    """Encode one of a run's tables.

    Args:
        run: a loaded run.
        which: the table.
        how: the file format; JSON is a list of records.

    Raises:
        NotExportable: the table is empty, or pyarrow is not installed.
    """
    encoded = b"".join(pieces(run, which, how))
    if not encoded:
        ended = "no profiled trial ended" if which is Table.ATTRIBUTION else "no trial ended"
        raise NotExportable(f"{run.path} has no {which.value} to export: {ended}")
    return encoded


def pieces(run: Run, which: Table, how: Format) -> Iterator[bytes]:
    """The same piece by piece, so that only some requests are rows at a time; nothing for an empty table.

    Raises:
        NotExportable: pyarrow is not installed.
    """
    return _WRITERS[how](frame for frame in _frames(run, which) if not frame.empty)


def _frames(run: Run, which: Table) -> "Iterator[pd.DataFrame]":
    if which is Table.REQUESTS:
        return run.request_slices(_ROWS)
    if which is Table.CHUNKS:
        return run.chunk_slices(_ROWS)
    return iter([getattr(run, which.value)])


def _csv(frames: "Iterator[pd.DataFrame]") -> Iterator[bytes]:
    for number, data in enumerate(frames):
        safe = data.rename(columns=_defused)
        for name in _texts(safe):
            safe[name] = safe[name].map(_defused)
        # quote all text: a bare carriage return would start a new row
        text = safe.to_csv(index=False, header=not number, quoting=csv.QUOTE_NONNUMERIC)
        yield text.encode("utf-8", errors="replace")


def _json(frames: "Iterator[pd.DataFrame]") -> Iterator[bytes]:
    end = b""
    for data in frames:
        text = str(data.to_json(orient="records", double_precision=15))
        yield (b"," if end else b"[") + text[1:-1].encode("utf-8", errors="replace")
        end = b"]\n"
    yield end


def _parquet(frames: "Iterator[pd.DataFrame]") -> Iterator[bytes]:
    import pandas as pd  # noqa: PLC0415

    parts = list(frames)
    if not parts:
        return
    data = pd.concat(parts, ignore_index=True)
    # a Parquet column has one type, but telemetry columns mix numbers and text
    typed = data.astype(dict.fromkeys(_texts(data), "string"))
    target = io.BytesIO()
    try:
        typed.to_parquet(target, index=False)
    except ImportError as error:
        raise NotExportable(f"Parquet needs pyarrow: {how_to_install('parquet')}") from error
    yield target.getvalue()


def _texts(data: "pd.DataFrame") -> list[str]:
    """Names of the columns that can hold text."""
    return [str(name) for name, kind in data.dtypes.items() if kind.kind not in "biufc"]


def _defused(value: Any) -> Any:  # noqa: ANN401  (a cell)
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


_WRITERS: dict[Format, Callable[["Iterator[pd.DataFrame]"], Iterator[bytes]]] = {
    Format.CSV: _csv,
    Format.PARQUET: _parquet,
    Format.JSON: _json,
}
