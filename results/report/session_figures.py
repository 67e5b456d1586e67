"""Figures of sessions in the long run, by engine and load, where sessions have several requests."""

from collections.abc import Sequence

import msgspec

from bakeoff.results.metrics import CATALOGUE, Metric, Unit
from bakeoff.results.report.charts.svg import engine_class
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.levels import engines_of, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.text.format import ABSENT, interval_parts

MAIN = ("sessions_per_hour", "session_s", "session_tool_s", "session_server_s", "tokens_per_s_per_session")
"""Metrics in the terminal, which has no room for all."""
ALL = (
    "sessions_per_hour", "requests_per_s", "session_s", "session_tool_s", "session_server_s", "session_stretch",
    "tokens_per_s_per_session", "interactivity_p50", "generated_reuse_share",
)  # fmt: skip
"""Metrics in the report."""
_S_PER_H = 3600
_REQUESTS_PER_H = msgspec.structs.replace(CATALOGUE["requests_per_s"], unit=Unit.PER_HOUR)


class SessionFigure(msgspec.Struct, frozen=True):
    """Texts of one metric: its centre with the unit, and the bounds of its interval."""

    centre: str
    bounds: str


class SessionRow(msgspec.Struct, frozen=True):
    """The figures of one engine at one load."""

    level: str
    engine: str
    colour: str
    figures: list[SessionFigure]


class SessionTable(msgspec.Struct, frozen=True):
    """The table.

    Attributes:
        titles: headings of the figures.
        rows: by load and engine.
        reasons: why figures are missing.
    """

    titles: list[str]
    rows: list[SessionRow]
    reasons: list[str]


def session_table(run: Run, names: Sequence[str]) -> SessionTable | None:
    """The metrics among ``names`` that any cell has; None if no session of the run has several requests."""
    cells = [(level.title, cell) for level in levels_of(run) if level.turns > 1 for cell in level.cells if cell.valid]
    known = [name for name in names if any(name in cell.intervals for _, cell in cells)]
    if not known:
        return None
    engines = engines_of(run)
    rows = [
        SessionRow(
            title, cell.engine, engine_class(engines.index(cell.engine)), [_figure(cell, name) for name in known]
        )
        for title, cell in cells
    ]
    missing = (cell.reasons.get("session_s") for _, cell in cells)
    return SessionTable(
        [CATALOGUE[name].title for name in known], rows, list(dict.fromkeys(why for why in missing if why))
    )


def _figure(cell: Cell, name: str) -> SessionFigure:
    interval = cell.intervals.get(name)
    if interval is None:
        return SessionFigure(ABSENT, "")
    metric: Metric = CATALOGUE[name]
    if name == "requests_per_s":
        metric, interval = _REQUESTS_PER_H, _times(interval, _S_PER_H)
    # what the plan says is the same in every trial
    centre, bounds = interval_parts(metric, interval)
    return SessionFigure(centre, "" if name == "session_tool_s" else bounds)


def _times(interval: Interval, factor: float) -> Interval:
    low, high = (None if bound is None else factor * bound for bound in (interval.low, interval.high))
    pair = (factor * interval.pair[0], factor * interval.pair[1]) if interval.pair else None
    return msgspec.structs.replace(interval, centre=factor * interval.centre, low=low, high=high, pair=pair)
