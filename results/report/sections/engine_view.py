"""The engine's own view: split of the mean E2E, and the engine's figures next to the client's."""

from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from bakeoff.results.report.charts.stacks import Group, Segment, Stack, stacks
from bakeoff.results.report.engine_cell import engine_cells
from bakeoff.results.report.engine_figures import figure_text
from bakeoff.results.run.cells import Cell as MeasuredCell
from bakeoff.results.run.levels import Level, engines_of, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.server_view import PARTS
from bakeoff.results.show.footnotes import Footnotes
from bakeoff.results.show.table import Cell, Column, Table, names

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


class EngineView(msgspec.Struct, frozen=True):
    """The section.

    Attributes:
        has_data: whether any engine reported anything.
        charts: one per workload.
        table: the engine's figures next to the client's, per level and engine.
    """

    has_data: bool
    charts: list[Markup]
    table: Table


def engine_view(run: Run) -> EngineView:
    """Build the section of a run."""
    levels = levels_of(run)
    cells = [(level.title, cell) for level in levels for cell in level.cells if cell.valid]
    has_data = any(cell.server.why is None for _, cell in cells)
    return EngineView(has_data, _charts(levels, engines_of(run)), _table(run, cells))


def _table(run: Run, cells: Sequence[tuple[str, MeasuredCell]]) -> Table:
    columns = [(title, name) for title, name in _COLUMNS if any(name in cell.server.intervals for _, cell in cells)]
    notes, engine_cell = Footnotes(), engine_cells(run)
    rows = [
        [
            *(Cell(level), engine_cell(cell.engine)),
            *(Cell(figure_text(cell, name, title, notes)) for title, name in columns),
            *(Cell(figure_text(cell, name, title, notes)) for title, *pair in _PAIRS for name in pair),
        ]
        for level, cell in cells
    ]
    unreported = [title for title, name in _COLUMNS if (title, name) not in columns]
    return Table(
        "The engine’s figures next to the client’s",
        [
            *names("load", "engine"),
            *(Column(title, anchor=f"seen-{name}") for title, name in columns),
            *(
                Column(whose, group=title, anchor=f"seen-{name}")
                for title, *pair in _PAIRS
                for whose, name in zip(("engine", "client"), pair, strict=True)
            ),
        ],
        rows,
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


def _stack(cell: MeasuredCell, engines: Sequence[str]) -> Stack | None:
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
