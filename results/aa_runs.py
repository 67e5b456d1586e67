"""A/A runs: the same engine at one commit, measured again at other hours, to know what an hour is worth."""

from collections.abc import Mapping, Sequence

from results.comparability import Series, difference, series_of
from results.errors import NoEvidence, NotComparable
from results.floor import FloorCell, apart, floor_cell
from results.metrics import CATALOGUE
from results.records import Verdict
from results.sides import SideOfRun, compared_value


def floors_of(sides: Sequence[SideOfRun]) -> list[FloorCell]:
    """The noise floor of each series that the runs share.

    Trials that a run has taken over from an earlier one were measured at another time, and are left out.

    Args:
        sides: one engine each, of runs at least an hour apart.

    Raises:
        NotComparable: they are not runs of one thing.
        NoEvidence: they are too few, too close together, or share no series of valid trials.
    """
    _check(sides)
    by_run = {side.run.manifest.run_id: side for side in sides}
    chosen = apart({run: side.run.manifest.created_utc for run, side in by_run.items()})
    trials = [_own_trials(by_run[run]) for run in chosen]
    shared = [series for series in trials[0] if all(series in of_run for of_run in trials)]
    if not shared:
        raise NoEvidence("the runs share no load at which each has a valid trial; see: bakeoff report RUN")
    return [floor_cell(one, {run: of_run[one] for run, of_run in zip(chosen, trials, strict=True)}) for one in shared]


def _check(sides: Sequence[SideOfRun]) -> None:
    if unequal := difference([side.run.manifest for side in sides]):
        raise NotComparable(f"the runs were measured with different {unequal}; a floor needs runs of one thing")
    commits = {source.commit for side in sides if (source := side.run.manifest.source)}
    if len(commits) > 1:
        raise NotComparable(
            f"the runs are of different commits ({', '.join(sorted(commits))}); measure one of them again"
        )
    engines = {side.engine for side in sides}
    if len(engines) > 1:
        raise NotComparable(f"the runs are of different engines ({', '.join(sorted(engines))}); name one: RUN@ENGINE")


def _own_trials(side: SideOfRun) -> dict[Series, list[Mapping[str, float | None]]]:
    """Of each series the metrics of the valid trials that the run has measured itself."""
    found: dict[Series, list[Mapping[str, float | None]]] = {}
    for trial in side.sessions.get(side.run.manifest.run_id, []):
        if trial.record.verdict is Verdict.VALID:
            values = {name: compared_value(trial, name) for name in CATALOGUE}
            found.setdefault(series_of(side.run.manifest, trial.record), []).append(values)
    return found
