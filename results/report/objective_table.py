"""Whether each engine meets the objectives, as a table."""

from itertools import groupby

from msgspec.structs import asdict

from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.run.levels import Level
from bakeoff.results.run.objectives import Kept, State, kept_objectives, worst
from bakeoff.results.run.run import Run
from bakeoff.results.show.table import Cell, Column, Kind, Table, Tone
from bakeoff.results.text.format import interval_parts

_MARKS = {State.MET: "✓ met", State.NOT_MET: "✗ not met", State.OPEN: "? open"}
_TONES = {State.MET: Tone.BETTER, State.NOT_MET: Tone.WORSE, State.OPEN: Tone.UNCLEAR}
_COLUMNS = [
    Column("load", Kind.GROUP),
    Column("engine", Kind.NAME),
    Column("objective", Kind.NAME),
    Column("value"),
    Column("verdict", Kind.NAME),
    Column("why", Kind.REASON),
]


def objective_tables(run: Run) -> list[Table]:
    """One row for each objective of each engine at each load, and below them each load in a sentence; or no table."""
    kept = kept_objectives(run)
    rows = [
        [
            Cell(one.level.title),
            Cell(one.cell.engine),
            Cell(one.objective.text),
            Cell(*interval_parts(CATALOGUE[one.objective.metric], one.interval), value=one.interval),
            Cell(_MARKS[one.state], tone=_TONES[one.state], value=one.state),
            Cell(_why(one)),
        ]
        for one in kept
    ]
    notes = [
        f"{_load_text(level, cell.engine, alone=len(level.cells) == 1)}: {worst([one.state for one in members]).value}"
        for (level, cell), members in groupby(kept, lambda one: (one.level, one.cell))
    ]
    slo = asdict(run.manifest.slo)
    bounds = ", ".join(f"{name.removesuffix('_s')}<{bound:g}s" for name, bound in slo.items() if bound)
    if bounds and any(one.objective.metric == "attainment" for one in kept):
        notes.insert(0, f"attainment: the share of requests with {bounds}")
    return [Table("Objectives", _COLUMNS, rows, "Objectives", notes=notes)] if rows else []


def _why(one: Kept) -> str:
    if one.interval is None:
        return one.cell.reasons.get(one.objective.metric, "no valid trial")
    if one.interval.low is None:
        return "one trial has no interval; three or more show whether another would meet it"
    return "the interval contains the bound; more or longer trials narrow it" if one.state is State.OPEN else ""


def _load_text(level: Level, engine: str, *, alone: bool) -> str:
    """``8 users``; with the engine's name where there are several."""
    users = level.load.concurrency
    load = level.title if users is None else f"{users} user{'' if users == 1 else 's'}"
    return load if alone else f"{load}, {engine}"
