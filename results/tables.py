"""A run's frames as files that other programs read: CSV, Parquet and JSON.

CSV is opened by spreadsheets, which take a text that begins with ``= + - @`` for a formula; such a cell gets a quote
mark before it (OWASP, "CSV injection"). Numbers stay numbers, times stay in the units that their columns name.
"""

import csv
import io
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from results.errors import NotExportable
from results.run import Run

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


class Table(StrEnum):
    """What there is of a run."""

    SUMMARY = "summary"
    TRIALS = "trials"
    REQUESTS = "requests"
    CHUNKS = "chunks"
    TELEMETRY = "telemetry"


class Format(StrEnum):
    """How it is written."""

    CSV = "csv"
    PARQUET = "parquet"
    JSON = "json"


def table(run: Run, which: Table, how: Format) -> bytes:
    """One of a run's frames as a file.

    Args:
        run: as ``results.load`` gives it.
        which: rows and columns are those of the frame of that name.
        how: JSON is a list of records.

    Raises:
        NotExportable: the run has no row of it, or Parquet is not installed.
    """
    frame: pd.DataFrame = getattr(run, which.value)
    if frame.empty:
        raise NotExportable(f"{run.path} has no {which.value} to export: no trial ended")
    return _WRITERS[how](frame)


def _csv(frame: "pd.DataFrame") -> bytes:
    safe = frame.rename(columns=_defused)
    for name in _texts(safe):
        safe[name] = safe[name].map(_defused)
    # every text in quotes: a carriage return in one would else begin a new row
    return safe.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC).encode("utf-8", errors="replace")


def _json(frame: "pd.DataFrame") -> bytes:
    text = str(frame.to_json(orient="records", double_precision=15))
    return text.encode("utf-8", errors="replace") + b"\n"


def _parquet(frame: "pd.DataFrame") -> bytes:
    # a Parquet column has one type: telemetry's hold numbers beside words
    typed = frame.astype(dict.fromkeys(_texts(frame), "string"))
    target = io.BytesIO()
    try:
        typed.to_parquet(target, index=False)
    except ImportError as error:
        raise NotExportable("Parquet needs pyarrow: pip install 'bakeoff[parquet]'") from error
    return target.getvalue()


def _texts(frame: "pd.DataFrame") -> list[str]:
    """Columns that may hold text."""
    return [str(name) for name, kind in frame.dtypes.items() if kind.kind not in "biufc"]


def _defused(value: Any) -> Any:  # noqa: ANN401  (a cell)
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


_WRITERS: dict[Format, Callable[["pd.DataFrame"], bytes]] = {
    Format.CSV: _csv,
    Format.PARQUET: _parquet,
    Format.JSON: _json,
}
