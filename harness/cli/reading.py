"""Commands that read: report and compare."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli.options import EXIT_OK, Json

if TYPE_CHECKING:
    from results import Run


def report(run: Path, *, json: Json = False) -> int:
    """Print a run's table and write its HTML page.

    Parameters
    ----------
    run
        The run's folder.
    json
        Print the summary as JSON on stdout.
    """
    show(run, json=json)
    return EXIT_OK


def compare(a: str, b: str, *, metric: list[str] | None = None, json: Json = False) -> int:
    """Compare B with A, level by level.

    Parameters
    ----------
    a
        The baseline: RUN, or RUN@ENGINE for one engine of it.
    b
        The candidate, likewise.
    metric
        Metrics to compare; the default is the headline of the table.
    json
        Print the comparisons as JSON on stdout.
    """
    import msgspec
    from rich.console import Console

    from results.comparing import answers_of, compare_sides, labels, select
    from results.report import print_comparison

    side_a, side_b = select(a), select(b)
    comparisons, answers = compare_sides(side_a, side_b, metric), answers_of(side_a, side_b)
    if json:
        print_json([{**msgspec.to_builtins(one), "agrees": answers[one.level]} for one in comparisons])
    else:
        print_comparison(comparisons, *labels(side_a, side_b), Console(), answers)
    return EXIT_OK


def read(path: Path) -> "Run":
    """The run at ``path``, with what a crash left salvaged."""
    import results
    from harness.run import recover
    from results.store import RunFolder

    recover(RunFolder.open(path))
    return results.load(path)


def show(path: Path, *, json: bool) -> "Run":
    """Salvage what a crash left, print the table (or JSON) and write the page."""
    from rich.console import Console

    from results.report import print_summary, write_html

    run = read(path)
    page = write_html(run)
    if json:
        print_json(_summary(run, page))
    else:
        console = Console()
        print_summary(run, console)
        console.print(f"\nreport: {page}", markup=False, highlight=False, soft_wrap=True)
    return run


def _summary(run: "Run", page: Path) -> dict[str, Any]:
    import msgspec

    from results.report.quality import quality_warnings

    return {
        "run": str(run.path),
        "report": str(page),
        "status": run.status.value,
        "cells": [msgspec.to_builtins(cell) for cell in run.cells],
        "warnings": quality_warnings(run),
        "invalid": {trial.record.id: trial.record.reasons for trial in run.finished if trial.record.reasons},
    }


def print_json(value: Any) -> None:  # noqa: ANN401  (anything that JSON holds)
    """Print ``value`` as indented JSON on stdout."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")
