"""Throughput against interactivity: at which loads an engine gives its users speed without wasting the machine's.

A point is one load level of one engine: what one user feels (1 / TPOT p50, tokens per second) and what the machine
delivers (output tokens per second). A point is on a frontier (Pareto's) where no other one is better in both.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from results.records import Startup
from results.run import Cell, Run
from results.statistics.interval import Interval, reciprocal

_TAKEN_BYTES = 1 << 30
"""A GPU whose memory in use grew by more than this while an engine started is one of the engine's."""


class FrontierPoint(msgspec.Struct, frozen=True):
    """One load level of one engine, over its valid trials.

    Attributes:
        engine: label; with the run's name behind it where several runs have one of that label.
        workload: name.
        load: label of the level.
        interactivity: tokens per second for each user.
        throughput: output tokens per second of all users.
        gpus: how many the engine took; None where that is not known.
        per_gpu: throughput of each of them; None likewise.
        own: whether it is on the frontier of its engine.
        joint: whether it is on the frontier of all engines, per GPU where all are known.
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
    """Every level that has both figures, by engine, the most interactive first; frontiers are within a workload."""
    labels = Counter(engine for run in runs for engine in {cell.engine for cell in run.cells})
    points = [
        _point(run, cell, f"{cell.engine} ({run.path.name})" if labels[cell.engine] > 1 else cell.engine)
        for run in runs
        for cell in run.cells
        if has_point(cell)
    ]
    order = list(dict.fromkeys((point.workload, point.engine) for point in points))
    marked = [_marked(point, [one for one in points if one.workload == point.workload]) for point in points]
    return sorted(marked, key=lambda one: (order.index((one.workload, one.engine)), -one.interactivity.centre))


def has_point(cell: Cell) -> bool:
    """Whether it has both figures; an answer whose tokens all came at once has no pace."""
    return {"tpot_p50_s", "output_tokens_per_s"} <= cell.intervals.keys() and cell.intervals["tpot_p50_s"].centre > 0


def _point(run: Run, cell: Cell, engine: str) -> FrontierPoint:
    throughput = cell.intervals["output_tokens_per_s"]
    starts = [trial.record.startup for trial in run.finished if trial.record.engine == cell.engine]
    gpus = max((_gpus_taken(start) for start in starts if start), default=0) or None
    return FrontierPoint(
        engine,
        cell.workload,
        cell.load,
        reciprocal(cell.intervals["tpot_p50_s"]),
        throughput,
        gpus,
        throughput.centre / gpus if gpus else None,
    )


def _gpus_taken(start: Startup) -> int:
    pairs = zip(start.gpu_used_before_bytes, start.gpu_used_ready_bytes, strict=False)
    return sum(ready - before > _TAKEN_BYTES for before, ready in pairs)


def _marked(point: FrontierPoint, others: Sequence[FrontierPoint]) -> FrontierPoint:
    """With its places among the points of its workload."""
    known = all(one.per_gpu is not None for one in others)
    own = [one for one in others if one.engine == point.engine]
    return msgspec.structs.replace(
        point,
        own=not any(_beats(one, point, per_gpu=False) for one in own),
        joint=not any(_beats(one, point, per_gpu=known) for one in others),
    )


def _beats(one: FrontierPoint, other: FrontierPoint, *, per_gpu: bool) -> bool:
    """No worse in both figures, and better in one."""
    mine, yours = (
        (point.interactivity.centre, (point.per_gpu or 0.0) if per_gpu else point.throughput.centre)
        for point in (one, other)
    )
    return mine != yours and mine[0] >= yours[0] and mine[1] >= yours[1]
