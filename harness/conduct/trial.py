"""Runs one trial: fills the cache, applies the load, decodes, judges and stores the requests."""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from bakeoff.engines import Server
from bakeoff.engines.addresses import replica_header_of
from bakeoff.harness.calibration.client_error import Shape, median_of, spread_of
from bakeoff.harness.client import Closed, Fleet, Issue, LoadResult
from bakeoff.harness.client.decoding import decode_log
from bakeoff.harness.client.fleet import LoadOrder, Share
from bakeoff.harness.client.orders import Format
from bakeoff.harness.client.wire import WireSession, new_nonce, wire_sessions
from bakeoff.harness.conduct.addresses import (
    division_of,
    pages_of,
    prefix_caches_of,
    replicas_of,
    reset_caches,
    target_servers,
)
from bakeoff.harness.conduct.engine_start import EngineUnderTest
from bakeoff.harness.conduct.faults import FaultInjector
from bakeoff.harness.conduct.kernels import LOAD_S, record_kernels
from bakeoff.harness.conduct.progress import Observer, Stage
from bakeoff.harness.conduct.recording import SpanLog, recording
from bakeoff.harness.conduct.step_log import StepLog
from bakeoff.harness.conduct.traffic_classes import classes_of
from bakeoff.harness.conduct.world import Telemetry, World
from bakeoff.harness.errors import ClientFailed, TruthFailed, WorkerLost
from bakeoff.harness.experiment.config import EngineConfig, Experiment, is_steady
from bakeoff.harness.quality import asks_logprobs
from bakeoff.harness.telemetry import ExporterPage, OwnProcesses
from bakeoff.harness.traffic.plan_file import PlanFile
from bakeoff.harness.traffic.planner import Traffic
from bakeoff.harness.traffic.play import share_by
from bakeoff.harness.traffic.steady import Encode, SteadyTraffic, ramp_record, share_of
from bakeoff.harness.verdict.cache_gap import cache_gaps
from bakeoff.harness.verdict.client import client_faults
from bakeoff.harness.verdict.evidence import Evidence
from bakeoff.harness.verdict.judge import judge
from bakeoff.harness.verdict.rules import broken_afterwards, rules_record
from bakeoff.results.columns import UNKNOWN
from bakeoff.results.files.jsonl import Appender
from bakeoff.results.log.store import RunFolder, TrialFolder
from bakeoff.results.metrics import latency
from bakeoff.results.metrics.declaration import known
from bakeoff.results.records import (
    Cache,
    CacheGaps,
    ClientError,
    EngineDescription,
    FaultRecord,
    Load,
    Outcome,
    Pace,
    Phase,
    RequestRecord,
    StreamEnd,
    TelemetryRecord,
    TrialPlan,
    TrialRecord,
    Verdict,
    Window,
    WindowKind,
)
from bakeoff.results.requests import Requests
from bakeoff.results.server_view import prefix_hit_share, readings
from bakeoff.workloads import PlannedSession, Tokenizer
from bakeoff.workloads.models import ModelMix

MAX_RESTARTS = 2
"""Times that a steady load may start again because its sessions in progress did not fit the engine's pace."""
_READY_S = 600.0
"""Limit on the time until a replica that a fault has killed is ready again."""
_MAX_SHAPED = 20_000
"""Answers from which the shape of a load is taken, spread over all of it."""
_SLOTS = 2
"""Sessions at a time while shared prompts are sent to fill a cache."""


def shape_of(load: Load, requests: Sequence[RequestRecord]) -> Shape:
    """The trial's load as a calibration can repeat it: the number of streams, and the pace and size of their chunks."""
    under = Requests(requests).under_load
    answers = under.take(under.chunks.counts > 0)
    rate = None if load.concurrency is not None else _sent_per_s(answers, load.rate_per_s)
    shape = Shape(concurrency=load.concurrency, rate_per_s=rate)
    if not len(answers):
        return shape
    answers = answers.take(np.linspace(0, len(answers) - 1, min(len(answers), _MAX_SHAPED), dtype=np.int64))
    (gaps_s, _), ttfts_s = latency.chunk_gaps_s(answers), known(latency.ttft_from_send_s(answers))
    reads, sent_bytes = answers.chunks.reads, answers.ints("sent_bytes")
    return msgspec.structs.replace(
        shape,
        gap_s=float(gaps_s.mean()) if len(gaps_s) else shape.gap_s,
        chunks=max(1, round(float(reads.counts.mean()))),
        ttft_s=float(np.median(ttfts_s)) if len(ttfts_s) else shape.ttft_s,
        tokens_per_chunk=max(1, round(float(reads.tokens.mean()))),  # an answer of embeddings has none
        body_bytes=spread_of(sent_bytes[sent_bytes != UNKNOWN].tolist()),
    )


def _sent_per_s(requests: Requests, planned: float | None) -> float:
    """Requests per second: as planned; fewer if a cap held some back; more if sessions have several turns."""
    sent_ns = requests.ints("sent_ns")
    sent_ns = sent_ns[sent_ns != UNKNOWN]
    if len(sent_ns) < 2:  # no interval to measure a rate by
        return planned or 1.0
    rate = (len(sent_ns) - 1) / max(1e-9, int(np.ptp(sent_ns)) / 1e9)
    return rate if planned is None or requests.ints("turn").any() else min(planned, rate)


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
        self._observer = observer
        self._experiment = experiment
        self._run = run
        self._fleet = fleet
        self._client_errors: dict[tuple[str, str], ClientError] = {}
        self._sampler = sampler
        self._tokenizer = tokenizer
        self._world = world
        self._was_reset = False
        self._nonce = ""
        self._paces: dict[tuple[str | None, str | None], Pace] = {}
        """The last one by engine and load; None for any."""

    async def run(
        self, plan: TrialPlan, order: int, under_test: EngineUnderTest, traffic: Traffic, fingerprint: str = ""
    ) -> TrialRecord:
        """Run one trial and store its files. If the engine dies, the trial is INVALID and no error is raised."""
        folder = self._run.trial(plan.id)
        folder.create()
        self._nonce = new_nonce()
        started_ns = self._world.now_ns()
        pages = pages_of(under_test.engine, under_test.server, under_test.addresses)
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
            work = self._drive(under_test, plan, traffic, folder, log, opened=faults.opened)
            try:
                result = await self._unless_death(under_test, work, faults)
            except WorkerLost as error:  # the next load starts another worker
                loss = str(error)
            injected = await faults.finish()
        ended_ns = self._world.now_ns()
        if result and result.loop_lag:
            with Appender(folder.telemetry_log) as telemetry:
                telemetry.append(result.loop_lag)
        issue = result.issue if result else Issue(started_ns, ended_ns)
        death = under_test.died(faults.killed)
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
            engine_description=self._described(under_test),
            engine_log_tail=list(death.log_tail) if death else [],
            start_s=under_test.startup.start_s,
            startup=under_test.startup,
            profiled=plan.profiled,
            replaces=plan.replaces,
            step_log_missing=log.missing if log else None,
            fingerprint=fingerprint,
            clients=result.clients if result else [],
            traffic=msgspec.structs.replace(traffic.record, cache_reset=self._was_reset),
            faults=injected,
            rules=rules_record(self._experiment, plan.load),
            ramp=ramp_record(plan.load, self._experiment.trial, traffic, result.begun, result.ramp)
            if result and result.ramp
            else None,
        )
        if isinstance(log, StepLog):
            await self._world.in_thread(log.write_costs, record.engine_description)
        if plan.profiled and self._experiment.kernels and not death:
            briefly = functools.partial(self._briefly, under_test, record, traffic)
            missing = await record_kernels(under_test.engine, under_test.server, folder, briefly)
            record = msgspec.structs.replace(record, kernels_missing=missing)
        why = str(death) if death else None
        return await self._judged(record, folder, under_test, traffic, death=why, loss=loss)

    async def _briefly(
        self, under_test: EngineUnderTest, record: TrialRecord, traffic: Traffic, folder: TrialFolder
    ) -> LoadResult:
        """Send the window's requests for a short time, with the trial's mean concurrency."""
        streams = [stream for stream in self._run.trial(record.id).read_streams() if stream.phase is Phase.MEASURED]
        busy_ns = sum(stream.ended_ns - stream.planned_ns for stream in streams)
        in_flight = round(busy_ns / max(1, record.window.end_ns - record.window.start_ns))
        await self._reset_caches(under_test)  # the prompts are the trial's
        self._nonce = new_nonce()  # and so are their indices
        order = self._order(under_test, Closed(record.load.concurrency or max(1, in_flight), LOAD_S), Phase.TAIL)
        return await self._fleet.load(order, self._encoded(under_test, traffic.window, 0), folder)

    async def _drive(
        self,
        under_test: EngineUnderTest,
        trial: TrialPlan,
        traffic: Traffic,
        folder: TrialFolder,
        log: StepLog | SpanLog | None,
        *,
        opened: Callable[[int], None],
    ) -> LoadResult:
        limits, load = self._experiment.trial, trial.load
        self._was_reset = False
        await asyncio.sleep(limits.idle_s)
        self._was_reset = limits.cache is not Cache.WARM and await self._reset_caches(under_test)
        play = traffic.play
        slots = _SLOTS if play is None else load.concurrency or _SLOTS
        sent = 0
        if play is None:
            for server in target_servers(under_test.server, under_test.addresses):  # each has a cache of its own
                primers = tuple(traffic.primers())
                sent += await self._prime(under_test, primers, folder, slots=slots, sent=sent, only=server)
        else:
            for part in (play.primers, play.warm_up):
                sent += await self._prime(under_test, part, folder, slots=slots, sent=sent)
        share = share_of(load, limits) if play is None else share_by(self._experiment.rules_of_play, load, limits)
        order = self._order(under_test, share, Phase.MEASURED)
        if isinstance(log, SpanLog):
            order = msgspec.structs.replace(order, access=log.access(order.access))

        def window(sessions: Iterable[PlannedSession], first: int) -> Iterator[WireSession]:
            return self._encoded(under_test, sessions, first, self._asks(load))

        await self._sampler.mark("before")
        if log:
            await log.start()
        if play is None and is_steady(load):
            result = await self._steady(
                under_test, trial, traffic, folder, order=order, sent=sent, window=window, opened=opened
            )
        else:
            sessions = traffic.window if play is None else play.sessions()
            result = await self._fleet.load(order, window(sessions, 0), folder)
        if log:
            await log.stop()
        await self._sampler.mark("after")
        return result

    async def _steady(
        self,
        under_test: EngineUnderTest,
        trial: TrialPlan,
        traffic: Traffic,
        folder: TrialFolder,
        *,
        order: LoadOrder,
        sent: int,
        window: Encode,
        opened: Callable[[int], None],
    ) -> LoadResult:
        """Apply a steady load, which begins with sessions in progress.

        How many there are and where depends on the engine's pace. If the ramp shows that an assumed pace was off, the
        load starts again with what it measured; the requests of such a ramp count as sent before the load.
        """
        assert traffic.begin is not None
        assert traffic.ramp is not None
        label, load, cycle = under_test.description.label, trial.load, traffic.ramp.plan.requests
        planned, restart = 0, 0

        def open_window(start_ns: int) -> None:
            self._observer.stage(trial, Stage.WINDOW)
            opened(start_ns)

        while True:
            self._observer.stage(trial, Stage.PLAN)
            pace = self._assumed_pace(label, load)
            beginning = await self._world.in_thread(functools.partial(traffic.begin, pace=pace, restart=restart))
            if beginning.history:
                self._observer.stage(trial, Stage.PRIME)
            sent += await self._prime(under_test, beginning.history, folder, slots=beginning.slots, sent=sent)
            plan = SteadyTraffic(
                load, self._experiment.trial, traffic, beginning, may_restart=restart < MAX_RESTARTS, sent=sent,
                encode=functools.partial(self._encoded, under_test), encode_window=window, opened=open_window,
                workers=self._experiment.client.workers,
            )  # fmt: skip
            self._observer.stage(trial, Stage.RAMP)
            result = await self._fleet.steady(order, plan.plan(), folder)
            planned, restart = planned + result.planned, restart + 1
            if result.ramp is not None:
                self._learn_pace(label, load, result.ramp.pace)
            if result.window is not None or (result.ramp is not None and result.ramp.has_failed):
                return msgspec.structs.replace(result, planned=planned, begun=beginning.plan.sessions)
            # A worker may have repeated its part of the ramp more often than the others.
            repeated = self._experiment.client.workers * (1 + result.planned // cycle)
            sent += beginning.plan.requests + cycle * repeated

    def learn_pace(self, record: TrialRecord) -> None:
        """Let later trials begin as they would after this one, which another run has measured."""
        if record.ramp is not None:
            self._learn_pace(record.engine, record.load, record.ramp.pace)

    def _assumed_pace(self, label: str, load: Load) -> Pace | None:
        """That of the engine under this load, else under another one, else of another engine; None if none is known."""
        known = ((label, load.label), (label, None), (None, load.label), (None, None))
        return next((self._paces[key] for key in known if key in self._paces), None)

    def _learn_pace(self, label: str, load: Load, pace: Pace | None) -> None:
        if pace is not None:
            for engine in (label, None):
                self._paces[engine, load.label] = self._paces[engine, None] = pace

    async def _prime(
        self,
        under_test: EngineUnderTest,
        sessions: PlanFile | Sequence[PlannedSession],
        folder: TrialFolder,
        *,
        slots: int,
        sent: int = 0,
        only: Server | None = None,
    ) -> int:
        """Fill the prefix cache, ``slots`` sessions at a time; returns the number of requests sent.

        With ``only`` they all go to that address, else they are divided as those under load.
        """
        counts = [len(planned.session.turns) for planned in sessions]
        requests = sum(counts)
        if counts:
            share = Closed(min(slots, len(counts)), self._experiment.trial.timeout_s * requests)
            order = self._order(under_test, share, Phase.WARMUP)
            if only is not None:
                order = msgspec.structs.replace(order, base_url=only.base_url, division=None)
            # numbered below 0, because the window's requests are numbered from 0
            await self._fleet.load(order, self._encoded(under_test, sessions, -sent - requests), folder)
        return requests

    def _asks(self, load: Load) -> Callable[[int], bool] | None:
        """Predicate of the positions of the window's plan that request log-probabilities; None if none does."""
        quality = self._experiment.quality
        return asks_logprobs(self._experiment.traffic_seed(load), quality.samples) if quality.logprobs else None

    def _encoded(
        self,
        under_test: EngineUnderTest,
        sessions: Iterable[PlannedSession],
        first: int,
        logprobs: Callable[[int], bool] | None = None,
    ) -> Iterator[WireSession]:
        dialect, model = under_test.engine.dialect, under_test.engine.model_id
        shares = self._experiment.workload.models
        return wire_sessions(
            sessions, dialect, model, first_index=first, tokenizer=self._tokenizer, logprobs=logprobs,
            models=ModelMix(shares, str(self._experiment.seed)) if shares else None,
            classes=classes_of(self._experiment, dialect),
            history=self._experiment.workload.history, nonce=self._nonce,
        )  # fmt: skip

    def _order(self, under_test: EngineUnderTest, share: Share, phase: Phase) -> LoadOrder:
        config = self._experiment.engine(under_test.description.label)
        return LoadOrder(
            base_url=under_test.server.base_url,
            access=under_test.server.access,
            share=share,
            timeout_s=self._experiment.trial.timeout_s,
            phase=phase,
            transport=self._experiment.client.transport,
            format=_format_of(config),
            division=division_of(under_test.addresses, config.balance),
            replica_header=replica_header_of(config.replica_header, config.addresses)
            if config.replica_header
            else None,
        )

    def _injector(self, under_test: EngineUnderTest) -> FaultInjector:
        label = under_test.description.label
        config = self._experiment.engine(label)
        faults = self._experiment.faults_of(config)
        controls = {
            replica: self._world.control(under_test, replica, self._run.engine_log(f"{label}-faults", 1))
            for replica in dict.fromkeys(fault.replica for fault in faults)
        }
        ready_s = config.ready_timeout_s or _READY_S
        return FaultInjector(faults, controls, self._world.now_ns, joined=self._fleet.join, ready_s=ready_s)

    def _described(self, under_test: EngineUnderTest) -> EngineDescription:
        """The engine with the rule by which the client divides its requests."""
        division = division_of(under_test.addresses, self._experiment.engine(under_test.description.label).balance)
        return msgspec.structs.replace(under_test.description, balance=division.balance.value if division else None)

    async def _reset_caches(self, under_test: EngineUnderTest) -> bool:
        return await reset_caches(under_test.engine, under_test.server, under_test.addresses)

    async def _unless_death(
        self, under_test: EngineUnderTest, work: Coroutine[Any, Any, LoadResult], faults: FaultInjector
    ) -> LoadResult | None:
        """The work's result; None, with the work cancelled, if a server ends first that no fault has killed."""
        task = asyncio.ensure_future(work)
        servers = under_test.servers.items()
        ends: dict[asyncio.Future[Any], str | None] = {
            asyncio.ensure_future(server.ended.wait()): label for label, server in servers
        }
        waiting: set[asyncio.Future[Any]] = {task, *ends}
        try:
            while not task.done():
                ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if any(ends[each] not in faults.killed for each in ended if each is not task):
                    break
            return task.result() if task.done() else None
        finally:
            for each in (task, *ends):
                each.cancel()
            await asyncio.gather(task, *ends, return_exceptions=True)

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
            _format_of(config),
            in_thread=self._world.in_thread,
            cores=self._world.cores,
        )
        requests = await self._world.in_thread(folder.read_decoded)
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
        error, why = await self._client_error(record, evidence)
        evidence = msgspec.structs.replace(evidence, client_error=error)
        verdict, findings = judge(evidence)
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

    async def _client_error(self, record: TrialRecord, evidence: Evidence) -> tuple[ClientError | None, str | None]:
        """The client's error at this engine's pace under this load, or why it is unknown; measured once for each."""
        if not self._experiment.client.calibrate:
            return None, "client.calibrate is off"
        if not self._fleet.is_local:
            return None, "a worker is on another host, and the truth server on this one"
        if evidence.client_loss or evidence.engine_death:
            return None, "the client was lost" if evidence.client_loss else "the engine died"
        if evidence.ramp is not None and evidence.ramp.has_failed:
            return None, "every request failed"
        key = (record.engine, record.load.label)
        try:
            if key not in self._client_errors:
                self._client_errors[key] = await self._calibrated(evidence)
        except (ClientFailed, TruthFailed) as error:
            return None, str(error)
        return self._client_errors[key], None

    async def _calibrated(self, evidence: Evidence) -> ClientError:
        """Calibrate once; if the result would invalidate the trial, twice more, and take the median."""
        shape = shape_of(evidence.load, evidence.requests)
        transport = self._experiment.client.transport
        error = await self._world.calibrate(self._fleet, shape, transport)
        if not client_faults(msgspec.structs.replace(evidence, client_error=error)):
            return error
        return median_of([error, *[await self._world.calibrate(self._fleet, shape, transport) for _ in range(2)]])


def _format_of(config: EngineConfig) -> Format:
    return Format(config.adapter, config.options, config.address)


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
