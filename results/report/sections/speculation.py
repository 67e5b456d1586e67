"""Speculation as engines counted it: a table of drafts, and the speed-up against its expectation."""

from collections.abc import Mapping, Sequence

import msgspec
from markupsafe import Markup

from bakeoff.results.metrics.latency import pooled_tpot_s
from bakeoff.results.report.charts.speed_up import Measured, speed_up_chart
from bakeoff.results.report.charts.svg import engine_class
from bakeoff.results.report.engine_figures import figure_text
from bakeoff.results.report.footnotes import Footnotes
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.levels import Level, engines_of, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.server_view import POSITIONED
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


class SpeculationRow(msgspec.Struct, frozen=True):
    """One engine at one level; ``positions`` are empty after the last one with an accepted draft."""

    level: str
    engine: str
    colour: str
    figures: list[str]
    positions: list[str]


class SpeculationView(msgspec.Struct, frozen=True):
    """Reports of the engines with speculation; no rows if no engine had any.

    Attributes:
        columns: name and heading of the counts.
        positions: name and heading of the shares by position, up to the last that any engine accepted.
        rows: one per level and engine with drafts.
        charts: one per level that has engines of one adapter with and without drafts.
        notes: why figures are missing.
    """

    columns: list[tuple[str, str]]
    positions: list[tuple[str, str]]
    rows: list[SpeculationRow]
    charts: list[Markup]
    notes: list[str]


def speculation_view(run: Run) -> SpeculationView:
    """Build the part of a run."""
    levels, engines = levels_of(run), engines_of(run)
    cells = [(level.title, cell) for level in levels for cell in level.cells if _drafts(cell)]
    positions = [
        (name, str(position))
        for position, name in enumerate(POSITIONED)
        if any(_value(cell, name) for _, cell in cells)
    ]
    notes = Footnotes()
    return SpeculationView(
        columns=[(name, title) for title, name in _COUNTS],
        positions=positions,
        rows=[
            SpeculationRow(
                level=level,
                engine=cell.engine,
                colour=engine_class(engines.index(cell.engine)),
                figures=[figure_text(cell, name, title, notes) for title, name in _COUNTS],
                positions=[_position_text(cell, name, notes) for name, _ in positions],
            )
            for level, cell in cells
        ],
        charts=[svg for level in levels if (svg := _chart(run, level, engines))],
        notes=notes.lines(),
    )


def _position_text(cell: Cell, name: str, notes: Footnotes) -> str:
    if name in cell.server.intervals and not _value(cell, name):
        return ""
    return figure_text(cell, name, "acceptance by position", notes)


def _drafts(cell: Cell) -> bool:
    """Whether an engine counted drafts."""
    return any(_value(cell, name) for name in ("server_drafted_tokens", "server_accepted_tokens"))


def _value(cell: Cell, name: str) -> float:
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


def _paces_s(run: Run, cell: Cell) -> dict[int, float]:
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


def _speculates(run: Run, cell: Cell) -> bool:
    """Whether an engine was configured to speculate, or did."""
    experiment = run.manifest.experiment
    tables = experiment.get("engines") or []
    own = next((table for table in tables if cell.engine == (table.get("label") or table.get("adapter"))), {})
    return _drafts(cell) or "speculation" in {**(experiment.get("spec") or {}), **(own.get("spec") or {})}


def _adapter(run: Run, cell: Cell) -> str | None:
    descriptions = (trial.record.engine_description for trial in run.trials_of(cell))
    return next((description.adapter for description in descriptions if description), None)
