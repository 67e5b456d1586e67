"""Pareto frontier of interactivity (per-user speed) and total throughput.

A point is one load level of one engine: interactivity is 1 / TPOT p50, throughput is output tokens per second over all
users. A point is on the frontier if no other point is at least as good in both and better in one.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from bakeoff.results.run.cells import Cell
from bakeoff.results.run.gpus import gpus_used
from bakeoff.results.run.run import Run
from bakeoff.results.statistics.interval import Interval, reciprocal


class FrontierPoint(msgspec.Struct, frozen=True):
    """One load level of one engine, over its valid trials.

    Attributes:
        engine: label, followed by the run's name if several runs use the label.
        workload: name of the workload.
        load: label of the level.
        interactivity: output tokens per second of one user.
        throughput: output tokens per second over all users.
        gpus: number of GPUs the engine uses; None if unknown.
        per_gpu: throughput per GPU; None if the number is unknown.
        own: whether it is on its engine's frontier.
        joint: whether it is on the frontier of all engines, per GPU if all GPU counts are known.
    """

    engine: str
    workload: str
    load: str
    interactivity: Interval
    throughput: Interval
    gpus: int | None = None
    per_gpu: float | None = None
    own: bool = False
    joint: bool = False


def frontier(runs: Sequence[Run]) -> list[FrontierPoint]:
    """Return every level that has both figures, by engine, most interactive first; each workload has its frontiers."""
    labels = Counter(engine for run in runs for engine in {cell.engine for cell in run.cells})
    points = [
        _point(run, cell, f"{cell.engine} ({run.path.name})" if labels[cell.engine] > 1 else cell.engine)
        for run in runs
        for cell in run.cells
        if has_point(cell)
    ]
    order = list(dict.fromkeys((point.workload, point.engine) for point in points))
    marked = [_marked(point, [peer for peer in points if peer.workload == point.workload]) for point in points]
    return sorted(marked, key=lambda point: (order.index((point.workload, point.engine)), -point.interactivity.centre))


def has_point(cell: Cell) -> bool:
    """Whether a cell has both figures; answers that arrive in one chunk have no TPOT."""
    return {"tpot_p50_s", "output_tokens_per_s"} <= cell.intervals.keys() and cell.intervals["tpot_p50_s"].centre > 0


def _point(run: Run, cell: Cell, engine: str) -> FrontierPoint:
    throughput = cell.intervals["output_tokens_per_s"]
    gpus = gpus_used(run, cell.engine)
    return FrontierPoint(
        engine,
        cell.workload,
        cell.load,
        reciprocal(cell.intervals["tpot_p50_s"]),
        throughput,
        gpus,
        throughput.centre / gpus if gpus else None,
    )


def _marked(point: FrontierPoint, peers: Sequence[FrontierPoint]) -> FrontierPoint:
    """The point, marked as on or off the frontiers of its workload's points."""
    has_per_gpu = all(peer.per_gpu is not None for peer in peers)
    own = [peer for peer in peers if peer.engine == point.engine]
    return msgspec.structs.replace(
        point,
        own=not any(_dominates(peer, point, per_gpu=False) for peer in own),
        joint=not any(_dominates(peer, point, per_gpu=has_per_gpu) for peer in peers),
    )


def _dominates(a: FrontierPoint, b: FrontierPoint, *, per_gpu: bool) -> bool:
    """Whether A is at least as good as B in both figures and better in one."""
    of_a, of_b = (
        (point.interactivity.centre, (point.per_gpu or 0.0) if per_gpu else point.throughput.centre) for point in (a, b)
    )
    return of_a != of_b and of_a[0] >= of_b[0] and of_a[1] >= of_b[1]
