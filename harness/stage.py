"""Engines on the stage: each is started, settled, put through trials, and started again where it died.

One that does not start, or dies before a trial, is given up; the others go on.
"""

import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

import msgspec

from engines import Engine, EngineError, Model
from engines.errors import EngineDied, NotReady
from harness.conduct.engine_start import Side
from harness.conduct.progress import Observer
from harness.conduct.trial import TrialRunner
from harness.conduct.warm_up import Settler
from harness.conduct.world import World
from harness.experiment.config import Experiment
from harness.experiment.fingerprint import fingerprint
from harness.traffic.planner import TrafficPlanner
from results.records import EngineFailure, EngineFate, TrialPlan, TrialRecord
from results.store import RunFolder
from workloads import Tokenizer

Planned = tuple[int, TrialPlan]
"""A trial with its position in the run's order."""


class Prepared(msgspec.Struct, frozen=True):
    """All that is known before the first engine starts."""

    experiment: Experiment
    model: Model
    tokenizer: Tokenizer
    engines: dict[str, Engine]
    planner: TrafficPlanner
    machine: dict[str, Any]
    """As :func:`harness.host.environment.machine` gives it."""
    world: World
    """Where it is measured."""


class Agenda(Protocol):
    """The trials that one engine is to be put through, known beforehand or not."""

    @property
    def is_over(self) -> bool:
        """Whether none is left."""
        ...

    async def next(self) -> Planned | None:
        """The next trial; None when it is over."""
        ...

    def done(self, record: TrialRecord) -> None:
        """Take the trial that :meth:`next` gave, finished."""
        ...


class Stage:
    """Where the engines of one run are put through their trials.

    Args:
        prepared: what was known beforehand.
        run: where trials are stored.
        observer: who watches.
        runner: runs one trial.
        settler: brings engines to their working speed.

    Attributes:
        failures: what went wrong with engines, in words.
        given_up: engines that are not started any more, and why.
    """

    def __init__(
        self, prepared: Prepared, run: RunFolder, observer: Observer, runner: TrialRunner, settler: Settler
    ) -> None:
        self._prepared = prepared
        self._run = run
        self._observer = observer
        self._runner = runner
        self._settler = settler
        self._starts: Counter[str] = Counter()
        self._builds: dict[str, dict[str, Any]] = {}
        self._busy: dict[str, str] = {}
        self.failures: list[str] = []
        self.given_up: dict[str, str] = {}

    async def play(self, label: str, repeat: int, agenda: Agenda) -> None:
        """Put an engine through its trials, with as many starts as that takes."""
        while label not in self.given_up and not agenda.is_over:
            if label in self._busy:
                self.given_up[label] = self._busy[label]
                self.failures.append(self._busy[label])
            else:
                await self._one_start(label, repeat, agenda)

    async def check(self, label: str, plans: Sequence[TrialPlan]) -> None:
        """Hold a sample of the answers to the reference, now that the engine has stopped and the machine is free."""
        prepared = self._prepared
        await prepared.world.check_quality(
            plans, self._run, prepared.engines[label], experiment=prepared.experiment, model=prepared.model,
            tokenizer=prepared.tokenizer, planner=prepared.planner,
        )  # fmt: skip

    def fingerprint(self, plan: TrialPlan) -> str:
        """What makes a trial the same measurement as another one."""
        prepared = self._prepared
        traffic = prepared.planner.traffic(plan.load, plan.repeat, plan.engine)
        if plan.engine not in self._builds:
            self._builds[plan.engine] = prepared.world.build(prepared.engines[plan.engine])
        return fingerprint(
            prepared.experiment, prepared.model, plan,
            build=self._builds[plan.engine], traffic_sha256=traffic.shape_sha256, machine=prepared.machine,
        )  # fmt: skip

    async def _one_start(self, label: str, repeat: int, agenda: Agenda) -> None:
        """Start the engine and run trials until it dies, or stays busy after one, or they are done."""
        prepared = self._prepared
        self._starts[label] += 1
        number = self._starts[label]
        self._observer.starting(label, repeat)
        port = prepared.experiment.side(label).port
        log = self._run.engine_log(label, number)
        progress = _Progress(agenda)
        try:
            async with prepared.world.started(prepared.engines[label], label, prepared.model, port, log) as side:
                self._builds[label] = side.build
                await self._trials(progress, await self._settled(side, f"{label}/{number}"), f"{label}/{number}")
        except EngineError as error:
            failure = _failure(label, repeat, error)
            self.failures.append(failure)
            self._note_failure(label, repeat, error)
            if not progress.trials:  # it would be started again and again
                self.given_up[label] = failure

    def _note_failure(self, label: str, repeat: int, error: EngineError) -> None:
        """Store what counts against the engine; a port in use, or a package that is missing, does not."""
        if not isinstance(error, EngineDied | NotReady):
            return
        fate = EngineFate.DIED if isinstance(error, EngineDied) else EngineFate.NOT_READY
        manifest = self._run.read_manifest()
        failures = [*manifest.engine_failures, EngineFailure(label, repeat, fate)]
        self._run.write_manifest(msgspec.structs.replace(manifest, engine_failures=failures))

    async def _settled(self, side: Side, start: str) -> Side:
        """The engine at its working speed, with a record of how it got there."""
        if side.engine.url:
            return side  # whoever started it has warmed it up, and may have to pay for each request
        settling = await self._settler.settle(side.engine, side.server, start)
        if settling is None:
            return side
        startup = msgspec.structs.replace(side.startup, settling_requests=settling.requests, settled=settling.settled)
        return msgspec.structs.replace(side, startup=startup)

    async def _trials(self, progress: "_Progress", side: Side, start: str) -> None:
        """Run trials until none is left, or the engine stays busy with requests that nobody waits for.

        Raises:
            EngineDied: the engine ended; what is left was not begun.
        """
        agenda, planner, world = progress.agenda, self._prepared.planner, self._prepared.world
        idle_s = await self._settler.round_s(side.engine, side.server, f"{start}/idle")
        while not (death := side.server.died()):
            planned = await agenda.next()
            if planned is None:
                return
            order, plan = planned
            self._observer.trial_started(plan)
            traffic = await world.in_thread(planner.traffic, plan.load, plan.repeat, plan.engine)
            record = await self._runner.run(plan, order, side, traffic, self.fingerprint(plan))
            progress.trials += 1
            self._observer.trial_finished(record)
            agenda.done(record)
            goes_on = side.engine.url is not None or not agenda.is_over  # what is ours ends with its agenda
            left_work = idle_s is not None and record.abandoned_requests > 0 and goes_on
            if left_work and not await self._idle_again(side, plan, idle_s or 0.0):
                return
        raise death

    async def _idle_again(self, side: Side, plan: TrialPlan, idle_s: float) -> bool:
        """Whether the engine has done with what the last trial sent; else it is started again, unless it is not ours.

        An engine that ended meanwhile is idle, too: the next look at it will tell.
        """
        if await self._settler.recovered(side.engine, side.server, plan.id, idle_s) or side.server.died():
            return True
        if side.engine.url:
            busy = f"{plan.engine} was still busy long after its trial at {plan.load.label}"
            self._busy[plan.engine] = f"{busy}; restart it, and search below that"
        return False


class _Progress:
    """An agenda, and how many of its trials one start has seen."""

    def __init__(self, agenda: Agenda) -> None:
        self.agenda = agenda
        self.trials = 0


@contextlib.asynccontextmanager
async def staged(prepared: Prepared, run: RunFolder, observer: Observer) -> AsyncGenerator[Stage]:
    """A stage with its client and its telemetry, which go with the block."""
    experiment, world = prepared.experiment, prepared.world
    trial, client = experiment.trial, experiment.client
    async with world.sampler() as telemetry, world.fleet(client) as fleet:
        runner = TrialRunner(experiment, run, fleet, telemetry, tokenizer=prepared.tokenizer, world=world)
        settler = Settler(
            fleet, prepared.planner, limit_s=trial.settle_s, timeout_s=trial.timeout_s, transport=client.transport,
            now_ns=world.now_ns,
        )  # fmt: skip
        yield Stage(prepared, run, observer, runner, settler)


def _failure(label: str, repeat: int, error: EngineError) -> str:
    """One line, and the engine's last lines below it where they say more."""
    tail = [line for line in error.log_tail if line.strip() and line.strip() not in str(error)]
    return "\n  | ".join([f"{label}, repeat {repeat}: {error}", *tail])
