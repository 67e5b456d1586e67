"""Many runs of one experiment, oldest first: how each metric went, and between which commits it changed.

A run is one point, the geometric mean of its valid trials. Points belong together where everything is equal that must
be: experiment, engine, load, traffic, weights and machine; another machine begins another series.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from results.errors import NoEvidence, NotComparable, RunNotFound
from results.index import CellFacts, Index, Query, RunFacts
from results.metrics import CATALOGUE, HEADLINE, Better
from results.records import RunStatus
from results.statistics.change_points import LEAST_POINTS, ChangePoint, change_points


class Point(msgspec.Struct, frozen=True):
    """One run in a series.

    Attributes:
        run: its id.
        created_utc: ISO 8601.
        commit: of the code under test; None where the run does not know it.
        value: in the metric's unit.
        trials: valid ones that it rests on.
    """

    run: str
    created_utc: str
    commit: str | None
    value: float
    trials: int


class Change(msgspec.Struct, frozen=True):
    """A step, and where to look for it.

    Attributes:
        last_before: the last run of the old level.
        first_after: the first of the new one: what changed is after the one commit and up to the other.
        step: its levels.
        is_worse: whether the new level is on the metric's bad side.
    """

    last_before: Point
    first_after: Point
    step: ChangePoint
    is_worse: bool


class Series(msgspec.Struct, frozen=True):
    """One metric of one engine at one load, on one machine.

    Attributes:
        engine: label.
        level: label of the load.
        metric: name in the catalogue.
        machine: in a few words.
        points: oldest first.
        changes: steps among them.
    """

    engine: str
    level: str
    metric: str
    machine: str
    points: list[Point]
    changes: list[Change]


def history(
    root: Path,
    name: str | None = None,
    *,
    engine: str | None = None,
    branch: str | None = None,
    metrics: Sequence[str] = HEADLINE,
) -> list[Series]:
    """The series of all complete runs below a folder.

    Args:
        root: folder of run folders.
        name: of the experiment; None where the folder has runs of one only.
        engine: label; None for all.
        branch: only runs of this branch of the code under test.
        metrics: names in the catalogue.

    Raises:
        NotComparable: several experiments and none is named, or a metric is unknown.
        RunNotFound: there is no such run.
        NoEvidence: no series has enough runs for a step.
    """
    with Index(root) as index:
        index.refresh()
        return history_of(index, name, engine=engine, branch=branch, metrics=metrics)


def history_of(
    index: Index,
    name: str | None = None,
    *,
    engine: str | None = None,
    branch: str | None = None,
    metrics: Sequence[str] = HEADLINE,
    newest: int | None = None,
) -> list[Series]:
    """The same of the runs that an index knows; ``newest`` is how many of them are looked at, None for all."""
    unknown = [metric for metric in metrics if metric not in CATALOGUE]
    if unknown:
        raise NotComparable(f"unknown metric '{unknown[0]}'; known: {', '.join(CATALOGUE)}")
    groups: dict[tuple[str, ...], list[tuple[RunFacts, CellFacts]]] = {}
    for run in _runs(index, name, branch, newest):
        for cell in run.cells:
            if engine is None or cell.engine == engine:
                groups.setdefault(_key(cell), []).append((run, cell))
    series = [
        _series(metric, cells)
        for cells in groups.values()
        for metric in metrics
        if metric != "failures"  # counted, and mostly 0: no level that could step
    ]
    known = [one for one in series if one.points]
    if not any(len(one.points) >= 2 * LEAST_POINTS for one in known):
        most = max((len(one.points) for one in known), default=0)
        raise NoEvidence(f"the longest series has {most} runs; a step needs {LEAST_POINTS} before it and as many after")
    return known


def _runs(index: Index, name: str | None, branch: str | None, newest: int | None) -> list[RunFacts]:
    names = index.choices()["name"]
    if name is None and len(names) > 1:
        raise NotComparable(f"{index.root} holds runs of several experiments; give --name: {', '.join(names)}")
    chosen = index.runs(Query(name=name, branch=branch, status=RunStatus.COMPLETE, limit=newest))
    if not chosen:
        wanted = " ".join(filter(None, (f"of '{name}'" if name else "", f"on branch '{branch}'" if branch else "")))
        raise RunNotFound(f"there is no complete run {wanted} in {index.root}".replace("  ", " "))
    return chosen[::-1]


def _key(cell: CellFacts) -> tuple[str, ...]:
    return (cell.engine, cell.level, cell.machine, cell.workload, cell.traffic_sha256, cell.weights_sha256)


def _series(metric: str, cells: Sequence[tuple[RunFacts, CellFacts]]) -> Series:
    points = [point for run, cell in cells if (point := _point(run, cell, metric)) is not None]
    steps = change_points([point.value for point in points])
    first = cells[0][1]
    changes = [_change(points, step, metric) for step in steps]
    return Series(first.engine, first.level, metric, first.machine, points, changes)


def _point(run: RunFacts, cell: CellFacts, metric: str) -> Point | None:
    spread = cell.metrics.get(metric)
    if spread is None:
        return None
    return Point(run.id, run.created_utc, run.source.commit if run.source else None, spread.mean, spread.trials)


def _change(points: Sequence[Point], step: ChangePoint, metric: str) -> Change:
    is_worse = (step.ratio > 1) == (CATALOGUE[metric].better is Better.LOWER)
    return Change(points[step.index - 1], points[step.index], step, is_worse)
