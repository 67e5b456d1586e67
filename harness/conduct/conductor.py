"""The conductor: asks the policy for the next step, carries it out, and logs the result.

An engine is started for each of its turns, and again if it died or stayed busy during one. An engine that does not
start, or dies before its first trial, is given up; the others continue.
"""

import contextlib
from collections import Counter
from typing import Any

from msgspec import structs

from bakeoff.engines import EngineError
from bakeoff.engines.base import addresses_of
from bakeoff.engines.errors import EngineDied, NotReady
from bakeoff.engines.secrets import masked
from bakeoff.harness.conduct.engine_start import EngineUnderTest
from bakeoff.harness.conduct.policies import Done, Policy
from bakeoff.harness.conduct.preparation import Preparation
from bakeoff.harness.conduct.progress import Observer
from bakeoff.harness.conduct.replicas import Replicas
from bakeoff.harness.conduct.trial import TrialRunner
from bakeoff.harness.conduct.warm_up import WarmUp
from bakeoff.harness.experiment.fingerprint import fingerprint
from bakeoff.harness.quality import check_quality
from bakeoff.harness.traffic.planner import Traffic
from bakeoff.results.errors import RunUnreadable
from bakeoff.results.findings import REJECTIONS
from bakeoff.results.log.remote import RunCopy
from bakeoff.results.log.run_log import (
    EngineFate,
    EngineLost,
    EngineStarted,
    EngineStarting,
    Event,
    FileAdded,
    RunLogWriter,
    TrialFinished,
    TrialPlanned,
)
from bakeoff.results.log.store import RunFolder
from bakeoff.results.records import FaultAction, TrialPlan, TrialRecord
from bakeoff.results.text.findings import sentence


class Conductor:
    """Carries out one run.

    Args:
        preparation: model, engines and traffic.
        run: folder that stores the trials.
        writer: of the run's log.
        observer: is notified of each event.
        runner: runs one trial.
        warm_up: warms engines up.
        reusable: finished trials of an earlier run by fingerprint, each with its run folder; those used are removed.
        copy: the run's copy in a store, which follows it.
    """

    def __init__(
        self,
        preparation: Preparation,
        run: RunFolder,
        writer: RunLogWriter,
        observer: Observer,
        *,
        runner: TrialRunner,
        warm_up: WarmUp,
        reusable: dict[str, list[tuple[RunFolder, TrialRecord]]],
        copy: RunCopy | None = None,
    ) -> None:
        self._preparation = preparation
        self._experiment = preparation.experiment
        self._world = preparation.world
        self._run = run
        self._writer = writer
        self._observer = observer
        self._runner = runner
        self._warm_up = warm_up
        self._reusable = reusable
        self._copy = copy
        self._starts: Counter[str] = Counter()
        self._builds: dict[str, dict[str, Any]] = {}
        self._busy: dict[str, str] = {}  # running servers that stayed busy, with the reason for giving them up
        self._turn: tuple[str, int] | None = None
        self._turn_plans: list[TrialPlan] = []
        self._running: _RunningEngine | None = None

    async def carry_out(self, policy: Policy) -> Done:
        """Carry out the policy's decisions until it is done."""
        try:
            while not isinstance(decision := await self._world.in_thread(policy.next, self._writer.log), Done):
                await self._append(decision)
                if isinstance(decision, TrialPlanned):
                    await self._begin_turn(decision)
                    if not await self._reused(decision.plan):
                        try:
                            await self._measure(decision)
                        except EngineError as error:
                            await self._lose(decision, error)
                    if decision.ends_turn:
                        await self._end_turn()
            await self._end_turn()
        finally:
            await self._stop()
        return decision

    async def _begin_turn(self, planned: TrialPlanned) -> None:
        """If this trial is the first of its turn, end the last turn and plan traffic."""
        plan, turn = planned.plan, (planned.plan.engine, planned.turn)
        if turn != self._turn:
            await self._end_turn()
            self._turn = turn
            started = self._writer.log.started
            planned_trials = [trial for trial in started.plan if trial.repeat == plan.repeat] if started else []
            # plan the whole repeat now, because no engine runs that the CPU work could disturb
            for trial in planned_trials or [plan]:
                await self._world.in_thread(self._traffic, trial)
        self._turn_plans.append(plan)

    async def _measure(self, planned: TrialPlanned) -> None:
        """Run a trial, starting its engine if necessary.

        Raises:
            EngineError: the engine did not start, or died.
        """
        plan = planned.plan
        if self._running and self._running.may_be_busy and not await self._is_idle(self._running, plan):
            await self._stop()
        running = self._running or await self._start(planned)
        if running is None:
            return
        under_test = running.under_test
        if death := under_test.died():
            raise death
        traffic = await self._world.in_thread(self._traffic, plan)
        record = await self._runner.run(plan, self._order(plan), under_test, traffic, self.fingerprint(plan))
        running.trials += 1
        await self._append(TrialFinished(record=record))
        if (rejection := _rejection(record)) is not None:
            await self._stop()
            await self._append(EngineLost(engine=plan.engine, turn=planned.turn, reason=rejection, given_up=True))
            return
        if _was_changed(record):
            await self._stop()  # the next trial starts it, or finds its new processes
            return
        if death := under_test.died():
            raise death
        running.may_be_busy = running.idle_s is not None and record.abandoned_requests > 0
        if under_test.engine.url and running.may_be_busy and not await self._is_idle(running, plan):
            busy = f"{plan.engine} was still busy long after its trial at {plan.load.label}"
            self._busy[plan.engine] = f"{busy}; restart it, and search below that load"
            await self._stop()

    async def _start(self, planned: TrialPlanned) -> "_RunningEngine | None":
        """Start the engine and warm it up; None if it is a running server that stayed busy and is given up.

        Raises:
            EngineError: it did not start, or died.
        """
        label, preparation = planned.plan.engine, self._preparation
        if label in self._busy:
            await self._append(EngineLost(engine=label, turn=planned.turn, reason=self._busy[label], given_up=True))
            return None
        self._starts[label] += 1
        number = self._starts[label]
        await self._append(EngineStarting(engine=label, turn=planned.turn, start=number))
        log, port = self._run.engine_log(label, number), self._experiment.engine(label).port
        engine = preparation.engines[label]
        for address in addresses_of(engine):
            if not self._experiment.client.ray:  # workers elsewhere may reach what this machine cannot
                await self._world.require_listener(address.url)
        stack = contextlib.AsyncExitStack()
        replicas = self._replicas(label)
        starting = self._world.started(engine, label, preparation.model, port, log, replicas=replicas)
        under_test = await stack.enter_async_context(starting)
        self._running = _RunningEngine(stack, under_test)
        self._builds[label] = under_test.build
        under_test = self._running.under_test = await self._warmed_up(under_test, f"{label}/{number}")
        idle_name = f"{label}/{number}/idle"
        rounds = [await self._warm_up.round_s(engine, server, idle_name) for server in under_test.targets]
        known_s = [round_s for round_s in rounds if round_s is not None]
        self._running.idle_s = max(known_s) if len(known_s) == len(rounds) else None
        startup = under_test.startup
        await self._append(
            EngineStarted(
                engine=label, turn=planned.turn, start_s=startup.start_s, warm_up_requests=startup.warm_up_requests,
                is_warm=startup.is_warm,
            )
        )  # fmt: skip
        return self._running

    async def _warmed_up(self, under_test: EngineUnderTest, start: str) -> EngineUnderTest:
        """Warm the engine up; returns it with the warm-up's result in its startup record."""
        if under_test.engine.url:
            return under_test  # a server that others run is warm already, and may charge for each request
        results = [await self._warm_up.run(under_test.engine, server, start) for server in under_test.targets]
        ran = [result for result in results if result is not None]
        if not ran:
            return under_test
        startup = structs.replace(
            under_test.startup,
            warm_up_requests=sum(result.requests for result in ran),
            is_warm=all(result.is_warm for result in ran),
        )
        return structs.replace(under_test, startup=startup)

    def _replicas(self, label: str) -> Replicas:
        """The servers that are started of an engine; a fault starts the late ones."""
        config = self._experiment.engine(label)
        starts = [fault for fault in self._experiment.faults_of(config) if fault.action is FaultAction.START]
        labels = tuple(config.replica_labels) if config.replicas > 1 else (None,)
        return Replicas(labels, frozenset(fault.replica for fault in starts if fault.replica is not None))

    async def _is_idle(self, running: "_RunningEngine", plan: TrialPlan) -> bool:
        """Wait until the engine has finished abandoned requests; False if that took too long.

        A dead engine counts as idle: the next trial on it reports its death.
        """
        under_test = running.under_test
        idle_s, idle = running.idle_s or 0.0, True
        for server in under_test.targets:
            idle = idle and await self._warm_up.is_idle(under_test.engine, server, plan.id, idle_s=idle_s)
        running.may_be_busy = not idle
        return idle or under_test.died() is not None

    async def _lose(self, planned: TrialPlanned, error: EngineError) -> None:
        """Stop the engine and log why; give it up if this start had no trial, since another start would fail too."""
        label = planned.plan.engine
        fate = EngineFate.DIED if isinstance(error, EngineDied) else None
        fate = EngineFate.NOT_READY if isinstance(error, NotReady) else fate
        trials = self._running.trials if self._running else 0
        await self._stop()
        await self._append(
            EngineLost(
                engine=label, turn=planned.turn, reason=masked(_reason(label, planned.turn, error)), fate=fate,
                given_up=trials == 0,
            )
        )  # fmt: skip

    async def _end_turn(self) -> None:
        """Stop the engine, then compare a sample of its answers with the reference model while the machine is free."""
        await self._stop()
        finished = self._writer.log.finished
        plans = [plan for plan in self._turn_plans if plan.id in finished and not plan.profiled]
        records = [finished[plan.id] for plan in plans]
        self._turn, self._turn_plans = None, []
        if not self._world.has_reference:
            return
        preparation = self._preparation
        for repeat in sorted({record.repeat for record in records}):
            of_repeat = [record for record in records if record.repeat == repeat]
            await check_quality(
                of_repeat, self._run, preparation.engines[of_repeat[0].engine], experiment=self._experiment,
                model=preparation.model, tokenizer=preparation.tokenizer, planner=preparation.planner,
            )  # fmt: skip
            for record in of_repeat:
                for name, file in self._run.trial_of(record).stored_files().items():
                    await self._append(FileAdded(trial=record.id, name=name, file=file))

    async def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.stack.aclose()

    async def _reused(self, plan: TrialPlan) -> bool:
        """Reuse an earlier run's trial if it would be the same measurement.

        Each is used once. Engines with equal settings, as in an A/A run, each reuse their own.
        """
        candidates = self._reusable.get(self.fingerprint(plan), []) if self._reusable else []
        others = self._preparation.engines.keys() - {plan.engine}
        earlier: tuple[RunFolder, TrialRecord] | None = None
        for candidate in [candidate for candidate in candidates if candidate[1].engine not in others]:
            candidates.remove(candidate)
            if await self._world.in_thread(_is_whole, *candidate):
                earlier = candidate
                break
        if earlier is None:
            return False
        source, record = earlier
        self._run.reuse(plan.id, source.trial_of(record))
        reused = structs.replace(
            record, id=plan.id, engine=plan.engine, order=self._order(plan), replaces=plan.replaces,
            attempt=plan.attempt,
            reused_from=record.reused_from or source.path.name,
        )  # fmt: skip
        await self._append(TrialFinished(record=reused))
        self._runner.learn_pace(reused)
        return True

    def _traffic(self, plan: TrialPlan) -> Traffic:
        return self._preparation.planner.traffic(plan.load, plan.repeat, plan.engine, plan.attempt)

    def fingerprint(self, plan: TrialPlan) -> str:
        """The trial's fingerprint; see :mod:`bakeoff.harness.experiment.fingerprint`."""
        preparation = self._preparation
        traffic = self._traffic(plan)
        if plan.engine not in self._builds:
            self._builds[plan.engine] = self._world.build(preparation.engines[plan.engine])
        return fingerprint(
            self._experiment, preparation.model, plan,
            build=self._builds[plan.engine], traffic_sha256=traffic.shape_sha256, machine=preparation.machine,
        )  # fmt: skip

    def _order(self, plan: TrialPlan) -> int:
        return 1 + [planned.id for planned in self._writer.log.plans].index(plan.id)

    async def _append(self, event: Event) -> None:
        """Log an event; once the run's copy has it, too, tell the observer.

        Where the copy's store fails, the end of a trial tries again: a store that is gone may need minutes to say so.
        """
        self._writer.append(event)
        copy = self._copy
        if copy is not None and (copy.problem is None or isinstance(event, TrialFinished)):
            failed = copy.problem is not None
            await self._world.in_thread(copy.update, self._writer.log)
            if copy.problem is not None and not failed:
                self._observer.notice(f"{copy.problem}; the run goes on, and each trial tries again")
        self._observer.event(self._writer.log)


class _RunningEngine:
    """One start of an engine.

    Attributes:
        stack: stops it.
        under_test: the engine as trials see it.
        trials: number of trials on this start.
        idle_s: median seconds of a small request before any load; None if not measured.
        may_be_busy: whether abandoned requests of the last trial may still run on it.
    """

    def __init__(self, stack: contextlib.AsyncExitStack, under_test: EngineUnderTest) -> None:
        self.stack = stack
        self.under_test = under_test
        self.trials = 0
        self.idle_s: float | None = None
        self.may_be_busy = False


def _rejection(record: TrialRecord) -> str | None:
    """Why the server rejects every request of this engine; None if it answered some."""
    for finding in record.findings:
        parameters = finding.parameters
        is_whole = parameters.get("failed_requests") == parameters.get("measured_requests")
        if finding.code in REJECTIONS and (is_whole or (record.ramp is not None and record.ramp.has_failed)):
            return f"{record.engine}: {sentence(finding)}"
    return None


def _was_changed(record: TrialRecord) -> bool:
    """Whether the harness killed the engine or a replica, or started one, as the experiment says."""
    return any(fault.action.changes_servers and fault.error is None for fault in record.faults)


def _is_whole(source: RunFolder, record: TrialRecord) -> bool:
    """Whether a trial's files still are what was stored; if not, it is measured again."""
    try:
        source.trial_of(record).verify()
    except RunUnreadable:
        return False
    return True


def _reason(label: str, turn: int, error: EngineError) -> str:
    """The error in one line, followed by those of the engine's last log lines that it does not quote already."""
    tail = [line for line in error.log_tail if line.strip() and line.strip() not in str(error)]
    return "\n  | ".join([f"{label}, repeat {turn}: {error}", *tail])
