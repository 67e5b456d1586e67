"""Commands that read: report, compare, history and frontier."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli.options import (
    DEFAULT_OUT,
    EXIT_CANNOT_TELL,
    EXIT_OK,
    EXIT_REGRESSION,
    Bands,
    Json,
    Metrics,
    standard_output,
)

if TYPE_CHECKING:
    from results import Run


def report(run: str, *, json: Json = False) -> int:
    """Print a run's table and write its HTML page.

    Parameters
    ----------
    run
        The run's folder, or its address in a store (s3://…).
    json
        Print the summary as JSON on stdout.
    """
    show(run, json=json)
    return EXIT_OK


def compare(
    a: str,
    b: str,
    *,
    metric: Metrics = None,
    primary: str | None = None,
    alpha: float = 0.01,
    band: Bands = None,
    json: Json = False,
) -> int:
    """Compare B with A, level by level.

    Runs are the sample: each metric is one number a run, and the ratio of the sides has an interval. One metric is the
    primary one; the others are guardrails, whose words hold for all of them at once (Holm).

    Parameters
    ----------
    a
        The baseline: RUN, or RUN@ENGINE for one engine of it. RUN may be a file of export --as pytest-benchmark.
    b
        The candidate, likewise.
    metric
        Metrics to compare; the default is the headline of the table.
    primary
        The metric that counts most. The default is output_tokens_per_s at the highest concurrency, or ttft_p50_s at
        the last rate.
    alpha
        Share of false alarms of the primary metric, and of all others together.
    band
        What counts as the same: 5% for all metrics compared as ratios (the default is 3%), ttft_p99=10%,
        attainment=0.5pp or failures=0 for one, work=10% for how much the work of the sides may differ. May be given
        several times.
    json
        Print the comparisons as JSON on stdout.
    """
    from results.comparison import compare_sides
    from results.comparison_config import agreed
    from results.report import print_comparison
    from results.sides import select

    compared = compare_sides(select(a), select(b), agreed(metric, primary, alpha, band))
    if json:
        print_json(compared)
    else:
        print_comparison(compared, standard_output())
    return EXIT_OK


def history(
    runs: Path = DEFAULT_OUT,
    *,
    name: str | None = None,
    engine: str | None = None,
    branch: str | None = None,
    metric: Metrics = None,
    newest: int | None = None,
    json: Json = False,
) -> int:
    """Find between which commits a metric changed: exit 1 if the newest step is a regression.

    Each step has the commits between which it lies; a drift has none to blame. Exit 0: no series that the newest run
    continues ends with a step for the worse. Exit 2: one of them cannot tell, since it has fewer than six runs, or its
    newest value is missing, 0, or far on the bad side of its level. Exit 3: no such runs, or a mistake in the call.

    Parameters
    ----------
    runs
        Folder of run folders.
    name
        Of the experiment; needed where the folder holds several.
    engine
        Its label; the default is all.
    branch
        Only runs of this branch: of the checkout they were started in, or what CI calls it.
    metric
        Metrics to look at; the default is the headline of the table.
    newest
        Look at so many runs only, so that an older step no longer counts; the default is all.
    json
        Print every series with its points, steps and drifts as JSON on stdout.
    """
    from results.errors import NoEvidence
    from results.history import history
    from results.metrics import HEADLINE
    from results.report import print_history
    from results.series import Outcome, outcome_of

    try:
        series = history(runs, name, engine=engine, branch=branch, metrics=metric or HEADLINE, newest=newest)
    except NoEvidence as error:
        sys.stderr.write(f"bakeoff: {error}\n")
        return EXIT_CANNOT_TELL
    if json:
        print_json(series)
    else:
        print_history(series, standard_output())
    codes = {
        Outcome.NOT_WORSE: EXIT_OK,
        Outcome.WORSE: EXIT_REGRESSION,
        Outcome.CANNOT_TELL: EXIT_CANNOT_TELL,
    }
    return codes[outcome_of(series)]


def frontier(*runs: str, json: Json = False) -> int:
    """Print the Pareto frontier of per-user speed and total throughput.

    Parameters
    ----------
    runs
        Run folders; their engines are set side by side.
    json
        Print every point as JSON on stdout.
    """
    from results.errors import NoEvidence
    from results.frontier import frontier
    from results.report import print_frontier

    points = frontier([read(run) for run in runs])
    if not points:
        raise NoEvidence("no level of these runs has a valid trial with TPOT and throughput; give run folders")
    if json:
        print_json(points)
    else:
        print_frontier(points, standard_output())
    return EXIT_OK


def read(place: str | Path) -> "Run":
    """The run there, with what a crash left salvaged."""
    import results
    from harness.conduct.run import recover
    from results.run import located
    from results.store import RunFolder

    path = located(place)
    recover(RunFolder.open(path))
    return results.load(path)


def show(place: str | Path, *, json: bool) -> "Run":
    """Salvage what a crash left, print the table (or JSON) and write the page; a full disk costs no table."""
    from rich.console import Console

    from results.report import print_summary, write_html

    run = read(place)
    if json:
        print_json(_summary(run, write_html(run)))
    else:
        console = Console()
        print_summary(run, console)
        console.print(f"\nreport: {write_html(run)}", markup=False, highlight=False, soft_wrap=True)
    return run


def _summary(run: "Run", page: Path) -> dict[str, Any]:
    import msgspec

    from results.report.quality import quality_warnings

    return {
        "run": str(run.path),
        "report": str(page),
        "status": run.status.value,
        "search": run.search,
        "cells": [msgspec.to_builtins(cell) for cell in run.cells],
        "warnings": quality_warnings(run),
        "invalid": {trial.record.id: trial.record.invalidating for trial in run.finished if trial.record.invalidating},
    }


def print_json(value: Any) -> None:  # noqa: ANN401  (anything that JSON holds)
    """Print ``value`` as indented JSON on stdout."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")
