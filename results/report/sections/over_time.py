"""Latency over time: the observations behind TTFT and ITL by the instant at which they arrived."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec
from markupsafe import Markup

from results.levels import Level, engines_of, levels_of
from results.metrics import under_load
from results.metrics.latency import arrivals
from results.report.charts.heatmap import Heat, heatmap, shared_axis
from results.report.verdict import primary_level
from results.run import Run, Trial
from results.units import NS_PER_S

Observed = list[tuple[float, float]]


class Shown(msgspec.Struct, frozen=True):
    """A latency, what one observation of it is, and how to have them."""

    metric: str
    noun: str
    observe: Callable[[Trial], Observed]


class TimeChart(msgspec.Struct, frozen=True):
    """A heatmap, or why there is none."""

    svg: Markup
    missing: str


class TimePanel(msgspec.Struct, frozen=True):
    """One level: engine by engine its TTFT and its ITL; ``key`` is safe in ids, ``primary`` is that of the verdict."""

    key: str
    title: str
    primary: bool
    charts: list[TimeChart]


def time_panels(run: Run) -> list[TimePanel]:
    """The heatmaps of every level."""
    levels = levels_of(run)
    return [_panel(run, level, f"level{i}", primary_level(levels)) for i, level in enumerate(levels)]


def first_tokens(trial: Trial) -> Observed:
    """(arrival, TTFT) in seconds, the arrival from the start of the load."""
    start = trial.record.issue_start_ns
    return [
        ((request.chunk_ns[0] - start) / NS_PER_S, (request.chunk_ns[0] - request.planned_ns) / NS_PER_S)
        for request in trial.answered
        if request.chunk_ns
    ]


def later_tokens(trial: Trial) -> Observed:
    """(arrival, ITL) in seconds of every token after the first chunk that arrived in the window."""
    start, window = trial.record.issue_start_ns, trial.window
    return [
        ((now - start) / NS_PER_S, (now - before) / NS_PER_S / tokens)
        for request in under_load(trial.requests)
        for (before, _), (now, tokens) in pairwise(arrivals(request))
        if window.holds(now)
        for _ in range(tokens)
    ]


_SHOWN = (Shown("TTFT", "requests", first_tokens), Shown("ITL", "tokens", later_tokens))


def _panel(run: Run, level: Level, key: str, primary: Level | None) -> TimePanel:
    heats = [[_heat(run, level, i, shown) for shown in _SHOWN] for i in range(len(level.cells))]
    drawn = [_drawn([row[column] for row in heats], level) for column in range(len(_SHOWN))]
    return TimePanel(key, level.title, level is primary, [chart for pair in zip(*drawn, strict=True) for chart in pair])


def _drawn(heats: Sequence[Heat], level: Level) -> list[TimeChart]:
    """One metric of all engines, on one upright scale."""
    known = [heat for heat in heats if heat.values_s]
    axis = shared_axis(known) if known else None
    return [
        TimeChart(heatmap(f"{heat.metric} of {heat.engine} over time at {level.title}", heat, axis), "")
        if axis is not None and heat.values_s
        else TimeChart(Markup(""), f"{heat.metric} of {heat.engine}: no valid trial has an observation")
        for heat in heats
    ]


def _heat(run: Run, level: Level, cell_index: int, shown: Shown) -> Heat:
    cell = level.cells[cell_index]
    seen = [one for trial in run.valid_trials_of(cell) for one in shown.observe(trial)]
    times, values = [t for t, _ in seen], [value for _, value in seen]
    return Heat(cell.engine, engines_of(run).index(cell.engine), shown.metric, shown.noun, times, values)
