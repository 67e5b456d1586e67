"""Figures of sessions in the long run, by engine and load, where sessions have several requests."""

import msgspec

from bakeoff.results.metrics import CATALOGUE, Metric, Unit
from bakeoff.results.report.engine_cell import engine_cells
from bakeoff.results.run.cells import Cell as MeasuredCell
from bakeoff.results.run.levels import levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.show.table import Cell, Column, Table, names
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.text.format import ABSENT, interval_parts

_MAIN = ("sessions_per_hour", "session_s", "session_tool_s", "session_server_s", "tokens_per_s_per_session")
_MORE = ("requests_per_s", "session_stretch", "interactivity_p50", "generated_reuse_share")
"""Metrics for which a terminal has no room."""
_S_PER_H = 3600
_REQUESTS_PER_H = msgspec.structs.replace(CATALOGUE["requests_per_s"], unit=Unit.PER_HOUR)


def session_table(run: Run) -> Table | None:
    """The metrics that any cell has; None if no session of the run has several requests."""
    cells = [(level.title, cell) for level in levels_of(run) if level.turns > 1 for cell in level.cells if cell.valid]
    known = [name for name in (*_MAIN, *_MORE) if any(name in cell.intervals for _, cell in cells)]
    if not known:
        return None
    engine_cell = engine_cells(run)
    missing = (cell.reasons.get("session_s") for _, cell in cells)
    return Table(
        "Sessions in the long run",
        [*names("load", "engine"), *(Column(CATALOGUE[name].title, is_wide=name in _MORE) for name in known)],
        [[Cell(level), engine_cell(cell.engine), *(_figure(cell, name) for name in known)] for level, cell in cells],
        notes=[
            "sessions in the long run; session = tools + server",
            *dict.fromkeys(f"{ABSENT} {why}" for why in missing if why),
        ],
    )


def _figure(cell: MeasuredCell, name: str) -> Cell:
    interval = cell.intervals.get(name)
    if interval is None:
        return Cell(ABSENT)
    metric: Metric = CATALOGUE[name]
    if name == "requests_per_s":
        metric, interval = _REQUESTS_PER_H, _times(interval, _S_PER_H)
    centre, bounds = interval_parts(metric, interval)
    return Cell(centre, "" if name == "session_tool_s" else bounds)  # the plan's, the same in every trial


def _times(interval: Interval, factor: float) -> Interval:
    low, high = (None if bound is None else factor * bound for bound in (interval.low, interval.high))
    pair = (factor * interval.pair[0], factor * interval.pair[1]) if interval.pair else None
    return msgspec.structs.replace(interval, centre=factor * interval.centre, low=low, high=high, pair=pair)
