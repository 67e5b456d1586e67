"""Figures that other tools would report for the same requests, next to ours, and why they differ."""

from collections.abc import Sequence

import msgspec

from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.report.charts.svg import engine_class
from bakeoff.results.report.section import Section
from bakeoff.results.report.verdict import primary_level
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.levels import Level, engines_of, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.text.format import listed, value_text
from bakeoff.results.views import VIEWS, Tool
from bakeoff.results.views.base import is_streamed
from bakeoff.results.views.side_by_side import COLUMNS, ViewedTrial, not_in_the_log, ours, theirs, view_trials

_SAME = 0.005
"""Relative difference below which two numbers count as equal."""


class Number(msgspec.Struct, frozen=True):
    """One number, its difference from ours, and the anchor of its definition (empty if it has none)."""

    text: str
    difference: str
    anchor: str


class ToolRow(msgspec.Struct, frozen=True):
    """One tool's numbers."""

    title: str
    numbers: list[Number]


class EngineViews(msgspec.Struct, frozen=True):
    """Our numbers and every tool's for one engine."""

    engine: str
    colour: str
    ours: list[Number]
    tools: list[ToolRow]


class ViewPanel(msgspec.Struct, frozen=True):
    """One load level; ``primary`` marks that of the verdict."""

    key: str
    title: str
    primary: bool
    engines: list[EngineViews]


class ToolDefinition(msgspec.Struct, frozen=True):
    """A tool's definition of one metric; ``tool`` is set on its first definition only."""

    anchor: str
    tool: str
    name: str
    formula: str
    why: str


MAX_REQUESTS = 20_000
"""Requests of a trial whose views are on the page: the tools' figures are made of one object for each request."""


class Views(msgspec.Struct, frozen=True):
    """The section."""

    columns: list[str]
    panels: list[ViewPanel]
    definitions: list[ToolDefinition]
    missing: list[str]


def views_section(run: Run) -> Views | None:
    """Build the section of a run; None if no answer was streamed."""
    levels, trials = levels_of(run), view_trials(run, MAX_REQUESTS)
    is_large = any(is_streamed(trial) and len(trial.load) > MAX_REQUESTS for trial in run.finished)
    if not trials and not is_large:
        return None
    large = f"Trials of more than {MAX_REQUESTS:,} requests are left out here; bakeoff report RUN views has them."
    return Views(
        columns=[column.title for column in COLUMNS],
        panels=[_panel(run, level, f"level{i}", trials, primary_level(levels)) for i, level in enumerate(levels)],
        definitions=[definition for tool in VIEWS.values() for definition in _definitions(tool)],
        missing=[
            *([large] if is_large else []),
            *(f"{listed(titles)}: {line}" for line, titles in not_in_the_log(list(VIEWS), trials).items()),
        ],
    )


def _panel(run: Run, level: Level, key: str, trials: Sequence[ViewedTrial], primary: Level | None) -> ViewPanel:
    engines = [_engine(run, cell, trials) for cell in level.cells if cell.valid]
    return ViewPanel(key, level.title, level is primary, engines)


def _engine(run: Run, cell: Cell, trials: Sequence[ViewedTrial]) -> EngineViews:
    own = ours(cell)
    rows: list[ToolRow] = []
    for name, centres in theirs(cell, trials).items():
        anchors = [_anchor(name, column.family.name) for column in COLUMNS]
        pairs = zip(centres, own, anchors, strict=True)
        numbers = [
            Number(text, _difference(centre, own_value), anchor if anchor in _ANCHORS else "")
            for text, (centre, own_value, anchor) in zip(_texts(centres), pairs, strict=True)
        ]
        rows.append(ToolRow(VIEWS[name].title, numbers))
    own_numbers = [
        Number(text, "", f"metric-{CATALOGUE[column.metric].family}")
        for text, column in zip(_texts(own), COLUMNS, strict=True)
    ]
    return EngineViews(cell.engine, engine_class(engines_of(run).index(cell.engine)), own_numbers, rows)


def _texts(centres: Sequence[float | None]) -> list[str]:
    pairs = zip(COLUMNS, centres, strict=True)
    return [value_text(CATALOGUE[column.metric].unit, value) for column, value in pairs]


def _difference(centre: float | None, own_value: float | None) -> str:
    """``+12 %``, ``=`` if equal, or empty if either is missing."""
    if centre is None or not own_value:
        return ""
    difference = centre / own_value - 1
    if abs(difference) < _SAME:
        return "="
    digits = f"{100 * abs(difference):.2g}" if abs(difference) < 0.1 else f"{100 * abs(difference):,.0f}"
    return f"{'+' if difference > 0 else '−'}{digits} %"


def _definitions(tool: Tool) -> list[ToolDefinition]:
    """A tool's definitions; numbers link to the first one of their metric family."""
    definitions: list[ToolDefinition] = []
    for definition in tool.definitions:
        anchor = _anchor(tool.name, definition.family.name)
        used = any(definition.anchor == anchor for definition in definitions)
        title = "" if definitions else f"{tool.title} {tool.version}"
        definitions.append(
            ToolDefinition("" if used else anchor, title, definition.name, definition.formula, definition.why)
        )
    return definitions


def _anchor(tool: str, family: str) -> str:
    return f"view-{tool}-{family.lower()}"


_ANCHORS = {definition.anchor for tool in VIEWS.values() for definition in _definitions(tool)}


SECTIONS = (
    Section(
        id="views",
        title="Figures of other tools",
        shows="what other clients would have printed, and how far that is from ours ([views.md](views.md))",
        place=80,
        folded=True,
        build=lambda run: {"view": view} if (view := views_section(run)) else {},
    ),
)
