"""Commands that read stored runs: report, compare, history and frontier."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bakeoff.harness.cli.command import command
from bakeoff.harness.cli.exits import EXIT_CANNOT_TELL, EXIT_OK, EXIT_REGRESSION
from bakeoff.harness.cli.options import DEFAULT_OUT, Bands, Candidates, EveryMetric, File, Json, Metrics, Texts, texts
from bakeoff.harness.cli.output import print_json, print_notice, print_result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bakeoff.results import Run
    from bakeoff.results.compare.comparison import EngineComparison
    from bakeoff.results.compare.series import Series
    from bakeoff.results.run.cost import CellCost
    from bakeoff.results.run.frontier import FrontierPoint
    from bakeoff.results.run.grid import GridReport

    Prices = str | Sequence[str] | Mapping[str, float]
else:
    Prices = Texts


def report(run: str, *, json: Json = False) -> int:
    """Print a run's table and write its HTML page.

    Parameters
    ----------
    run
        Run folder, or its address in a remote store (s3://…).
    json
        Print the summary as JSON.
    """
    show(read(run), json=json)
    return EXIT_OK


def compare(
    *runs: str,
    candidates: Candidates = None,
    metric: Metrics = None,
    primary: str | None = None,
    alpha: float = 0.05,
    band: Bands | None = None,
) -> "EngineComparison":
    """Compare B with A, level by level: bakeoff compare A B, or of several runs A1 A2 A3 --with B1 B2.

    Each ratio B/A has an interval: over trials where a side is one run, over runs where it is several. One line says
    which noise it has seen, and what would undo the primary result. The guardrails (medians, rates, failures,
    objectives, and metrics that --metric names) are corrected for multiple comparisons (Holm); other metrics are judged
    by themselves.

    Parameters
    ----------
    runs
        Baseline and candidate: RUN, or RUN@ENGINE for one of its engines. RUN may be a file of export --as
        pytest-benchmark, or a benchmark report of llm-d or a folder of them. With --with all of them are the baseline.
    candidates
        Runs of the candidate. Three runs a side show the noise between runs.
    metric
        Metric to compare; repeat the option for several. Default: the table's headline metrics.
    primary
        Metric that counts most. Default: output_tokens_per_s at the highest concurrency, or ttft_p50_s at the last
        rate.
    alpha
        False alarm rate of the primary metric, and of all guardrails together.
    band
        Largest change that counts as equal: 5% for all ratio metrics (default 3%), or one metric's, such as
        ttft_p99=10%, attainment=0.5pp, failures=0 or work=10% (difference in work done). Repeat the option for several.
    """
    from bakeoff.results.compare.comparison import compare_sides
    from bakeoff.results.compare.config import agreed
    from bakeoff.results.compare.sides import select, together
    from bakeoff.results.errors import NotComparable

    if not (len(runs) == 2 if candidates is None else runs and candidates):
        raise NotComparable("compare takes two runs, A and B, or several: A1 A2 A3 --with B1 B2")
    a, b = (runs[:1], runs[1:]) if candidates is None else (runs, texts(candidates))
    of_a, of_b = (together([select(text) for text in side]) for side in (a, b))
    if set(of_a.places) == set(of_b.places):
        print_notice("A and B are the same trials: equal by construction")
    elif common := set(of_a.places) & set(of_b.places):
        print_notice(f"on both sides, which brings them closer: {', '.join(sorted(str(path) for path, *_ in common))}")
    return compare_sides(of_a, of_b, agreed(texts(metric), primary, alpha, band))


def _show_comparison(compared: "EngineComparison", *, every_metric: EveryMetric = False, json: Json = False) -> None:
    """Print a comparison.

    Parameters
    ----------
    every_metric
        Print every metric. Default: those that matter most, in at most 30 lines.
    json
        Print the comparisons as JSON.
    """
    from bakeoff.results.report.compare_table import MAX_LINES, print_comparison
    from bakeoff.results.report.comparisons import comparison_entries

    print_table = partial(print_comparison, max_lines=None if every_metric else MAX_LINES)
    print_result(compared, print_table, json=json, tables=comparison_entries(compared))


def history(
    runs: File = DEFAULT_OUT,
    *,
    name: str | None = None,
    engine: str | None = None,
    branch: str | None = None,
    metric: Metrics = None,
    newest: int | None = None,
) -> "list[Series]":
    """Find between which commits a metric changed: exit 1 if the newest step is a regression.

    Reports the commits around each step; a drift has no single cause.

    Parameters
    ----------
    runs
        Folder of run folders.
    name
        Experiment name; needed if the folder holds several experiments.
    engine
        Engine label. Default: all engines.
    branch
        Only runs of this git branch, as named by the checkout or by CI.
    metric
        Metric to analyse; repeat the option for several. Default: the table's headline metrics.
    newest
        Analyse only this many newest runs, so that older steps no longer count. Default: all.
    """
    from bakeoff.results.history.history import history
    from bakeoff.results.metrics import HEADLINE

    metrics = texts(metric) or HEADLINE
    return history(Path(runs), name, engine=engine, branch=branch, metrics=metrics, newest=newest, notify=print_notice)


def _show_history(series: "list[Series]", *, json: Json = False) -> None:
    """Print series.

    Parameters
    ----------
    json
        Print every series with its points, steps and drifts as JSON.
    """
    from bakeoff.results.report import print_history

    print_result(series, print_history, json=json)


def _exit_code_of_history(series: "list[Series]") -> int:
    from bakeoff.results.compare.series import Outcome, outcome_of

    codes = {
        Outcome.NOT_WORSE: EXIT_OK,
        Outcome.WORSE: EXIT_REGRESSION,
        Outcome.CANNOT_TELL: EXIT_CANNOT_TELL,
    }
    return codes[outcome_of(series)]


def frontier(*runs: str) -> "list[FrontierPoint]":
    """Print the Pareto frontier of per-user speed and total throughput.

    Parameters
    ----------
    runs
        Run folders, whose engines are compared.
    """
    from bakeoff.results.errors import NoEvidence, NotComparable
    from bakeoff.results.run.frontier import frontier

    if not runs:
        raise NotComparable("name the folder of a run, such as those under runs/")
    by_folder = {run.path.resolve(): run for run in map(_with_notice, runs)}
    points = frontier(list(by_folder.values()))
    if not points:
        raise NoEvidence("these runs have no valid trial with TPOT and throughput; give other run folders")
    return points


def _show_frontier(points: "list[FrontierPoint]", *, json: Json = False) -> None:
    """Print a frontier.

    Parameters
    ----------
    json
        Print every point as JSON.
    """
    from bakeoff.results.report import print_frontier

    print_result(points, print_frontier, json=json)


def grid(run: str, *, metric: Metrics = None) -> "GridReport":
    """Say which settings of a grid are best, and what each setting does.

    For runs of an experiment whose engines have a grid, as in grid = { "spec.max_num_seqs" = [16, 64] }.

    Parameters
    ----------
    run
        Run folder.
    metric
        Metric to rank settings by and to show effects on; repeat the option for effects on several. Default: goodput
        with an SLO, else output tokens/s; and effects on the median TTFT and TPOT, too.
    """
    from bakeoff.results.errors import NotComparable
    from bakeoff.results.metrics.catalogue import require_known
    from bakeoff.results.run.grid import grid_report

    measured = _with_notice(run)
    if not measured.manifest.grid:
        raise NotComparable(
            f'{run} has no grid; give an engine of its experiment grid = {{ "spec.max_num_seqs" = [16, 64] }}'
        )
    return grid_report(measured, require_known(texts(metric)))


def _show_grid(report: "GridReport", *, json: Json = False) -> None:
    """Print what a grid shows.

    Parameters
    ----------
    json
        Print every setting and every effect as JSON.
    """
    from bakeoff.results.report import print_grid

    print_result(report, print_grid, json=json)


def cost(*runs: str, price: Prices | None = None, api_price: Prices | None = None) -> "list[CellCost]":
    """Say what a run's traffic costs: by token, request and session, and beside an API.

    Hardware costs the same whether it works or not, so a cost holds for its load alone.

    Parameters
    ----------
    runs
        Run folders. Prices that their experiments state need not be given.
    price
        What an engine costs, such as gpu-hour=3.5, machine-hour=0.4, gpus=2 for a server whose GPUs are not known, or,
        if its tokens are billed, input=2.5, cached=0.25 and output=10 for a million of them. Repeat the option for
        several, which are added up. In Python also a dict.
    api_price
        What an API bills for the same tokens: input=2.5, cached=0.25, output=10. Repeat the option for several.
    """
    from bakeoff.results.prices import prices_from, token_prices_from
    from bakeoff.results.run.cost import costs

    return costs([_with_notice(run) for run in runs], prices_from(price), token_prices_from(api_price))


def _show_costs(entries: "list[CellCost]", *, json: Json = False) -> None:
    """Print costs.

    Parameters
    ----------
    json
        Print every figure as JSON.
    """
    from bakeoff.results.report import print_costs

    print_result(entries, print_costs, json=json)


COMPARE = command(compare, _show_comparison)
HISTORY = command(history, _show_history, _exit_code_of_history, no_evidence=EXIT_CANNOT_TELL)
FRONTIER = command(frontier, _show_frontier)
COST = command(cost, _show_costs)
GRID = command(grid, _show_grid)


def _with_notice(location: str) -> "Run":
    """Load a run, and say if figures over its valid trials lack some of what was planned."""
    run = read(location)
    if run.valid < run.planned:
        print_notice(f"{run.path}: only {run.valid} of {run.planned} trials are valid, and others do not count")
    return run


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


def show(run: "Run", *, json: bool) -> None:
    """Print a run's table (or JSON), and write its HTML page and traces."""
    from rich.console import Console

    from bakeoff.results.report import print_summary, write_html
    from bakeoff.results.trace import write_traces

    if json:
        print_json(_summary(run, write_html(run), write_traces(run)))
    else:
        console = Console()
        print_summary(run, console)  # before the page: on a full disk the user still gets the table
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
        "warnings": quality_warnings(run),
        "invalid": {
            trial.record.id: trial.record.invalidating
            for trial in (*run.finished, *run.profiled)
            if trial.record.invalidating
        },
    }
