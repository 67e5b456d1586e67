"""The engine's own view: split of the mean E2E, and the engine's figures next to the client's."""

from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from bakeoff.results.report.charts.stacks import Group, Segment, Stack, stacks
from bakeoff.results.report.charts.svg import engine_class
from bakeoff.results.report.engine_figures import figure_text
from bakeoff.results.report.footnotes import Footnotes
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.levels import Level, engines_of, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.server_view import PARTS

_COLUMNS = (
    ("running, max", "server_running_peak"),
    ("waiting, max", "server_waiting_peak"),
    ("KV cache, max", "server_kv_usage_share_peak"),
    ("preemptions", "server_preemptions"),
    ("prefix hits", "server_prefix_hit_share"),
)
_PAIRS = (
    ("TTFT mean", "server_ttft_mean_s", "client_ttft_mean_s"),
    ("ITL mean", "server_itl_mean_s", "client_itl_mean_s"),
)


class EngineRow(msgspec.Struct, frozen=True):
    """One engine at one level; ``pairs`` hold the engine's and the client's value."""

    level: str
    engine: str
    colour: str
    figures: list[str]
    pairs: list[tuple[str, str]]


class EngineView(msgspec.Struct, frozen=True):
    """The section.

    Attributes:
        has_data: whether any engine reported anything.
        charts: one per workload.
        columns: name and heading of the figures that any engine reports.
        pairs: heading, engine's name and client's name of the figures that both have.
        rows: one per level and engine.
        notes: why figures are missing.
    """

    has_data: bool
    charts: list[Markup]
    columns: list[tuple[str, str]]
    pairs: list[tuple[str, str, str]]
    rows: list[EngineRow]
    notes: list[str]


def engine_view(run: Run) -> EngineView:
    """Build the section of a run."""
    levels, engines = levels_of(run), engines_of(run)
    cells = [(level.title, cell) for level in levels for cell in level.cells if cell.valid]
    columns = [(title, name) for title, name in _COLUMNS if any(name in cell.server.intervals for _, cell in cells)]
    notes = Footnotes()
    rows = [_row(level, cell, columns, engine_class(engines.index(cell.engine)), notes) for level, cell in cells]
    unreported = [title for title, name in _COLUMNS if (title, name) not in columns]
    return EngineView(
        has_data=any(cell.server.why is None for _, cell in cells),
        charts=_charts(levels, engines),
        columns=[(name, title) for title, name in columns],
        pairs=list(_PAIRS),
        rows=rows,
        notes=[*notes.lines(), *([f"No engine here reports: {', '.join(unreported)}."] if unreported else [])],
    )


def _charts(levels: Sequence[Level], engines: Sequence[str]) -> list[Markup]:
    drawn: list[Markup] = []
    for workload in dict.fromkeys(level.workload for level in levels):
        groups = [
            Group(level.load.label, [stack for cell in level.cells if (stack := _stack(cell, engines))])
            for level in levels
            if level.workload == workload
        ]
        svg = stacks(f"Where the time went, {workload}", groups, f"mean E2E from send, {workload}")
        drawn += [svg] if svg else []
    return drawn


def _stack(cell: Cell, engines: Sequence[str]) -> Stack | None:
    """The known parts; for an engine that reports nothing, one unattributed part."""
    intervals = cell.server.intervals
    if "client_e2e_mean_s" not in intervals:
        return None
    segments = [
        Segment(part.name.removeprefix("split_").removesuffix("_s"), part.title, intervals[part.name].centre)
        for part in PARTS
        if part.name in intervals and intervals[part.name].centre > 0
    ]
    whole = [Segment("rest", "unattributed", intervals["client_e2e_mean_s"].centre)]
    return Stack(cell.engine, engines.index(cell.engine), segments or whole)


def _row(level: str, cell: Cell, columns: Sequence[tuple[str, str]], colour: str, notes: Footnotes) -> EngineRow:
    return EngineRow(
        level=level,
        engine=cell.engine,
        colour=colour,
        figures=[figure_text(cell, name, title, notes) for title, name in columns],
        pairs=[
            (figure_text(cell, server, title, notes), figure_text(cell, client, title, notes))
            for title, server, client in _PAIRS
        ],
    )
