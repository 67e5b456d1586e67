"""Many runs of one experiment, oldest first: how each metric went, and between which commits it changed.

A run is one point, the geometric mean of its valid trials. Points belong together where everything is equal that must
be: experiment, engine, load, traffic, weights and machine; another machine begins another series.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from results.errors import NoEvidence, NotComparable, RunNotFound
from results.metrics import CATALOGUE, HEADLINE, Better
from results.records import RunStatus, Verdict
from results.run import Run, Trial, by_repeat
from results.statistics.change_points import LEAST_POINTS, ChangePoint, change_points
from results.store import runs_below


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
    unknown = [metric for metric in metrics if metric not in CATALOGUE]
    if unknown:
        raise NotComparable(f"unknown metric '{unknown[0]}'; known: {', '.join(CATALOGUE)}")
    groups: dict[tuple[str, ...], list[tuple[Run, list[Trial]]]] = {}
    for run in _runs(root, name, branch):
        for key, trials in _cells(run).items():
            if engine is None or key[0] == engine:
                groups.setdefault(key, []).append((run, trials))
    series = [
        _series(key, metric, cells)
        for key, cells in groups.items()
        for metric in metrics
        if metric != "failures"  # counted, and mostly 0: no level that could step
    ]
    known = [one for one in series if one.points]
    if not any(len(one.points) >= 2 * LEAST_POINTS for one in known):
        most = max((len(one.points) for one in known), default=0)
        raise NoEvidence(f"the longest series has {most} runs; a step needs {LEAST_POINTS} before it and as many after")
    return known


def _runs(root: Path, name: str | None, branch: str | None) -> list[Run]:
    runs = [Run(folder) for folder in runs_below(root)]
    names = sorted({run.manifest.name for run in runs})
    if name is None and len(names) > 1:
        raise NotComparable(f"{root} holds runs of several experiments; give --name: {', '.join(names)}")
    chosen = [
        run
        for run in runs
        if (name is None or run.manifest.name == name)
        and (branch is None or (run.manifest.source is not None and run.manifest.source.branch == branch))
        and run.status is RunStatus.COMPLETE
    ]
    if not chosen:
        wanted = " ".join(filter(None, (f"of '{name}'" if name else "", f"on branch '{branch}'" if branch else "")))
        raise RunNotFound(f"there is no complete run {wanted} in {root}".replace("  ", " "))
    return sorted(chosen, key=lambda run: (run.manifest.created_utc, run.manifest.run_id))


def _cells(run: Run) -> dict[tuple[str, ...], list[Trial]]:
    """The valid trials by all that a series shares."""
    environment = run.manifest.environment
    machine = f"{environment.get('cpu')}, {environment.get('cores')} cores"
    gpus = ", ".join(str(gpu.get("name")) for gpu in environment.get("gpus") or [])
    cells: dict[tuple[str, ...], list[Trial]] = {}
    for trial in run.finished:
        record = trial.record
        if record.verdict is not Verdict.VALID:
            continue
        described = record.engine_description
        weights = (described.model_sha256 or "") if described else ""
        where = f"{machine}, {gpus}" if gpus else machine
        key = (record.engine, record.load.label, where, record.workload, record.workload_sha256, weights)
        cells.setdefault(key, []).append(trial)
    return cells


def _series(key: tuple[str, ...], metric: str, cells: Sequence[tuple[Run, list[Trial]]]) -> Series:
    engine, level, machine = key[:3]
    points = [point for run, trials in cells if (point := _point(run, trials, level, metric)) is not None]
    steps = change_points([point.value for point in points])
    return Series(engine, level, metric, machine, points, [_change(points, step, metric) for step in steps])


def _point(run: Run, trials: Sequence[Trial], level: str, metric: str) -> Point | None:
    values = [value for value in by_repeat(trials, level, metric).values() if value > 0]
    if not values:
        return None
    source = run.manifest.source
    mean = math.exp(sum(map(math.log, values)) / len(values))
    return Point(
        run.manifest.run_id, run.manifest.created_utc, source.commit if source else None, mean, trials=len(values)
    )


def _change(points: Sequence[Point], step: ChangePoint, metric: str) -> Change:
    is_worse = (step.ratio > 1) == (CATALOGUE[metric].better is Better.LOWER)
    return Change(points[step.index - 1], points[step.index], step, is_worse)
