"""Which trials and which of their requests a figure rests on: valid trials, successful requests of the window."""

from results.metrics import under_load
from results.metrics.throughput import planned_inside
from results.records import Outcome, RequestRecord, Verdict
from results.run import Cell, Run, Trial


def trials_of(run: Run, cell: Cell) -> list[Trial]:
    """The finished trials of a cell, INVALID ones included, by repeat."""
    key = (cell.engine, cell.workload, cell.load)
    trials = [t for t in run.finished if (t.record.engine, t.record.workload, t.record.load.label) == key]
    return sorted(trials, key=lambda trial: trial.record.repeat)


def valid_trials_of(run: Run, cell: Cell) -> list[Trial]:
    """Those that may be used as evidence."""
    return [trial for trial in trials_of(run, cell) if trial.record.verdict is Verdict.VALID]


def answered(trial: Trial) -> list[RequestRecord]:
    """Its successful requests that were planned inside the window."""
    return [r for r in planned_inside(under_load(trial.requests), trial.window) if r.outcome is Outcome.OK]
