"""The trials of one run as its plan has them: repeat after repeat, engine after engine.

Trials that an earlier run has finished, and that would be the same measurement, are taken over instead.
"""

import itertools
from collections.abc import Callable, Sequence

import msgspec

from harness.conduct.progress import Observer
from harness.stage import Planned, Prepared, Stage, staged
from results.records import TrialRecord
from results.store import RunFolder

Clear = Callable[[int], bool]
"""Whether nothing more need be measured after so many repeats."""


async def run_series(
    prepared: Prepared, run: RunFolder, observer: Observer, earlier: RunFolder | None, clear: Clear | None = None
) -> str | None:
    """Run every trial, or take it over from ``earlier``; returns what went wrong with engines, or None.

    Where ``clear`` says after a repeat that it is enough, the later ones are struck off the plan.
    """
    await plan_repeat(prepared, 1)  # what is wrong with it shows before anything is started
    async with staged(prepared, run, observer) as stage:
        return await _Series(prepared, run, observer, stage).run(_finished(earlier), clear)


class _Series:
    def __init__(self, prepared: Prepared, run: RunFolder, observer: Observer, stage: Stage) -> None:
        self._prepared = prepared
        self._run = run
        self._observer = observer
        self._stage = stage

    async def run(self, finished: dict[str, tuple[RunFolder, TrialRecord]], clear: Clear | None) -> str | None:
        plan = list(enumerate(self._prepared.experiment.plan(), start=1))
        for repeat, of_repeat in itertools.groupby(plan, key=lambda item: item[1].repeat):
            for label, group in itertools.groupby(of_repeat, key=lambda item: item[1].engine):
                if label not in self._stage.given_up:
                    await self._one_side(label, repeat, list(group), finished)
            if clear is not None and repeat < self._prepared.experiment.repeats and clear(repeat):
                self._end_after(repeat)
                break
        return "; ".join(self._stage.failures) or None

    async def _one_side(
        self, label: str, repeat: int, trials: Sequence[Planned], finished: dict[str, tuple[RunFolder, TrialRecord]]
    ) -> None:
        """All trials of one engine in one repeat."""
        await plan_repeat(self._prepared, repeat)
        to_do = [item for item in trials if not self._adopted(item, finished)]
        await self._stage.play(label, repeat, _Listed(to_do))
        await self._stage.check(label, [plan for _, plan in trials])

    def _end_after(self, repeat: int) -> None:
        """Strike later repeats off the plan, and say so in the manifest."""
        manifest = self._run.read_manifest()
        note = f"ended after {repeat} of at most {self._prepared.experiment.repeats} repeats: the verdict was clear"
        left = [plan for plan in manifest.trials if plan.repeat <= repeat]
        self._run.write_manifest(msgspec.structs.replace(manifest, trials=left, notes=[*manifest.notes, note]))

    def _adopted(self, item: Planned, finished: dict[str, tuple[RunFolder, TrialRecord]]) -> bool:
        """Take a trial over from an earlier run, if it is there."""
        order, plan = item
        found = finished.get(self._stage.fingerprint(plan)) if finished else None
        if found is None:
            return False
        source, record = found
        origin = record.adopted_from or source.path.name
        taken = msgspec.structs.replace(record, id=plan.id, engine=plan.engine, order=order, adopted_from=origin)
        self._run.adopt(plan.id, source.trial(record.id), taken)
        self._observer.trial_finished(taken)
        return True


class _Listed:
    """Trials that are known beforehand."""

    def __init__(self, trials: list[Planned]) -> None:
        self._left = trials

    @property
    def is_over(self) -> bool:
        return not self._left

    async def next(self) -> Planned | None:
        return self._left[0] if self._left else None

    def done(self, record: TrialRecord) -> None:  # noqa: ARG002  (what comes next does not depend on it)
        del self._left[0]


async def plan_repeat(prepared: Prepared, repeat: int) -> None:
    """Make the traffic of one repeat while no engine runs; what is made already costs nothing."""
    for plan in prepared.experiment.plan():
        if plan.repeat == repeat:
            await prepared.world.in_thread(prepared.planner.traffic, plan.load, repeat, plan.engine)


def _finished(earlier: RunFolder | None) -> dict[str, tuple[RunFolder, TrialRecord]]:
    """The finished trials of an earlier run, by fingerprint."""
    if earlier is None:
        return {}
    records = (folder.read_record() for folder in earlier.trials())
    return {record.fingerprint: (earlier, record) for record in records if record and record.fingerprint}
