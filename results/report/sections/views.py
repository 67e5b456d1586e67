"""What other tools would have printed for the same requests, beside ours, and why the numbers differ."""

from collections.abc import Sequence

import msgspec

from results.levels import Level, engines_of, levels_of
from results.metrics import CATALOGUE
from results.metrics.basis import family_of
from results.report.charts.svg import engine_class
from results.report.verdict import primary_level
from results.run import Cell, Run
from results.text.format import listed, value_text
from results.views import VIEWS, Tool
from results.views.side_by_side import COLUMNS, ViewedTrial, not_in_the_log, ours, theirs, view_trials

_SAME = 0.005
"""Relative difference below which two numbers are called the same."""


class Number(msgspec.Struct, frozen=True):
    """One number, how far it is from ours, and the anchor of its definition (empty where there is none)."""

    text: str
    apart: str
    anchor: str


class ToolRow(msgspec.Struct, frozen=True):
    """One tool's numbers."""

    title: str
    numbers: list[Number]


class EngineViews(msgspec.Struct, frozen=True):
    """One engine: our numbers and every tool's."""

    engine: str
    colour: str
    ours: list[Number]
    tools: list[ToolRow]


class ViewPanel(msgspec.Struct, frozen=True):
    """One level; ``primary`` is that of the verdict."""

    key: str
    title: str
    primary: bool
    engines: list[EngineViews]


class Meaning(msgspec.Struct, frozen=True):
    """What a tool means by one of its metrics; ``tool`` is empty but for its first one."""

    anchor: str
    tool: str
    name: str
    formula: str
    why: str


class Views(msgspec.Struct, frozen=True):
    """The section."""

    columns: list[str]
    panels: list[ViewPanel]
    meanings: list[Meaning]
    missing: list[str]


def views_section(run: Run) -> Views:
    """Look at a run as each tool would."""
    levels, seen = levels_of(run), view_trials(run)
    return Views(
        columns=[column.title for column in COLUMNS],
        panels=[_panel(run, level, f"level{i}", seen, primary_level(levels)) for i, level in enumerate(levels)],
        meanings=[meaning for tool in VIEWS.values() for meaning in _meanings(tool)],
        missing=[f"{listed(titles)}: {line}" for line, titles in not_in_the_log(list(VIEWS), seen).items()],
    )


def _panel(run: Run, level: Level, key: str, seen: Sequence[ViewedTrial], primary: Level | None) -> ViewPanel:
    engines = [_engine(run, cell, seen) for cell in level.cells if cell.valid]
    return ViewPanel(key, level.title, level is primary, engines)


def _engine(run: Run, cell: Cell, seen: Sequence[ViewedTrial]) -> EngineViews:
    own = ours(cell)
    rows: list[ToolRow] = []
    for name, centres in theirs(cell, seen).items():
        anchors = [_anchor(name, column.family.name) for column in COLUMNS]
        pairs = zip(centres, own, anchors, strict=True)
        numbers = [
            Number(text, _apart(centre, mine), anchor if anchor in _ANCHORS else "")
            for text, (centre, mine, anchor) in zip(_texts(centres), pairs, strict=True)
        ]
        rows.append(ToolRow(VIEWS[name].title, numbers))
    mine = [
        Number(text, "", f"metric-{family_of(column.metric)}")
        for text, column in zip(_texts(own), COLUMNS, strict=True)
    ]
    return EngineViews(cell.engine, engine_class(engines_of(run).index(cell.engine)), mine, rows)


def _texts(centres: Sequence[float | None]) -> list[str]:
    pairs = zip(COLUMNS, centres, strict=True)
    return [value_text(CATALOGUE[column.metric].unit, value) for column, value in pairs]


def _apart(centre: float | None, mine: float | None) -> str:
    """``+12 %``; empty where it is the same or one of the two is missing."""
    if centre is None or not mine:
        return ""
    apart = centre / mine - 1
    if abs(apart) < _SAME:
        return "="
    digits = f"{100 * abs(apart):.2g}" if abs(apart) < 0.1 else f"{100 * abs(apart):,.0f}"
    return f"{'+' if apart > 0 else '−'}{digits} %"


def _meanings(tool: Tool) -> list[Meaning]:
    """A tool's definitions; the first one of each family is what its numbers link to."""
    found: list[Meaning] = []
    for definition in tool.definitions:
        anchor = _anchor(tool.name, definition.family.name)
        taken = any(one.anchor == anchor for one in found)
        title = "" if found else f"{tool.title} {tool.version}"
        found.append(Meaning("" if taken else anchor, title, definition.name, definition.formula, definition.why))
    return found


def _anchor(tool: str, family: str) -> str:
    return f"view-{tool}-{family.lower()}"


_ANCHORS = {meaning.anchor for tool in VIEWS.values() for meaning in _meanings(tool)}
