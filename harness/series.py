"""The trials of one run: engine after engine is started and stopped, and its trials are run in between.

An engine that dies in a trial is started again for its next one; one that does not start is given up, and the others
go on. Trials that an earlier run has finished, and that would be the same measurement, are taken over instead.
"""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from engines import Engine, EngineError, Model, pick_port
from harness.client import Fleet, local_fleet
from harness.client.ray_fleet import ray_fleet
from harness.experiment import ClientConfig, Experiment
from harness.fingerprint import fingerprint
from harness.observer import Observer
from harness.quality import check_quality
from harness.settling import Settler
from harness.starting import Side, started
from harness.telemetry import sampler
from harness.traffic import TrafficPlanner
from harness.trial import TrialRunner
from results.records import TrialPlan, TrialRecord
from results.store import RunFolder
from workloads import Tokenizer

Planned = tuple[int, TrialPlan]
"""A trial with its position in the run's interleaved order."""


class Prepared(msgspec.Struct, frozen=True):
    """All that is known before the first engine starts."""

    experiment: Experiment
    model: Model
    tokenizer: Tokenizer
    engines: dict[str, Engine]
    planner: TrafficPlanner
    machine: dict[str, Any]
    """As :func:`harness.environment.machine` gives it."""


Clear = Callable[[int], bool]
"""Whether nothing more need be measured after so many repeats."""


async def run_series(
    prepared: Prepared, run: RunFolder, observer: Observer, earlier: RunFolder | None, clear: Clear | None = None
) -> str | None:
    """Run every trial, or take it over from ``earlier``; returns what went wrong with engines, or None.

    Where ``clear`` says after a repeat that it is enough, the later ones are struck off the plan.
    """
    experiment = prepared.experiment
    trial, client = experiment.trial, experiment.client
    async with sampler() as telemetry, _fleet(client) as fleet:
        runner = TrialRunner(experiment, run, fleet, telemetry, prepared.tokenizer)
        settler = Settler(
            fleet, prepared.planner, limit_s=trial.settle_s, timeout_s=trial.timeout_s, transport=client.transport
        )
        return await _Series(prepared, run, observer, runner, settler).run(_finished(earlier), clear)


class _Series:
    def __init__(
        self, prepared: Prepared, run: RunFolder, observer: Observer, runner: TrialRunner, settler: Settler
    ) -> None:
        self._prepared = prepared
        self._run = run
        self._observer = observer
        self._runner = runner
        self._settler = settler
        self._starts: Counter[str] = Counter()
        self._given_up: set[str] = set()
        self._failures: list[str] = []

    async def run(self, finished: dict[str, tuple[RunFolder, TrialRecord]], clear: Clear | None) -> str | None:
        plan = list(enumerate(self._prepared.experiment.plan(), start=1))
        for repeat, of_repeat in itertools.groupby(plan, key=lambda item: item[1].repeat):
            for label, group in itertools.groupby(of_repeat, key=lambda item: item[1].engine):
                if label not in self._given_up:
                    await self._one_side(label, repeat, list(group), finished)
            if clear is not None and repeat < self._prepared.experiment.repeats and clear(repeat):
                self._end_after(repeat)
                break
        return "; ".join(self._failures) or None

    async def _one_side(
        self, label: str, repeat: int, trials: Sequence[Planned], finished: dict[str, tuple[RunFolder, TrialRecord]]
    ) -> None:
        """All trials of one engine in one repeat."""
        await plan_repeat(self._prepared.experiment, self._prepared.planner, repeat)
        to_do: Sequence[Planned] = [item for item in trials if not self._adopted(item, finished)]
        while to_do and label not in self._given_up:
            to_do = await self._one_start(label, repeat, to_do)
        await self._check(label, [plan for _, plan in trials])

    def _end_after(self, repeat: int) -> None:
        """Strike later repeats off the plan, and say so in the manifest."""
        manifest = self._run.read_manifest()
        note = f"ended after {repeat} of at most {self._prepared.experiment.repeats} repeats: the verdict was clear"
        left = [plan for plan in manifest.trials if plan.repeat <= repeat]
        self._run.write_manifest(msgspec.structs.replace(manifest, trials=left, notes=[*manifest.notes, note]))

    async def _check(self, label: str, plans: Sequence[TrialPlan]) -> None:
        """Hold a sample of the answers to the reference, now that the engine has stopped and the machine is free."""
        prepared = self._prepared
        await check_quality(
            plans, self._run, prepared.engines[label], experiment=prepared.experiment, model=prepared.model,
            tokenizer=prepared.tokenizer, planner=prepared.planner,
        )  # fmt: skip

    def _adopted(self, item: Planned, finished: dict[str, tuple[RunFolder, TrialRecord]]) -> bool:
        """Take a trial over from an earlier run, if it is there."""
        order, plan = item
        found = finished.get(self._fingerprint(plan)) if finished else None
        if found is None:
            return False
        source, record = found
        origin = record.adopted_from or source.path.name
        taken = msgspec.structs.replace(record, id=plan.id, engine=plan.engine, order=order, adopted_from=origin)
        self._run.adopt(plan.id, source.trial(record.id), taken)
        self._observer.trial_finished(taken)
        return True

    async def _one_start(self, label: str, repeat: int, to_do: Sequence[Planned]) -> Sequence[Planned]:
        """Start the engine and run trials until it dies or they are done; returns those that are left."""
        prepared = self._prepared
        self._starts[label] += 1
        number = self._starts[label]
        self._observer.starting(label, repeat)
        port = next(side.port for side in prepared.experiment.engines if side.shown == label)
        log = self._run.engine_log(label, number)
        left = list(to_do)
        ready = False
        try:
            async with started(prepared.engines[label], label, prepared.model, pick_port(port), log) as side:
                ready = True
                await self._trials(left, await self._settled(side, f"{label}/{number}"))
        except EngineError as error:
            self._failures.append(_failure(label, repeat, error))
            if not ready or len(left) == len(to_do):  # it would be started again and again
                self._given_up.add(label)
        return left

    async def _settled(self, side: Side, start: str) -> Side:
        """The engine at its working speed, with a record of how it got there."""
        if side.engine.url:
            return side  # whoever started it has warmed it up, and may have to pay for each request
        settling = await self._settler.settle(side.engine, side.server, start)
        if settling is None:
            return side
        startup = msgspec.structs.replace(side.startup, settling_requests=settling.requests, settled=settling.settled)
        return msgspec.structs.replace(side, startup=startup)

    async def _trials(self, left: list[Planned], side: Side) -> None:
        """Run trials and take them from the list.

        Raises:
            EngineDied: the engine ended; what is left was not begun.
        """
        while not (death := side.server.died()):
            if not left:
                return
            order, plan = left[0]
            self._observer.trial_started(plan)
            traffic = self._prepared.planner.traffic(plan.load, plan.repeat, plan.engine)
            record = await self._runner.run(plan, order, side, traffic, self._fingerprint(plan))
            del left[0]
            self._observer.trial_finished(record)
        raise death

    def _fingerprint(self, plan: TrialPlan) -> str:
        prepared = self._prepared
        traffic = prepared.planner.traffic(plan.load, plan.repeat, plan.engine)
        return fingerprint(
            prepared.experiment, prepared.engines[plan.engine], prepared.model, plan,
            traffic_sha256=traffic.shape_sha256, machine=prepared.machine,
        )  # fmt: skip


async def plan_repeat(experiment: Experiment, planner: TrafficPlanner, repeat: int) -> None:
    """Make the traffic of one repeat while no engine runs; what is made already costs nothing."""
    for plan in experiment.plan():
        if plan.repeat == repeat:
            await asyncio.to_thread(planner.traffic, plan.load, repeat, plan.engine)


def _finished(earlier: RunFolder | None) -> dict[str, tuple[RunFolder, TrialRecord]]:
    """The finished trials of an earlier run, by fingerprint."""
    if earlier is None:
        return {}
    records = (folder.read_record() for folder in earlier.trials())
    return {record.fingerprint: (earlier, record) for record in records if record and record.fingerprint}


def _fleet(client: ClientConfig) -> contextlib.AbstractAsyncContextManager[Fleet]:
    """The client's workers, on this machine or on a cluster's."""
    return (
        ray_fleet(client.ray, client.workers, client.cores) if client.ray else local_fleet(client.workers, client.cores)
    )


def _failure(label: str, repeat: int, error: EngineError) -> str:
    """One line, and the engine's last lines below it where they say more."""
    tail = [line for line in error.log_tail if line.strip() and line.strip() not in str(error)]
    return "\n  | ".join([f"{label}, repeat {repeat}: {error}", *tail])
