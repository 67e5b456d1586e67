"""Speculation as engines counted it: a table of drafts, and the speed-up against its expectation."""

from collections.abc import Mapping, Sequence

import msgspec
from markupsafe import Markup

from bakeoff.results.metrics.latency import pooled_tpot_s
from bakeoff.results.report.charts.speed_up import Measured, speed_up_chart
from bakeoff.results.report.engine_cell import engine_cells
from bakeoff.results.report.engine_figures import figure_text
from bakeoff.results.run.cells import Cell as MeasuredCell
from bakeoff.results.run.levels import Level, engines_of, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.server_view import POSITIONED
from bakeoff.results.show.footnotes import Footnotes
from bakeoff.results.show.table import Cell, Column, Table, names
from bakeoff.results.statistics import Interval, log_t_interval
from bakeoff.results.statistics.speculation import acceptance_of
from bakeoff.results.statistics.two_sample import contrast

_COUNTS = (
    ("drafted", "server_drafted_tokens"),
    ("accepted", "server_accepted_tokens"),
    ("share", "server_acceptance_share"),
    ("verifications", "server_verifications"),
    ("tokens per verification", "server_tokens_per_verification"),
)
_CONFIDENCE = 0.95


class SpeculationView(msgspec.Struct, frozen=True):
    """Reports of the engines with speculation.

    Attributes:
        table: one row per level and engine with drafts; None if no engine had any.
        charts: one per level that has engines of one adapter with and without drafts.
    """

    table: Table | None
    charts: list[Markup]


def speculation_view(run: Run) -> SpeculationView:
    """Build the part of a run."""
    levels, engines = levels_of(run), engines_of(run)
    cells = [(level.title, cell) for level in levels for cell in level.cells if _drafts(cell)]
    charts = [svg for level in levels if (svg := _chart(run, level, engines))]
    return SpeculationView(_table(run, cells) if cells else None, charts)


def _table(run: Run, cells: Sequence[tuple[str, MeasuredCell]]) -> Table:
    """Counts of drafts, and the shares by position up to the last that any engine accepted."""
    positions = [
        (name, str(position))
        for position, name in enumerate(POSITIONED)
        if any(_value(cell, name) for _, cell in cells)
    ]
    notes, engine_cell = Footnotes(), engine_cells(run)
    return Table(
        "Drafts of each engine",
        [
            *names("load", "engine"),
            *(Column(title, anchor=f"seen-{name}") for title, name in _COUNTS),
            *(Column(title, group="accepted at position", anchor=f"seen-{name}") for name, title in positions),
        ],
        [
            [
                *(Cell(level), engine_cell(cell.engine)),
                *(Cell(figure_text(cell, name, title, notes)) for title, name in _COUNTS),
                *(Cell(_position_text(cell, name, notes)) for name, _ in positions),
            ]
            for level, cell in cells
        ],
        lead="Drafts as the engine counted them, means over valid trials. A verification is a step of one request that "
        "checks its drafts; it yields the accepted ones and one more token. By position: the share of verifications "
        "that accepted the draft there.",
        notes=notes.lines(),
    )


def _position_text(cell: MeasuredCell, name: str, notes: Footnotes) -> str:
    if name in cell.server.intervals and not _value(cell, name):
        return ""
    return figure_text(cell, name, "acceptance by position", notes)


def _drafts(cell: MeasuredCell) -> bool:
    """Whether an engine counted drafts."""
    return any(_value(cell, name) for name in ("server_drafted_tokens", "server_accepted_tokens"))


def _value(cell: MeasuredCell, name: str) -> float:
    """A figure of the engine; 0 if it is absent."""
    interval = cell.server.intervals.get(name)
    return interval.centre if interval else 0.0


def _chart(run: Run, level: Level, engines: Sequence[str]) -> Markup:
    plain = [cell for cell in level.cells if cell.valid and cell.server.why is None and not _speculates(run, cell)]
    measured: list[Measured] = []
    for cell in level.cells:
        without = [other for other in plain if _adapter(run, other) == _adapter(run, cell)]
        if not _drafts(cell) or len(without) != 1 or not _value(cell, "server_tokens_per_verification"):
            continue
        ratio = _ratio(_paces_s(run, without[0]), _paces_s(run, cell))
        drafts = _value(cell, "server_drafted_tokens") / _value(cell, "server_verifications")
        acceptance = acceptance_of(_value(cell, "server_tokens_per_verification"), drafts)
        if ratio is not None:
            measured.append(Measured(cell.engine, engines.index(cell.engine), acceptance, drafts, ratio))
    return speed_up_chart(f"Speed-up by speculation at {level.title}", level.title, measured)


def _paces_s(run: Run, cell: MeasuredCell) -> dict[int, float]:
    """Mean seconds per output token by repeat, over the requests of the window: the ramp is not judged."""
    values = {trial.record.repeat: pooled_tpot_s(trial.answered) for trial in run.valid_trials_of(cell)}
    return {repeat: value for repeat, value in values.items() if value}


def _ratio(without: Mapping[int, float], with_: Mapping[int, float]) -> Interval | None:
    """Speed-up, with bounds from two trials of each engine on; None without a trial."""
    effect = contrast(with_, without, interleaved=True)
    if effect is not None:
        return effect.interval(_CONFIDENCE)
    of_without, of_with = (log_t_interval(list(values.values())) for values in (without, with_))
    if of_without is None or of_with is None:
        return None
    return Interval(of_without.centre / of_with.centre, None, None, 1)


def _speculates(run: Run, cell: MeasuredCell) -> bool:
    """Whether an engine was configured to speculate, or did."""
    experiment = run.manifest.experiment
    tables = experiment.get("engines") or []
    own = next((table for table in tables if cell.engine == (table.get("label") or table.get("adapter"))), {})
    return _drafts(cell) or "speculation" in {**(experiment.get("spec") or {}), **(own.get("spec") or {})}


def _adapter(run: Run, cell: MeasuredCell) -> str | None:
    descriptions = (trial.record.engine_description for trial in run.trials_of(cell))
    return next((description.adapter for description in descriptions if description), None)
