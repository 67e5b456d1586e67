"""Which sessions the lanes show: those of one typical trial of each engine at its highest load."""

from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from bakeoff.results.metrics.requests import sessions_of
from bakeoff.results.records import Load
from bakeoff.results.report.charts.lanes import Part, Session, lanes, overlaps
from bakeoff.results.report.charts.svg import engine_class
from bakeoff.results.run.cells import Trial
from bakeoff.results.run.levels import engines_of, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.text.format import duration_text
from bakeoff.results.units import NS_PER_S

MAX_LANES = 30
CALL_BUDGET = 1_800
"""Calls over all charts; each has a hover text of about 150 bytes."""
_CALLS_PER_LANE = 16
"""Mean number of calls in a lane: more of them would be too narrow to tell apart."""


class LaneFigure(msgspec.Struct, frozen=True):
    """The lanes of one engine, and which of its sessions they are."""

    engine: str
    colour: str
    svg: Markup
    note: str


def lane_figures(run: Run) -> list[LaneFigure]:
    """One figure for each engine that has a valid trial with sessions of several requests."""
    engines = engines_of(run)
    shown = [(engine, trial) for engine in engines if (trial := _typical(run, engine)) is not None]
    return [_figure(engine, engines.index(engine), trial, CALL_BUDGET // len(shown)) for engine, trial in shown]


def _typical(run: Run, engine: str) -> Trial | None:
    """The trial of median rate of requests among the valid ones at the engine's highest load."""
    cells = [
        (_height(level.load), cell)
        for level in levels_of(run)
        for cell in level.cells
        if cell.engine == engine and level.turns > 1 and cell.valid
    ]
    if not cells:
        return None
    _, highest = max(cells, key=lambda pair: pair[0])
    trials = sorted(run.valid_trials_of(highest), key=lambda trial: (len(trial.answered), trial.record.id))
    return trials[(len(trials) - 1) // 2]


def _height(load: Load) -> float:
    return load.concurrency or load.rate_per_s or 0.0


def _figure(engine: str, position: int, trial: Trial, most_calls: int) -> LaneFigure:
    sessions = sessions_of(trial.load)
    part = _part(trial, sessions)
    live = [session for session in sessions if overlaps(session, part)]
    live.sort(key=lambda session: (min(call.planned_ns for call in session), session[0].index))
    chosen = _spread(live, min(MAX_LANES, max(1, most_calls // _CALLS_PER_LANE)))
    record = trial.record
    svg = lanes(
        f"Sessions of {engine} at {record.load.label}, repeat {record.repeat}", chosen, part, engine_class(position)
    )
    drawn = f"all {len(live)} sessions" if len(chosen) == len(live) else f"{len(chosen)} of {len(live)} sessions"
    length_s = (part[1] - part[0]) / NS_PER_S
    whole = "the window" if part[1] == trial.window.end_ns else f"the first {duration_text(length_s)} of the window"
    note = f"{record.load.label}, repeat {record.repeat}: {drawn} with a call in or around {whole}."
    return LaneFigure(engine, engine_class(position), svg, note)


def _part(trial: Trial, sessions: Sequence[Session]) -> Part:
    """The beginning of the window in which a session has a readable number of calls."""
    start_ns, end_ns = trial.window.start_ns, trial.window.end_ns
    live = [session for session in sessions if overlaps(session, (start_ns, end_ns))]
    calls = sum(overlaps([call], (start_ns, end_ns)) for session in live for call in session)
    if calls > _CALLS_PER_LANE * len(live):
        end_ns = start_ns + (end_ns - start_ns) * _CALLS_PER_LANE * len(live) // calls
    return start_ns, end_ns


def _spread(sessions: Sequence[Session], most: int) -> list[Session]:
    """At most ``most`` of the sessions, evenly spaced in their order."""
    if len(sessions) <= most:
        return list(sessions)
    return [sessions[number * len(sessions) // most] for number in range(most)]
