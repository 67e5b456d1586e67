"""A/A runs: one engine at one commit, measured at different hours to find the noise between runs."""

from collections.abc import Mapping, Sequence

from bakeoff.results.compare.comparability import Series, difference, series_of
from bakeoff.results.compare.floor import FloorCell, apart, floor_cell
from bakeoff.results.compare.sides import Side, compared_value
from bakeoff.results.errors import NoEvidence, NotComparable
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.records import Verdict


def floors_of(sides: Sequence[Side]) -> list[FloorCell]:
    """Compute the noise floor of each series that the runs share.

    Trials reused from an earlier run were measured at another time and are left out.

    Args:
        sides: one per run, all of one engine, at least an hour apart.

    Raises:
        NotComparable: conditions, commits or engines differ.
        NoEvidence: there are too few runs, they are too close together, or they share no series of valid trials.
    """
    _check(sides)
    by_run = {side.run.manifest.run_id: side for side in sides}
    chosen = apart({run: side.run.manifest.created_utc for run, side in by_run.items()})
    trials = [_own_trials(by_run[run]) for run in chosen]
    shared = [series for series in trials[0] if all(series in of_run for of_run in trials)]
    if not shared:
        raise NoEvidence("the runs have no load level at which each has a valid trial; see: bakeoff report RUN")
    return [
        floor_cell(series, {run: of_run[series] for run, of_run in zip(chosen, trials, strict=True)})
        for series in shared
    ]


def _check(sides: Sequence[Side]) -> None:
    if unequal := difference([side.run.manifest for side in sides]):
        raise NotComparable(f"the runs differ in {unequal}; a noise floor needs runs under equal conditions")
    commits = {source.commit for side in sides if (source := side.run.manifest.source)}
    if len(commits) > 1:
        raise NotComparable(f"the runs are of different commits ({', '.join(sorted(commits))}); use runs of one commit")
    engines = {side.engine for side in sides}
    if len(engines) > 1:
        raise NotComparable(f"the runs are of different engines ({', '.join(sorted(engines))}); name one: RUN@ENGINE")


def _own_trials(side: Side) -> dict[Series, list[Mapping[str, float | None]]]:
    """Series → metrics of each valid trial that the run measured itself."""
    metrics: dict[Series, list[Mapping[str, float | None]]] = {}
    for trial in side.sessions.get(side.run.manifest.run_id, []):
        if trial.record.verdict is Verdict.VALID:
            values = {name: compared_value(trial, name) for name in CATALOGUE}
            metrics.setdefault(series_of(side.run.manifest, trial.record), []).append(values)
    return metrics
