"""Runs one trial: applies its load and its faults, then decodes, judges and stores the requests."""

import asyncio
import contextlib
import functools
from collections.abc import Coroutine
from typing import Any

import msgspec

from bakeoff.engines import Server
from bakeoff.harness.client import Fleet, Issue, LoadResult
from bakeoff.harness.client.decode.log import decode_log
from bakeoff.harness.conduct.addresses import (
    pages_of,
    prefix_caches_of,
    replicas_of,
    targets_at,
)
from bakeoff.harness.conduct.client_errors import ClientErrors
from bakeoff.harness.conduct.engine_start import EngineUnderTest
from bakeoff.harness.conduct.faults import FaultInjector
from bakeoff.harness.conduct.kernels import record_kernels
from bakeoff.harness.conduct.progress import Observer
from bakeoff.harness.conduct.recording import recording
from bakeoff.harness.conduct.step_log import StepLog
from bakeoff.harness.conduct.trial_load import LoadContext, Paces, TrialLoad, format_of
from bakeoff.harness.conduct.world import Telemetry, World
from bakeoff.harness.errors import WorkerLost
from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.host.threads import check_cancelled
from bakeoff.harness.telemetry import ExporterPage, OwnProcesses
from bakeoff.harness.traffic.planner import SteadyTraffic, Traffic
from bakeoff.harness.traffic.steady import ramp_record
from bakeoff.harness.verdict.cache_gap import cache_gaps
from bakeoff.harness.verdict.evidence import Evidence
from bakeoff.harness.verdict.judge import judge
from bakeoff.harness.verdict.rules import broken_afterwards, rules_record
from bakeoff.results.files.jsonl import Appender
from bakeoff.results.log.store import RunFolder, TrialFolder
from bakeoff.results.records import (
    DECODER,
    CacheGaps,
    EngineDescription,
    FaultRecord,
    Outcome,
    Phase,
    StreamEnd,
    TelemetryRecord,
    TrialPlan,
    TrialRecord,
    Verdict,
    Window,
    WindowKind,
)
from bakeoff.results.server_view import prefix_hit_share, readings
from bakeoff.workloads import Tokenizer

_READY_S = 600.0
"""Limit on the time until a replica that a fault has killed is ready again."""


class TrialRunner:
    """Runs trials of one experiment into one run folder.

    Args:
        experiment: has the limits and seeds.
        run: folder that stores the trials.
        fleet: the client's workers.
        sampler: telemetry.
        tokenizer: counts the tokens of chunks if the engine does not.
        world: has the clock, and calibrates the client.
        observer: is notified of each stage of a trial.
    """

    def __init__(
        self,
        experiment: Experiment,
        run: RunFolder,
        fleet: Fleet,
        sampler: Telemetry,
        *,
        tokenizer: Tokenizer | None,
        world: World,
        observer: Observer,
    ) -> None:
        self._experiment = experiment
        self._run = run
        self._fleet = fleet
        self._sampler = sampler
        self._tokenizer = tokenizer
        self._world = world
        self._client_errors = ClientErrors(experiment.client, fleet, world)
        self._paces = Paces()
        self._context = LoadContext(experiment, fleet, sampler, tokenizer, world, observer, self._paces)

    def learn_pace(self, record: TrialRecord) -> None:
        """Let later trials begin as they would after this one, which another run has measured."""
        if record.ramp is not None:
            self._paces.learn(record.engine, record.load, record.ramp.pace)

    async def run(
        self, plan: TrialPlan, order: int, under_test: EngineUnderTest, traffic: Traffic, fingerprint: str = ""
    ) -> TrialRecord:
        """Run one trial and store its files. If the engine dies, the trial is INVALID and no error is raised."""
        folder = self._run.trial(plan.id)
        folder.create()
        load = TrialLoad(self._context, under_test, plan, traffic, folder)
        started_ns = self._world.now_ns()
        pages = pages_of(under_test.engine, under_test.addresses)
        recorder = recording(under_test, folder) if plan.profiled else contextlib.nullcontext()
        own = under_test.own if self._fleet.is_local else OwnProcesses(unknown="the client's workers run on a cluster")
        sampled = self._sampler.into(
            folder.telemetry_log,
            under_test.pids,
            self._fleet.pids,
            pages,
            under_test.gpus,
            own=own,
            exporters=[
                ExporterPage(each.url, tuple(each.gpus)) for each in self._experiment.engine(plan.engine).exporters
            ],
        )
        result, loss, injected = None, None, list[FaultRecord]()
        faults = self._injector(under_test)
        async with contextlib.aclosing(faults), sampled, recorder as log:
            try:
                result = await self._unless_death(under_test, load.apply(log, faults.opened), faults)
            except WorkerLost as error:  # the next load starts another worker
                loss = str(error)
            injected = await faults.finish()
        ended_ns = self._world.now_ns()
        if result and result.loop_lag:
            with Appender(folder.telemetry_log) as telemetry:
                telemetry.append(result.loop_lag)
        issue = result.issue if result else Issue(started_ns, ended_ns)
        death = under_test.died(faults.killed) or faults.died()
        record = TrialRecord(
            id=plan.id,
            engine=plan.engine,
            workload=plan.workload,
            load=plan.load,
            repeat=plan.repeat,
            order=order,
            started_ns=started_ns,
            ended_ns=ended_ns,
            issue_start_ns=issue.start_ns,
            issue_end_ns=issue.end_ns,
            window=_window(result, issue, folder),
            planned_requests=result.planned if result else _under_load(folder),
            workload_sha256=traffic.shape_sha256,
            verdict=Verdict.INVALID,
            decoder=DECODER,
            engine_description=self._described(under_test),
            engine_log_tail=list(death.log_tail) if death else [],
            start_s=under_test.startup.start_s,
            startup=under_test.startup,
            profiled=plan.profiled,
            replaces=plan.replaces,
            attempt=plan.attempt,
            step_log_missing=log.missing if log else None,
            fingerprint=fingerprint,
            clients=result.clients if result else [],
            traffic=msgspec.structs.replace(traffic.record, cache_reset=load.was_reset),
            faults=injected,
            rules=rules_record(self._experiment, plan.load),
            ramp=ramp_record(
                plan.load, self._experiment.trial, traffic, result.begun, result.ramp, unwritten_s=result.unwritten_s
            )
            if result and result.ramp and isinstance(traffic, SteadyTraffic)
            else None,
        )
        if isinstance(log, StepLog):
            await self._world.in_thread(log.write_costs, record.engine_description)
        if plan.profiled and self._experiment.kernels and not death:
            briefly = functools.partial(load.briefly, record)
            missing = await record_kernels(under_test.engine, under_test.server, folder, briefly)
            record = msgspec.structs.replace(record, kernels_missing=missing)
        why = str(death) if death else None
        return await self._judged(record, folder, under_test, traffic, death=why, loss=loss)

    def _injector(self, under_test: EngineUnderTest) -> FaultInjector:
        label = under_test.description.label
        config = self._experiment.engine(label)
        faults = self._experiment.faults_of(config)
        controls = {
            replica: self._world.control(under_test, replica, self._run.engine_log(f"{label}-faults", 1))
            for replica in dict.fromkeys(fault.replica for fault in faults)
        }
        ready_s = config.ready_timeout_s or _READY_S
        return FaultInjector(
            faults, controls, self._world.now_ns,
            joined=self._fleet.join, launched=self._sample, ready_s=ready_s,
        )  # fmt: skip

    async def _sample(self, server: Server) -> None:
        """Sample a server that was started under load, too."""
        if server.pid is not None:
            await self._sampler.include(server.pid)

    def _described(self, under_test: EngineUnderTest) -> EngineDescription:
        """The engine with the rule by which the client divides its requests."""
        division = self._experiment.engine(under_test.description.label).division
        is_divided = len(targets_at(under_test.addresses)) > 1  # late ones count, too
        return msgspec.structs.replace(under_test.description, balance=division.value if is_divided else None)

    async def _unless_death(
        self, under_test: EngineUnderTest, work: Coroutine[Any, Any, LoadResult], faults: FaultInjector
    ) -> LoadResult | None:
        """The work's result; None, with the work cancelled, if a server ends first that no fault has killed."""
        task = asyncio.ensure_future(work)
        servers = under_test.servers.items()
        ends: dict[asyncio.Future[Any], str | None] = {
            asyncio.ensure_future(server.ended.wait()): label for label, server in servers
        }
        started_ended: asyncio.Future[Any] = asyncio.ensure_future(faults.ended.wait())
        waiting: set[asyncio.Future[Any]] = {task, started_ended, *ends}
        try:
            while not task.done():
                ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if started_ended in ended or any(ends[each] not in faults.killed for each in ended if each in ends):
                    break
            return task.result() if task.done() else None
        finally:
            for each in (task, started_ended, *ends):
                each.cancel()
            await asyncio.gather(task, started_ended, *ends, return_exceptions=True)

    async def _judged(
        self,
        record: TrialRecord,
        folder: TrialFolder,
        under_test: EngineUnderTest,
        traffic: Traffic,
        *,
        death: str | None,
        loss: str | None,
    ) -> TrialRecord:
        """Decode the log, store the requests, and fill in the client's error, verdict and findings."""
        tokenizer = self._tokenizer if self._tokenizer and self._tokenizer.is_exact else None
        config = self._experiment.engine(record.engine)
        await decode_log(
            folder,
            under_test.engine.dialect,
            tokenizer,
            format_of(config),
            in_thread=self._world.in_thread,
            cores=self._world.cores,
            nodes=self._fleet.decoders,
        )
        requests = await self._world.in_thread(folder.read_decoded, check_cancelled)
        telemetry: list[TelemetryRecord] = folder.read_telemetry().records
        evidence = Evidence(
            requests=requests,
            telemetry=telemetry,
            load=record.load,
            window=record.window,
            max_failure_share=self._experiment.trial.max_failure_share,
            engine_death=death,
            client_loss=loss,
            lost_workers=self._fleet.lost_workers,
            planned_workers=self._fleet.planned_workers,
            planned=record.planned_requests,
            max_error_share=self._experiment.client.max_error_share,
            replica_header=config.replica_header,
            traffic=record.traffic,
            ramp=record.ramp,
            max_window_s=self._experiment.trial.max_window_s,
            max_foreign_share=self._experiment.trial.max_foreign_share,
            sample_interval_ns=self._sampler.interval_ns,
            faults=record.faults,
        )
        error, why = await self._client_errors.of(record, evidence)
        evidence = msgspec.structs.replace(evidence, client_error=error)
        verdict, findings = await self._world.in_thread(judge, evidence)
        if record.rules is not None:
            reasons = broken_afterwards(self._experiment, requests, record.window)
            record = msgspec.structs.replace(record, rules=record.rules.with_broken(reasons))
        return msgspec.structs.replace(
            record, verdict=verdict, findings=findings, client_error=error, uncalibrated=why,
            abandoned_requests=int((requests.is_cancelled | requests.equal("outcome", Outcome.TIMEOUT)).sum()),
            cache_gaps=await self._world.in_thread(self._cache_gaps, record, evidence, under_test, traffic),
            files=await self._world.in_thread(folder.stored_files),
        )  # fmt: skip

    def _cache_gaps(
        self, record: TrialRecord, evidence: Evidence, under_test: EngineUnderTest, traffic: Traffic
    ) -> CacheGaps | None:
        """Why the prefix cache hits less than it could; None where prompts share nothing."""
        if not traffic.endless.hit_tokens or record.profiled:
            return None
        workload = self._experiment.workload
        return cache_gaps(
            evidence.requests,
            record.window,
            traffic.endless,
            prefix_caches_of(under_test.engine, under_test.description),
            counted_share=prefix_hit_share(readings(evidence.telemetry)).value,
            replicas=replicas_of(under_test.addresses),
            is_live=workload.history.is_live,
            is_salted=bool(workload.options.get("salt")),
        )


def _window(result: LoadResult | None, issue: Issue, folder: TrialFolder) -> Window:
    """The measured window; empty if the trial was cut off."""
    if result is None:
        return Window(issue.start_ns, issue.start_ns)
    if result.window is not None:
        return Window(*result.window)
    under_load = (stream for stream in folder.read_streams() if stream.phase is not Phase.WARMUP)
    ends_ns = [stream.ended_ns for stream in under_load if stream.end is not StreamEnd.CANCELLED]
    return Window(issue.start_ns, max(ends_ns, default=issue.start_ns) + 1, WindowKind.MAKESPAN)


def _under_load(folder: TrialFolder) -> int:
    """Number of requests under load that a cut-off trial recorded, the cancelled ones included."""
    return sum(stream.phase is not Phase.WARMUP for stream in folder.read_streams())
