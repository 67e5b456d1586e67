"""The table of a session's measurements at the end of pytest's output."""

from collections.abc import Sequence

from bakeoff.harness.testing.measured import Measured
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.text.format import interval_text, plain

_SHOWN = ("ttft_p50_s", "itl_p50_s", "output_tokens_per_s")
_HEADINGS = ("test", "engine", "load", "valid", *(CATALOGUE[name].title for name in _SHOWN), "")


def summary(runs: Sequence[Measured]) -> list[str]:
    """A heading, and a line for each engine and load: centre [95 % interval] of metrics, and outcomes of assertions."""
    rows = [_HEADINGS, *(row for run in runs for row in _rows(run))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _rows(run: Measured) -> list[tuple[str, ...]]:
    return [
        (
            plain(run.title.rpartition("/")[2]),
            plain(cell.engine),
            plain(cell.load),
            f"{cell.valid}/{cell.planned}",
            *(interval_text(CATALOGUE[name], cell.intervals.get(name)) for name in _SHOWN),
            ", ".join(run.outcomes[cell.engine, cell.load]),
        )
        for cell in run.results.cells
    ]
