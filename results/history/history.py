"""The history of an experiment: how each metric developed over its runs, and between which commits it changed.

Each run is one point: the geometric mean of its valid trials. A series joins points that share experiment, engine,
load, traffic, weights and machine; a new machine starts a new series.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from bakeoff.results.compare.series import FEW, SOUGHT, Change, Doubt, Drift, Point, Series, age, is_worse
from bakeoff.results.errors import NoEvidence, NotComparable, RunNotFound
from bakeoff.results.index import CellFacts, Index, Query, RunFacts
from bakeoff.results.metrics import HEADLINE
from bakeoff.results.metrics.catalogue import require_known
from bakeoff.results.records import RunStatus
from bakeoff.results.statistics.change_points import ChangePoint, Course, Stretch, course
from bakeoff.results.statistics.segments import MIN_POINTS

_ALPHA = 0.01
"""Probability that chance alone flags the newest run as an outlier, over all series together (Bonferroni)."""


def history(
    root: Path,
    name: str | None = None,
    *,
    engine: str | None = None,
    branch: str | None = None,
    metrics: Sequence[str] = HEADLINE,
    newest: int | None = None,
    notify: Callable[[str], object] = lambda _: None,
) -> list[Series]:
    """Build the series of all complete runs below a folder.

    Args:
        root: folder of run folders.
        name: of the experiment; None if the folder has runs of only one.
        engine: label; None for all.
        branch: only runs of this branch of the code under test.
        metrics: names in the catalogue.
        newest: number of most recent runs to use; None for all.
        notify: called with one line for each run that cannot be read and is left out.

    Raises:
        NotComparable: the folder holds several experiments and none is named, a metric is unknown, or `newest` is below
            1.
        RunNotFound: no complete run matches.
        NoEvidence: no series has enough runs to detect a step.
    """
    with Index(root) as index:
        index.refresh()
        for line in index.left_out():
            notify(line)
        series = history_of(index, name, engine=engine, branch=branch, metrics=metrics, newest=newest)
    if (reason := why_no_steps(series)) is not None:
        raise NoEvidence(reason)
    return series


def history_of(
    index: Index,
    name: str | None = None,
    *,
    engine: str | None = None,
    branch: str | None = None,
    metrics: Sequence[str] = HEADLINE,
    newest: int | None = None,
) -> list[Series]:
    """Like :func:`history`, over the runs of an index, and with series that are too short to detect a step."""
    require_known(metrics)
    runs = _runs(index, name, branch, newest)
    groups: dict[tuple[str, ...], list[tuple[RunFacts, CellFacts]]] = {}
    for run in runs:
        for cell in run.cells:
            if engine is None or cell.engine == engine:
                groups.setdefault(_key(cell), []).append((run, cell))
    every = [
        series
        for cells in groups.values()
        for metric in metrics
        if metric != "failures"  # a count, mostly 0: it has no level that could step
        and (series := _series(metric, cells)) is not None
    ]
    return _with_doubts(every, runs[-1])


def why_no_steps(series: Sequence[Series]) -> str | None:
    """Why no series can have a step; None if one can."""
    if any(entry.course is not None for entry in series):
        return None
    longest = max((len(entry.points) for entry in series), default=0)
    return (
        f"the longest series has {longest} runs; detecting a step needs {MIN_POINTS} runs before and {MIN_POINTS} "
        "after it"
    )


def _runs(index: Index, name: str | None, branch: str | None, newest: int | None) -> list[RunFacts]:
    if newest is not None and newest < 1:
        raise NotComparable(f"--newest must be at least 1, not {newest}")
    names = index.choices()["name"]
    if name is None and len(names) > 1:
        raise NotComparable(f"{index.root} holds runs of several experiments; give --name: {', '.join(names)}")
    chosen = index.runs(Query(name=name, branch=branch, status=RunStatus.COMPLETE, limit=newest))
    if not chosen:
        filters = " ".join(filter(None, (f"of '{name}'" if name else "", f"on branch '{branch}'" if branch else "")))
        raise RunNotFound(f"there is no complete run {filters} in {index.root}".replace("  ", " "))
    return chosen[::-1]


def _key(cell: CellFacts) -> tuple[str, ...]:
    of_run = (cell.machine, cell.weights_sha256, cell.conditions_sha256)
    return (cell.engine, cell.level, cell.workload, cell.traffic_sha256, *of_run)


def _series(metric: str, cells: Sequence[tuple[RunFacts, CellFacts]]) -> Series | None:
    """One series; None if no run has a value."""
    every = [point for run, cell in cells if (point := _point(run, cell, metric)) is not None]
    if not every:
        return None
    points, zeros = [point for point in every if point.value > 0], [point for point in every if point.value <= 0]
    cell = cells[0][1]
    fitted = course([point.value for point in points]) if len(points) >= 2 * MIN_POINTS else None
    changes = [_change(points, step, metric) for step in fitted.steps] if fitted else []
    fall = _fall_to_zero(every, metric, fitted)
    return Series(
        engine=cell.engine,
        level=cell.level,
        metric=metric,
        machine=cell.machine,
        points=points,
        zeros=zeros,
        course=fitted,
        changes=[*changes, fall] if fall else changes,
        drifts=[_drift(points, stretch, metric) for stretch in fitted.stretches if stretch.is_drift] if fitted else [],
    )


def _point(run: RunFacts, cell: CellFacts, metric: str) -> Point | None:
    spread = cell.metrics.get(metric)
    if spread is None:
        return None
    return Point(run.id, run.created_utc, run.source.commit if run.source else None, spread.mean, spread.trials)


def _change(points: Sequence[Point], step: ChangePoint, metric: str) -> Change:
    return Change(points[step.index - 1], points[step.index], step, is_worse(metric, step.before, step.after))


def _drift(points: Sequence[Point], stretch: Stretch, metric: str) -> Drift:
    return Drift(points[stretch.first], points[stretch.last], stretch, is_worse(metric, stretch.start, stretch.end))


def _fall_to_zero(every: Sequence[Point], metric: str, known: Course | None) -> Change | None:
    """The final drop to a level of 0; None if the series does not end there or if 0 is a good value."""
    positive = next((i for i in reversed(range(len(every))) if every[i].value > 0), None)
    if positive is None or known is None or len(every) - positive <= MIN_POINTS or is_worse(metric, 0, 1):
        return None
    before = known.stretches[-1]
    step = ChangePoint(before.last + 1, before.end, 0.0, 0.0)
    return Change(every[positive], every[positive + 1], step, is_worse=True)


def _with_doubts(every: Sequence[Series], newest: RunFacts) -> list[Series]:
    """Mark the series that the newest run continues, and why some of them cannot judge it.

    A change of machine, traffic or weights ends a series.
    """
    latest: dict[tuple[str, str, str], tuple[str, str]] = {}
    for series in every:
        key = (series.engine, series.level, series.metric)
        latest[key] = max(latest.get(key, ("", "")), age(series.last))
    current = [
        series.engine in newest.engines
        and series.level in newest.levels
        and age(series.last) == latest[series.engine, series.level, series.metric]
        for series in every
    ]
    max_p = _ALPHA / max(1, sum(current))
    return [
        msgspec.structs.replace(series, is_current=True, doubt=_doubt(series, newest.id, max_p))
        if is_current
        else series
        for series, is_current in zip(every, current, strict=True)
    ]


def _doubt(series: Series, newest: str, max_p: float) -> Doubt | None:
    if series.course is None:
        has_always_been_0 = not series.points and len(series.zeros) >= 2 * MIN_POINTS
        return None if has_always_been_0 else Doubt.TOO_FEW
    if series.last.run != newest:
        return Doubt.NO_VALUE
    if series.zeros and series.last == series.zeros[-1]:
        return Doubt.ZERO
    expected = series.course.newest_expected
    is_outlier = series.course.newest_p < max_p and is_worse(series.metric, expected, series.last.value)
    if is_outlier:
        return Doubt.OUTLIER
    detectable = series.course.detectable
    is_hidden = detectable is not None and detectable > 1 + SOUGHT
    return Doubt.TOO_NOISY if is_hidden and len(series.points) < FEW else None
