"""Capacities of a search: each tier's answers, and the bounded metrics against the load."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from bakeoff.results.log.search import EngineSearch, Over, SearchConfig, SearchRecord
from bakeoff.results.metrics import CATALOGUE, Unit
from bakeoff.results.metrics.objectives import Objective
from bakeoff.results.report.charts.axes import tick_text
from bakeoff.results.report.charts.lines import Frame, Line, Span, lines_chart
from bakeoff.results.report.charts.scales import Axis, Scale
from bakeoff.results.report.charts.svg import engine_class
from bakeoff.results.report.search_lines import answer, power_text, search_title, searches_of, share_text
from bakeoff.results.report.section import Section
from bakeoff.results.run.capacity import Capacity, capacities
from bakeoff.results.run.run import Run
from bakeoff.results.show.table import Cell, Table, figures, names
from bakeoff.results.text.format import ABSENT

_X_TITLES = {Over.RATE: "arrivals per second →", Over.CONCURRENCY: "concurrency: sessions in progress (agents) →"}
_MARGIN = 1.1


def _table(record: SearchRecord, shares: Sequence[Capacity]) -> Table:
    by_search = {(capacity.tier, capacity.engine): capacity for capacity in shares}
    config = record.config
    tier_column = ["tier"] if config.tiers else []

    def row(search: EngineSearch) -> list[Cell]:
        capacity = by_search.get((search.tier, search.engine))
        gpus, watts = (capacity.gpus.value, capacity.power_w.value) if capacity else (None, None)
        return [
            *(Cell(search.tier) for _ in tier_column),
            Cell(search.engine, colour=engine_class(config.engines.index(search.engine))),
            Cell(answer(config.over, search)),
            Cell(share_text(capacity.per_gpu if capacity else None) or ABSENT),
            Cell(f"{gpus:g}" if gpus else ABSENT),
            Cell(share_text(capacity.per_megawatt if capacity else None) or ABSENT),
            Cell(power_text(watts) if watts else ABSENT),
            Cell(f"{len(search.attempts):,}"),
        ]

    return Table(
        "Capacities",
        [
            *names(*tier_column, "engine"),
            *figures(["capacity", "per GPU", "GPUs", "per MW of GPU power", "GPU power", "trials"]),
        ],
        [row(search) for tier in config.objectives for search in searches_of(record, tier)],
        notes=_whys(shares),
    )


def _whys(shares: Sequence[Capacity]) -> list[str]:
    """Why figures are absent, each reason once with its engines."""
    engines: dict[str, dict[str, None]] = defaultdict(dict)
    for capacity in shares:
        for what, value in (("per GPU", capacity.gpus), ("per MW", capacity.power_w)):
            if value.reason:
                engines[f"{what} not known: {value.reason}"][capacity.engine] = None
    return [f"{', '.join(names)}: {reason}" for reason, names in engines.items()]


def _bounds(config: SearchConfig) -> dict[str, list[tuple[str, Objective]]]:
    """Tiers with their bound, by metric."""
    bounds: dict[str, list[tuple[str, Objective]]] = defaultdict(list)
    for tier, required in config.objectives.items():
        for objective in required:
            bounds[objective.metric].append((tier, objective))
    return bounds


def _points(run: Run, record: SearchRecord, engine: str, metric: str) -> list[tuple[float, float]]:
    """Each level that the engine was tried at, with the mean of its trials that have the metric."""
    levels = {attempt.trial: attempt.level for search in record.engines for attempt in search.attempts}
    values: dict[float, list[float]] = defaultdict(list)
    for trial in run.finished:
        value = trial.metrics[metric].value
        if trial.record.engine == engine and trial.record.id in levels and value is not None and value > 0:
            values[levels[trial.record.id]].append(value)
    return [(level, statistics.fmean(values[level])) for level in sorted(values)]


def _chart(run: Run, record: SearchRecord, metric: str, bounds: Sequence[tuple[str, Objective]]) -> Markup:
    config, known = record.config, CATALOGUE[metric]
    drawn = [
        Line(engine, position, points)
        for position, engine in enumerate(config.engines)
        if (points := _points(run, record, engine, metric))
    ]
    if not drawn or any(objective.bound <= 0 for _, objective in bounds):
        return Markup("")
    spans = [
        _span(config, search, objective)
        for tier, objective in bounds
        for search in searches_of(record, tier)
        if search.level is not None
    ]
    loads = [x for series in drawn for x, _ in series.points]
    low, high = min(loads) / _MARGIN, max(loads) * _MARGIN
    axis = Axis(low, high, 0.0, 1.0, log=True)
    scale = Scale(
        low, high, [(x, tick_text(Unit.COUNT, x, axis)) for x in axis.ticks()], _X_TITLES[config.over], log=True
    )
    frame = Frame(f"{known.title} against the load", known.title, scale, known.unit, known.title)
    limits = [(objective.bound, tier or objective.text) for tier, objective in bounds]
    return lines_chart(frame, drawn, limits, spans)


def _span(config: SearchConfig, search: EngineSearch, objective: Objective) -> Span:
    assert search.level is not None
    tier = f" for {search.tier}" if search.tier else ""
    return Span(
        objective.bound,
        config.low if search.low is None else search.low,
        search.level,
        config.high if search.high is None or search.open_above else search.high,
        config.engines.index(search.engine),
        f"{search.engine}{tier}: {answer(config.over, search)}",
    )


def _build(run: Run) -> Mapping[str, Any]:
    record = run.search
    if record is None or not any(search.attempts for search in record.engines):
        return {}
    shares = capacities(run)
    charts = [_chart(run, record, metric, bounds) for metric, bounds in _bounds(record.config).items()]
    return {
        "capacity_titles": [search_title(record.config, tier) for tier in record.config.objectives],
        "has_tiers": bool(record.config.tiers),
        "capacity_table": _table(record, shares),
        "capacity_charts": [svg for svg in charts if svg],
    }


SECTIONS = (
    Section(
        id="capacity",
        title="Capacity at the objectives",
        shows="of a search: capacity of each tier with its interval, per GPU and per MW; its metrics against the load",
        place=18,
        build=_build,
    ),
)
