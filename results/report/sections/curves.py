"""Charts that compare engines: frontier and goodput of each workload, and the distributions at each level."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from markupsafe import Markup

from bakeoff.results.metrics import latency
from bakeoff.results.metrics.declaration import known
from bakeoff.results.report.charts.ecdf import Sample, ecdf
from bakeoff.results.report.charts.frontier import ARRIVALS, GOODPUT, Point, Series, frontier
from bakeoff.results.report.section import Section
from bakeoff.results.report.verdict import primary_level
from bakeoff.results.requests import Floats, Requests
from bakeoff.results.run.cells import Cell, Trial
from bakeoff.results.run.frontier import has_point
from bakeoff.results.run.levels import Level, engines_of, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.statistics.interval import Interval, reciprocal

Observe = Callable[[Trial], Floats]


def _per_request(measure: Callable[[Requests], Floats]) -> Observe:
    def observe(trial: Trial) -> Floats:
        return known(measure(trial.answered))

    return observe


DISTRIBUTIONS: tuple[tuple[str, Observe], ...] = (
    ("TTFT", _per_request(latency.ttft_s)),
    ("ITL", lambda trial: latency.itl_s(trial.load, trial.window)[0]),
    ("TPOT", _per_request(latency.tpot_s)),
    ("E2E", _per_request(latency.e2e_s)),
)
"""Title and observations, which are those of the metric of that name."""


class Frontier(msgspec.Struct, frozen=True):
    """Chart of one workload."""

    workload: str
    svg: Markup


class Panel(msgspec.Struct, frozen=True):
    """Distributions at one level; ``key`` is safe in ids, ``primary`` marks the level of the verdict."""

    key: str
    title: str
    primary: bool
    charts: list[Markup]
    missing: list[str]


def frontiers(run: Run) -> list[Frontier]:
    """One chart per workload with valid closed-loop trials."""
    levels = levels_of(run)
    drawn = [
        Frontier(workload, frontier(f"Throughput against interactivity, {workload}", _series(run, levels, workload)))
        for workload in dict.fromkeys(level.workload for level in levels)
    ]
    return [chart for chart in drawn if chart.svg]


def goodputs(run: Run) -> list[Frontier]:
    """One chart per workload with two planned rates or more, if the experiment has an SLO."""
    by_workload = {workload: _rates(run, workload) for workload in dict.fromkeys(cell.workload for cell in run.cells)}
    return [
        Frontier(workload, frontier(f"Goodput against rate, {workload}", series, ARRIVALS, GOODPUT))
        for workload, series in by_workload.items()
        if any(len(engine.points) > 1 for engine in series)
    ]


def _rates(run: Run, workload: str) -> list[Series]:
    levels = [level for level in levels_of(run) if level.workload == workload and level.load.rate_per_s]
    points: dict[str, list[Point]] = {engine: [] for engine in engines_of(run)}
    for cell in (cell for level in levels for cell in level.cells):
        if goodput := cell.intervals.get("goodput_per_s"):
            points[cell.engine].append(Point("", Interval(_arrivals_per_s(run, cell), None, None, 1), goodput))
    return [
        Series(engine, i, sorted(line, key=lambda point: point.x.centre))
        for i, (engine, line) in enumerate(points.items())
    ]


def _arrivals_per_s(run: Run, cell: Cell) -> float:
    """Requests planned inside the window: a short Poisson process can miss its rate by a quarter."""
    trials = run.valid_trials_of(cell)
    planned = sum(len(trial.inside) for trial in trials)
    return planned / sum(trial.window.length_s for trial in trials)


def _series(run: Run, levels: Sequence[Level], workload: str) -> list[Series]:
    closed = sorted(
        (level for level in levels if level.workload == workload and level.load.concurrency is not None),
        key=lambda level: level.load.concurrency or 0,
    )
    return [Series(engine, i, _points(closed, engine)) for i, engine in enumerate(engines_of(run))]


def _points(levels: Sequence[Level], engine: str) -> list[Point]:
    return [
        Point(level.load.label, reciprocal(cell.intervals["tpot_p50_s"]), cell.intervals["output_tokens_per_s"])
        for level in levels
        for cell in level.cells
        if cell.engine == engine and has_point(cell)
    ]


def panels(run: Run) -> list[Panel]:
    """Distributions at each level."""
    levels = levels_of(run)
    return [_panel(run, level, f"level{i}", primary_level(levels)) for i, level in enumerate(levels)]


def _panel(run: Run, level: Level, key: str, primary: Level | None) -> Panel:
    charts: list[Markup] = []
    missing: list[str] = []
    for title, observe in DISTRIBUTIONS:
        svg = ecdf(f"{title} at {level.title}", [_sample(run, level, i, observe) for i in range(len(level.cells))])
        if svg:
            charts.append(svg)
        else:
            missing.append(f"{title}: no valid trial has an observation")
    return Panel(key, level.title, level is primary, charts, missing)


def _sample(run: Run, level: Level, cell_index: int, observe: Observe) -> Sample:
    cell = level.cells[cell_index]
    repeats = [observe(trial) for trial in run.valid_trials_of(cell)]
    return Sample(cell.engine, engines_of(run).index(cell.engine), repeats)


def _curves(run: Run) -> dict[str, Any]:
    drawn = {"frontiers": frontiers(run), "goodputs": goodputs(run)}
    return drawn if any(drawn.values()) else {}


SECTIONS = (
    Section(
        id="frontier",
        title="Throughput against interactivity",
        shows=(
            "closed loops: total throughput against per-user speed; open loops: requests/s within the SLO against the "
            "planned rate"
        ),
        place=20,
        build=_curves,
    ),
    Section(
        id="distributions",
        title="Latency distributions",
        shows="TTFT, ITL, TPOT, E2E as ECDFs, one line per repeat",
        place=30,
        build=lambda run: {"panels": panels(run)},
    ),
)
