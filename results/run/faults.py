"""What the faults of an experiment did: one entry for each engine, load and fault, over its valid trials."""

from collections.abc import Iterator
from statistics import fmean

import msgspec

from bakeoff.results.metric import Unit
from bakeoff.results.metrics.recovery import Recovery, recoveries
from bakeoff.results.records import FaultAction
from bakeoff.results.run.levels import levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.statistics.interval import Interval, interval_of


class FaultSummary(msgspec.Struct, frozen=True):
    """One fault of an engine at a load.

    Attributes:
        engine: label.
        level: title of the load.
        action: what was done.
        replica: label of the address; None for the engine itself.
        trials: valid trials.
        decidable: in how many of them there were enough requests to say whether the SLO held again.
        recovered: in how many it did.
        down_s, start_s, recovered_s: see :class:`~bakeoff.results.metrics.recovery.Recovery`; the last over the trials
            in which it held again. None without a value.
        watched_s: shortest time that it was watched.
        requests, failed, late, lost: means over the trials.
    """

    engine: str
    level: str
    action: FaultAction
    replica: str | None
    trials: int
    decidable: int
    recovered: int
    down_s: Interval | None
    start_s: Interval | None
    recovered_s: Interval | None
    watched_s: float
    requests: float
    failed: float
    late: float
    lost: float


def faults_of(run: Run) -> list[FaultSummary]:
    """The faults of a run, by load, engine and time; none if its experiment has none."""
    return list(_summaries(run))


def _summaries(run: Run) -> Iterator[FaultSummary]:
    manifest = run.manifest
    for level in levels_of(run):
        for cell in level.cells:
            found = [
                recoveries(trial.requests, record.faults, record.window, manifest.slo, manifest.classes)
                for trial in run.valid_trials_of(cell)
                if (record := trial.record).faults
            ]
            for same in zip(*found, strict=False):
                yield _summary(cell.engine, level.title, same)


def _summary(engine: str, level: str, same: tuple[Recovery, ...]) -> FaultSummary:
    times_s = [each.recovered_s for each in same if each.recovered_s is not None]
    return FaultSummary(
        engine=engine,
        level=level,
        action=same[0].fault.action,
        replica=same[0].fault.replica,
        trials=len(same),
        decidable=sum(each.is_decidable for each in same),
        recovered=len(times_s),
        down_s=interval_of(Unit.SECONDS, [each.down_s for each in same if each.down_s is not None]),
        start_s=interval_of(Unit.SECONDS, [each.start_s for each in same if each.start_s is not None]),
        recovered_s=interval_of(Unit.SECONDS, times_s),
        watched_s=min(each.watched_s for each in same),
        requests=fmean([each.requests for each in same]),
        failed=fmean([each.failed for each in same]),
        late=fmean([each.late for each in same]),
        lost=fmean([each.lost for each in same]),
    )
