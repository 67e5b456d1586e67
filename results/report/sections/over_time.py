"""Latency over time: the observations of TTFT and ITL by arrival time."""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from markupsafe import Markup

from bakeoff.results.metrics.latency import gaps_of
from bakeoff.results.report.charts.heatmap import Heat, heatmap, shared_axis
from bakeoff.results.report.section import Section
from bakeoff.results.report.verdict import primary_level
from bakeoff.results.requests import Floats
from bakeoff.results.run.cells import Trial
from bakeoff.results.run.levels import Level, engines_of, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.units import NS_PER_S

Observations = tuple[Floats, Floats]
"""Arrival and value of each, in seconds."""


class Latency(msgspec.Struct, frozen=True):
    """A latency: its name, its unit of count, and its observations in a trial."""

    metric: str
    noun: str
    observe: Callable[[Trial], Observations]


class TimeChart(msgspec.Struct, frozen=True):
    """A heatmap, or the reason why it is missing."""

    svg: Markup
    missing: str


class TimePanel(msgspec.Struct, frozen=True):
    """TTFT and ITL of each engine at one level; ``key`` is safe in ids, ``primary`` marks the level of the verdict."""

    key: str
    title: str
    primary: bool
    charts: list[TimeChart]


def time_panels(run: Run) -> list[TimePanel]:
    """Heatmaps of every level."""
    levels = levels_of(run)
    return [_panel(run, level, f"level{i}", primary_level(levels)) for i, level in enumerate(levels)]


def first_tokens(trial: Trial) -> Observations:
    """Arrival and TTFT in seconds; arrivals count from the start of the load."""
    answered = trial.answered.take(trial.answered.chunks.counts > 0)
    first_ns = answered.chunks.first_ns
    return (first_ns - trial.record.issue_start_ns) / NS_PER_S, answered.seconds_from("planned_ns", first_ns)


def later_tokens(trial: Trial) -> Observations:
    """Arrival and ITL in seconds, of every token after the first chunk that arrived in the window."""
    gaps = gaps_of(trial.load, trial.window)
    arrived_s = (gaps.end_ns - trial.record.issue_start_ns) / NS_PER_S
    return np.repeat(arrived_s, gaps.tokens), gaps.token_s


_LATENCIES = (Latency("TTFT", "requests", first_tokens), Latency("ITL", "tokens", later_tokens))


def _panel(run: Run, level: Level, key: str, primary: Level | None) -> TimePanel:
    heats = [[_heat(run, level, i, latency) for latency in _LATENCIES] for i in range(len(level.cells))]
    drawn = [_drawn([row[column] for row in heats], level) for column in range(len(_LATENCIES))]
    return TimePanel(key, level.title, level is primary, [chart for pair in zip(*drawn, strict=True) for chart in pair])


def _drawn(heats: Sequence[Heat], level: Level) -> list[TimeChart]:
    """One metric of all engines, on one y axis."""
    drawn = [heat for heat in heats if len(heat.values_s)]
    axis = shared_axis(drawn) if drawn else None
    return [
        TimeChart(heatmap(f"{heat.metric} of {heat.engine} over time at {level.title}", heat, axis), "")
        if axis is not None and len(heat.values_s)
        else TimeChart(Markup(""), f"{heat.metric} of {heat.engine}: no valid trial has an observation")
        for heat in heats
    ]


def _heat(run: Run, level: Level, cell_index: int, latency: Latency) -> Heat:
    cell = level.cells[cell_index]
    observed = [latency.observe(trial) for trial in run.valid_trials_of(cell)]
    times, values = (np.concatenate([np.empty(0), *(pair[column] for pair in observed)]) for column in (0, 1))
    return Heat(cell.engine, engines_of(run).index(cell.engine), latency.metric, latency.noun, times, values)


SECTIONS = (
    Section(
        id="over-time",
        title="Latency over time",
        shows="TTFT and ITL as heatmaps: drift, stalls, a second mode",
        place=40,
        build=lambda run: {"time_panels": time_panels(run)},
    ),
)
