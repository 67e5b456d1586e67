"""Tables of a published run: its CSV files, as docs/results holds them."""

import csv
from collections.abc import Sequence
from pathlib import Path

from bakeoff.results.errors import RunUnreadable


def published_rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Read a table.

    Args:
        path: of the CSV file.
        columns: that it must have.

    Raises:
        RunUnreadable: it cannot be read, or lacks a column.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RunUnreadable(f"{path} cannot be read: {error}") from error
    if missing := [name for name in columns if name not in (reader.fieldnames or ())]:
        raise RunUnreadable(f"{path} has no column {missing[0]}; export the run again, or give its run folder")
    return rows
