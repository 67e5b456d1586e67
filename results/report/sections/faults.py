"""Faults that the harness caused under load, and how the engines recovered."""

from collections.abc import Sequence

from bakeoff.results.metric import Unit
from bakeoff.results.metrics.recovery import SPAN
from bakeoff.results.report.engine_cell import engine_cells
from bakeoff.results.report.section import Section
from bakeoff.results.run.faults import FaultSummary, faults_of
from bakeoff.results.run.run import Run
from bakeoff.results.show.table import Cell, Table, figures, names
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.text.format import ABSENT, bounds_text, scale_for, short_text

_NOTE = (
    f"SLO held again: time from the fault until no {SPAN} requests in a row had clearly more bad ones among them than "
    "before; requests: those in progress at the fault, and those planned until then; lost: how many more of them would "
    "have met the SLO in peace"
)


def fault_tables(run: Run) -> Sequence[Table]:
    """One table, of a run with faults."""
    summaries, engine_cell = faults_of(run), engine_cells(run)
    if not summaries:
        return []
    return [
        Table(
            "Faults",
            [
                *names("load", "engine", "fault"),
                *figures(["down", "start", "SLO held again", "requests", "failed", "late", "lost"]),
            ],
            [
                [Cell(each.level), engine_cell(each.engine), Cell(name_of(each)), *figures_of(each)]
                for each in summaries
            ],
            lead="Servers that were killed, started, stopped or slowed in the window of each valid trial. The other "
            "tables count these windows whole, with what failed in them.",
            notes=[_NOTE],
        )
    ]


def name_of(summary: FaultSummary) -> str:
    """``restart of 127.0.0.1:8001``."""
    return f"{summary.action.value} of {summary.replica}" if summary.replica else summary.action.value


def figures_of(summary: FaultSummary) -> list[Cell]:
    """Of one fault: down, start, SLO held again, requests, failed, late, lost."""
    means = (summary.requests, summary.failed, summary.late, summary.lost)
    return [
        *(_cell(summary.down_s), _cell(summary.start_s), _recovered(summary)),
        *(Cell(short_text(round(mean, 1))) for mean in means),
    ]


def _recovered(summary: FaultSummary) -> Cell:
    if not summary.decidable:
        return Cell("too few requests")
    if not summary.recovered:
        return Cell(f"not within {scale_for(Unit.SECONDS, summary.watched_s).text(summary.watched_s)}")
    cell = _cell(summary.recovered_s)
    if summary.recovered == summary.trials:
        return cell
    return Cell(cell.text, f"{cell.detail}\n{summary.recovered} of {summary.trials} trials".strip())


def _cell(interval: Interval | None) -> Cell:
    if interval is None:
        return Cell(ABSENT)
    scale = scale_for(Unit.SECONDS, interval.centre)
    return Cell(scale.text(interval.centre), bounds_text(interval, scale))


SECTIONS = (
    Section(
        id="faults",
        title="Faults",
        shows="of each fault that was caused under load: time until the SLO held again, and requests lost until then",
        place=17,
        tables=fault_tables,
    ),
)
