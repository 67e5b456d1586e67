"""ITL against batch size: requests in flight as seen by the client, and running requests as reported by the engine."""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from markupsafe import Markup

from bakeoff.results.columns import UNKNOWN
from bakeoff.results.metrics.latency import gaps_of
from bakeoff.results.report.charts.scatter import Axes, Cloud, middles, scatter, spread
from bakeoff.results.run.cells import Cell, Trial
from bakeoff.results.run.levels import engines_of, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.server_view import engine_page
from bakeoff.results.server_view.readings import is_number
from bakeoff.results.units import NS_PER_S

MIN_TOKENS = 20
"""Tokens that a median needs."""
STALE_S = 1.0
"""A sample of the engine's batch size is used for this long."""
_EXACT = 24
"""Up to this many distinct batch sizes each has its own median; beyond, they are grouped logarithmically."""


class BatchFigure(msgspec.Struct, frozen=True):
    """Charts of one workload, one per source of the batch size."""

    workload: str
    charts: list[Markup]


class Batch(msgspec.Struct, frozen=True):
    """A source of batch sizes over time: heading, unit, and sizes at given times (NaN where unknown)."""

    head: str
    unit: str
    sizes_at: Callable[[Trial, np.ndarray], np.ndarray]


def batch_figures(run: Run) -> list[BatchFigure]:
    """One per workload with an observation, over all load levels, since the load varies the batch size."""
    levels, figures = levels_of(run), list[BatchFigure]()
    for workload in dict.fromkeys(level.workload for level in levels):
        cells = [cell for level in levels if level.workload == workload for cell in level.cells]
        charts = [chart for batch in _BATCHES if (chart := _chart(run, cells, workload, batch))]
        figures += [BatchFigure(workload, charts)] if charts else []
    return figures


def in_flight_at(trial: Trial, times_ns: np.ndarray) -> np.ndarray:
    """Requests in flight at each time, including warm-up and failed ones."""
    sent = trial.requests.take(trial.requests.ints("sent_ns") != UNKNOWN)
    begun, ended = np.sort(sent.ints("sent_ns")), np.sort(sent.ints("ended_ns"))
    return (np.searchsorted(begun, times_ns, "right") - np.searchsorted(ended, times_ns, "left")).astype(float)


def running_at(trial: Trial, times_ns: np.ndarray) -> np.ndarray:
    """The engine's batch size at each time, from its last sample.

    NaN if the sample is older than :data:`STALE_S` or is 0, which is out of date since a token arrived.
    """
    read = sorted(
        (record.t_ns, float(level))
        for record in engine_page(trial.telemetry)
        if is_number(level := record.values.get("running"))
    )
    if not read:
        return np.full(len(times_ns), np.nan)
    at, levels = np.array([t for t, _ in read]), np.array([level for _, level in read])
    last = np.searchsorted(at, times_ns, "right") - 1
    fresh = (last >= 0) & (levels[last] > 0) & (times_ns - at[last] <= STALE_S * NS_PER_S)
    return np.where(fresh, levels[last], np.nan)


_BATCHES = (
    Batch("as seen by the client", "requests in flight", in_flight_at),
    Batch("as reported by the engine", "requests running in the engine", running_at),
)


def _chart(run: Run, cells: Sequence[Cell], workload: str, batch: Batch) -> Markup:
    engines = engines_of(run)
    observed = [_observed(run, [cell for cell in cells if cell.engine == engine], batch) for engine in engines]
    sizes = np.concatenate([x for x, _ in observed])
    if not len(sizes):
        return Markup("")
    clouds = [
        Cloud(engine, i, np.empty((0, 2)), middles(*observed[i], _edges(sizes), MIN_TOKENS))
        for i, engine in enumerate(engines)
    ]
    title = f"ITL against {batch.unit}, {workload}"
    return scatter(Axes(title, spread(sizes, batch.unit), "↑ ITL", "tokens", batch.head), clouds)


def _observed(run: Run, cells: Sequence[Cell], batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Batch size and ITL of every token after the first chunk of its answer, inside and outside the window."""
    sizes, values = [np.empty(0)], [np.empty(0)]
    for trial in (trial for cell in cells for trial in run.valid_trials_of(cell)):
        gaps = gaps_of(trial.answered)
        sizes.append(np.repeat(batch.sizes_at(trial, gaps.end_ns), gaps.tokens))
        values.append(gaps.token_s)
    x, y = np.concatenate(sizes), np.concatenate(values)
    is_known = ~np.isnan(x)
    return x[is_known], y[is_known]


def _edges(sizes: np.ndarray) -> list[float]:
    distinct = np.unique(sizes)
    if len(distinct) > _EXACT:
        distinct = np.unique(np.geomspace(max(1.0, distinct[0]), distinct[-1], _EXACT // 2).round())
    return [*distinct.tolist(), float(distinct[-1]) + 1.0]
