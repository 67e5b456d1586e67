"""Engines over a grid of settings: which setting is best, and what each setting does.

Settings are compared within one engine. The best is the highest centre of many: it is compared with the others as such,
and its figure is too good, so that the one to expect stands beside it (:mod:`bakeoff.results.statistics.best`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bakeoff.results.metric import Better, Metric, Unit
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.records import GridPoint, Slo
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.levels import Level, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.statistics.best import beside, means_of, shrunk
from bakeoff.results.statistics.factorial import Effect, effects
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.statistics.two_sample import Scale, on_scale

_LEVEL = 0.95
EFFECT_METRICS = ("output_tokens_per_s", "ttft_p50_s", "tpot_p50_s")
"""Effects are shown on these, and on what settings are ranked by."""


class Ranked(msgspec.Struct, frozen=True):
    """A setting at the load at which it is best.

    Attributes:
        engine: label.
        base: the engine without its settings.
        values: setting → value.
        load: title of the load.
        value: of the metric.
        behind: ratio to the best setting, at 95 % for all settings together; None for the best, or if its noise is
            unknown.
        is_close: whether it cannot be told apart from the best; None if its noise is unknown.
        expected: the value of the best without the luck for which it was chosen; None for others, or if it is unknown.
    """

    engine: str
    base: str
    values: dict[str, Any]
    load: str
    value: Interval
    behind: Interval | None = None
    is_close: bool | None = None
    expected: float | None = None


class GridEffects(msgspec.Struct, frozen=True):
    """What the settings of one engine do to one metric at one load.

    Attributes:
        base: the engine without its settings.
        load: title of the load.
        metric: name.
        settings: in their order, with their values in theirs.
        effects: on the log scale, or for shares on their own; empty if they are unknown.
        reason: why they are unknown.
    """

    base: str
    load: str
    metric: str
    settings: dict[str, list[Any]]
    effects: list[Effect]
    reason: str | None = None


class GridReport(msgspec.Struct, frozen=True):
    """What a grid shows.

    Attributes:
        metric: by which settings are ranked.
        ranking: the best first, by engine.
        effects: by engine, metric and load.
    """

    metric: str
    ranking: list[Ranked]
    effects: list[GridEffects]


def best_metric(run: Run) -> str:
    """What settings are ranked by: goodput, or output tokens per second where the experiment sets no SLO."""
    return "output_tokens_per_s" if run.manifest.slo == Slo() else "goodput_per_s"


def grid_report(run: Run, metrics: Sequence[str] = ()) -> GridReport:
    """What the grid of a run shows.

    Args:
        run: with a grid.
        metrics: the first ranks settings, and effects are shown on all; empty for :func:`best_metric` and
            :data:`EFFECT_METRICS`.
    """
    shown = list(metrics) or list(dict.fromkeys((best_metric(run), *EFFECT_METRICS)))
    return GridReport(shown[0], ranking(run, shown[0]), grid_effects(run, shown))


def ranking(run: Run, metric: str) -> list[Ranked]:
    """The settings of each engine with a grid, the best first; those without a valid trial are left out."""
    known = CATALOGUE[metric]
    found: list[Ranked] = []
    for base in _bases(run):
        cells = [(_point(run, cell), level, cell) for level in levels_of(run) for cell in level.cells]
        own = [
            (level, cell) for point, level, cell in cells if point and point.base == base and metric in cell.intervals
        ]
        at_best = {cell.engine: (level, cell) for level, cell in sorted(own, key=lambda each: _merit(each[1], known))}
        ordered = sorted(at_best.values(), key=lambda each: _merit(each[1], known), reverse=True)
        found += _ranked(run, ordered, family=len(own), metric=metric)
    return found


def grid_effects(run: Run, metrics: Sequence[str]) -> list[GridEffects]:
    """The effects by engine, metric and load; empty for a run without a grid."""
    return [
        _effects(run, base, level, metric) for base in _bases(run) for metric in metrics for level in levels_of(run)
    ]


def _bases(run: Run) -> list[str]:
    return list(dict.fromkeys(point.base for point in run.manifest.grid.values()))


def _point(run: Run, cell: Cell) -> GridPoint | None:
    return run.manifest.grid.get(cell.engine)


def _merit(cell: Cell, metric: Metric) -> float:
    centre = cell.intervals[metric.name].centre
    return centre if metric.better is Better.HIGHER else -centre


def _ranked(run: Run, ordered: Sequence[tuple[Level, Cell]], *, family: int, metric: str) -> list[Ranked]:
    """The settings of one engine, the best first.

    Args:
        run: with the grid.
        ordered: each setting at its best load, the best first.
        family: figures of settings and loads among which the best was chosen.
        metric: by which.
    """
    points = [run.manifest.grid[cell.engine] for _, cell in ordered]
    rows = [
        Ranked(cell.engine, point.base, point.values, level.title, cell.intervals[metric])
        for (level, cell), point in zip(ordered, points, strict=True)
    ]
    values = [_values(run, cell, metric) for _, cell in ordered]
    with_ratio = [place for place, own in enumerate(values) if _is_share(metric) or min(own.values()) > 0]
    scaled = [dict(zip(values[at], on_scale([*values[at].values()], _scale(metric)), strict=True)) for at in with_ratio]
    means = means_of(scaled) if 0 in with_ratio and len(with_ratio) > 1 else None
    if means is None or not means.degrees:
        return rows
    shown = float if _is_share(metric) else math.exp
    rows[0] = msgspec.structs.replace(rows[0], expected=shown(float(shrunk(means)[0])))
    for place, (centre, low, high) in list(zip(with_ratio, beside(means, 0, family, _LEVEL), strict=True))[1:]:
        behind = Interval(shown(centre), shown(low), shown(high), n=len(values[place]))
        rows[place] = msgspec.structs.replace(rows[place], behind=behind, is_close=low <= 0 <= high)
    return rows


def _values(run: Run, cell: Cell, metric: str) -> dict[int, float]:
    """Repeat → value, over the valid trials."""
    values = {trial.record.repeat: trial.metrics[metric].value for trial in run.valid_trials_of(cell)}
    return {repeat: value for repeat, value in values.items() if value is not None}


def _is_share(metric: str) -> bool:
    return CATALOGUE[metric].unit is Unit.SHARE


def _scale(metric: str) -> Scale:
    return Scale.DIFFERENCE if _is_share(metric) else Scale.RATIO


def _effects(run: Run, base: str, level: Level, metric: str) -> GridEffects:
    points = {label: point for label, point in run.manifest.grid.items() if point.base == base}
    settings = {
        name: list(dict.fromkeys(point.values[name] for point in points.values()))
        for name in next(iter(points.values())).values
    }
    unknown = GridEffects(base, level.title, metric, settings, [])
    cells = {cell.engine: cell for cell in level.cells}
    observed: dict[tuple[int, ...], Mapping[int, float]] = {}
    for label, point in points.items():
        cell = cells.get(label)
        values = _values(run, cell, metric) if cell else {}
        if not values:
            why = cell.reasons.get(metric, "no valid trial") if cell else "not measured"
            return msgspec.structs.replace(unknown, reason=f"{label}: {why}")
        if _scale(metric) is Scale.RATIO and min(values.values()) <= 0:
            return msgspec.structs.replace(unknown, reason=f"{label}: a value is 0, which has no ratio")
        place = tuple(settings[name].index(value) for name, value in point.values.items())
        scaled = on_scale(list(values.values()), _scale(metric))
        observed[place] = dict(zip(values, map(float, scaled), strict=True))
    if len(observed) < math.prod(len(values) for values in settings.values()):
        return msgspec.structs.replace(unknown, reason="not every combination was measured")
    if len(observed) < 2:
        return msgspec.structs.replace(unknown, reason="one combination has nothing to be compared with")
    return msgspec.structs.replace(unknown, effects=effects(observed))
