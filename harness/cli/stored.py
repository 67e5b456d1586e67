"""Stored runs: how commands load and show them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bakeoff.harness.cli.output import print_json, print_notice

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bakeoff.results import Run


def with_notice(location: str) -> "Run":
    """Load a run, and say if figures over its valid trials lack some of what was planned."""
    run = read(location)
    if run.valid < run.planned:
        print_notice(f"{run.path}: only {run.valid} of {run.planned} trials are valid, and others do not count")
    return run


def each_once(locations: "Iterable[str]") -> "list[Run]":
    """Load runs as :func:`with_notice` does; one that is named twice counts once."""
    return list({run.path.resolve(): run for run in map(with_notice, locations)}.values())


def read(location: str | Path) -> "Run":
    """Load the run at a path or address.

    Requests of a trial that a crash cut off, or whose tokens an earlier version counted, are decoded first.

    Raises:
        RunUnreadable: a file of the run or of a finished trial is damaged.
    """
    from bakeoff import results
    from bakeoff.harness.conduct.recovery import recover
    from bakeoff.results.log.store import RunFolder
    from bakeoff.results.run.run import located

    path = located(location)
    recover(RunFolder.open(path), notify=print_notice)
    run = results.load(path)
    run.check()
    return run


def show(run: "Run", *, json: bool, every: bool = False) -> None:
    """Print a run's table (or JSON), and write its HTML page and traces."""
    from rich.console import Console

    from bakeoff.results.report import print_summary, write_html
    from bakeoff.results.trace import write_traces

    if json:
        print_json(_summary(run, write_html(run), write_traces(run)))
    else:
        console = Console()
        print_summary(run, console, every=every)  # before the page: on a full disk the user still gets the table
        lines = [f"report: {write_html(run)}", *(f"trace: {path}" for path in write_traces(run))]
        console.print("\n" + "\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _attributions(run: "Run") -> list[dict[str, Any]]:
    from bakeoff.results.report.attribution import profile_sentence
    from bakeoff.results.run.deviation import deviation_of

    return [
        {
            "trial": attribution.record.id,
            "sentence": profile_sentence(run, trial, attribution),
            "deviation": deviation_of(trial, run.finished),
            "mean_s": {of: {**parts, **dict.fromkeys(attribution.absent)} for of, parts in attribution.means.items()},
            "absent": attribution.absent,
            "derived": sorted(attribution.derived),
            "clock": attribution.clock,
            "attributed_share": attribution.attributed_share,
            "not_recorded": attribution.not_recorded,
        }
        for trial, attribution in zip(run.profiled, run.attributions, strict=True)
    ]


def _summary(run: "Run", page: Path, traces: list[Path]) -> dict[str, Any]:
    import msgspec

    from bakeoff.results.report.objective_table import objective_tables
    from bakeoff.results.report.quality import quality_warnings
    from bakeoff.results.run.address_pages import address_pages
    from bakeoff.results.run.capacity import capacities
    from bakeoff.results.run.groups import by_address

    return {
        "run": str(run.path),
        "report": str(page),
        "traces": [str(path) for path in traces],
        "attribution": _attributions(run),
        "status": run.status.value,
        "search": run.search,
        "capacities": capacities(run),
        "cells": [msgspec.to_builtins(cell) for cell in run.cells],
        "addresses": {"requests": by_address(run), "pages": address_pages(run)},
        "objectives": [row for table in objective_tables(run) for row in table.entries()],
        "warnings": quality_warnings(run),
        "invalid": {
            trial.record.id: trial.record.invalidating
            for trial in (*run.finished, *run.profiled)
            if trial.record.invalidating
        },
    }
