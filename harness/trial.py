"""One trial: warm up, put the load on, wait, decode, judge, store."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import msgspec

from engines import Engine, Server
from harness.client import Driver, HttpTransport, Issue, decode_stream
from harness.client.loop_lag import measured_loop_lag
from harness.clock import MonotonicClock
from harness.experiment import Experiment
from harness.telemetry import Sampler
from harness.verdict import Evidence, judge, warnings
from results.jsonl import Appender
from results.metrics import trial_window
from results.records import EngineDescription, Load, TelemetryRecord, TrialPlan, TrialRecord, Verdict
from results.store import RunFolder, TrialFolder
from workloads import PlannedSession, Tokenizer, TrafficPlan, arrival, plan_closed, plan_open, workload


class Side(msgspec.Struct, frozen=True):
    """A running engine, as trials see it."""

    engine: Engine
    server: Server
    description: EngineDescription


class Traffic(msgspec.Struct, frozen=True):
    """What one load level sends, made before any trial: the same for every engine and repeat."""

    warmup: tuple[PlannedSession, ...]
    plan: TrafficPlan


def make_traffic(experiment: Experiment, load: Load, tokenizer: Tokenizer) -> Traffic:
    """Warm-up sessions and the measured plan of one level, from seeds of their own."""
    source = workload(experiment.workload.name, experiment.workload.options)
    seed = experiment.traffic_seed(load)
    limits = experiment.trial
    warmup = plan_closed(source, tokenizer, f"{seed}/warmup", limits.warmup_requests)
    if load.rate_per_s is None:
        plan = plan_closed(source, tokenizer, seed, limits.max_requests)
    else:
        process = arrival(load.arrival or "poisson", load.rate_per_s)
        plan = plan_open(
            source, process, tokenizer, seed, duration_s=limits.duration_s, count=limits.max_requests
        )  # fmt: skip
    return Traffic(warmup.sessions, plan)


class TrialRunner:
    """Runs trials of one experiment into one run folder.

    Args:
        experiment: limits and seeds.
        run: where to.
        sampler: telemetry.
        tokenizer: for engines whose chunks must be counted by it.
    """

    def __init__(self, experiment: Experiment, run: RunFolder, sampler: Sampler, tokenizer: Tokenizer | None) -> None:
        self._experiment = experiment
        self._run = run
        self._sampler = sampler
        self._tokenizer = tokenizer

    async def run(self, plan: TrialPlan, order: int, side: Side, traffic: Traffic) -> TrialRecord:
        """Run one trial and store it; an engine that dies makes it INVALID, it does not raise."""
        folder = self._run.trial(plan.id)
        folder.create()
        started_ns = time.monotonic_ns()
        with folder.open_streams() as streams:
            driver, transport = self._driver(side, streams)
            try:
                async with self._sampler.into(folder.telemetry_log, side.server.pid), measured_loop_lag() as lag:
                    issue = await self._unless_death(side.server, self._drive(driver, plan.load, traffic))
            finally:
                await transport.close()
        ended_ns = time.monotonic_ns()
        with Appender(folder.telemetry_log) as telemetry:
            telemetry.append(lag.summary(ended_ns))
        issue = issue or Issue(started_ns, ended_ns)
        death = side.server.died()
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
            planned_requests=driver.planned,
            workload_sha256=traffic.plan.sha256,
            verdict=Verdict.INVALID,
            engine_description=side.description,
            engine_log_tail=list(death.log_tail) if death else [],
            start_s=side.server.start_s,
        )
        record = self._judged(record, folder, side, str(death) if death else None)
        folder.finish(record)
        return record

    def _driver(self, side: Side, streams: Appender) -> tuple[Driver, HttpTransport]:
        transport = HttpTransport(side.server.base_url)
        timeout_s = self._experiment.trial.timeout_s
        driver = Driver(
            transport, side.engine.dialect, side.engine.model_id,
            clock=MonotonicClock(), record=streams.append, timeout_s=timeout_s,
        )  # fmt: skip
        return driver, transport

    async def _drive(self, driver: Driver, load: Load, traffic: Traffic) -> Issue:
        limits = self._experiment.trial
        await asyncio.sleep(limits.idle_s)
        await driver.warm_up(traffic.warmup, min(2, len(traffic.warmup)) or 1)
        sessions = traffic.plan.sessions
        if load.concurrency is None:
            return await driver.open_loop(sessions, limits.duration_s)
        return await driver.closed_loop(sessions, load.concurrency, limits.duration_s, limits.min_requests)

    async def _unless_death(self, server: Server, work: Coroutine[Any, Any, Issue]) -> Issue | None:
        """The work's result; None, and the work cancelled, when the engine ends first."""
        tasks = (asyncio.ensure_future(work), asyncio.ensure_future(server.ended.wait()))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return tasks[0].result() if tasks[0].done() else None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _judged(self, record: TrialRecord, folder: TrialFolder, side: Side, death: str | None) -> TrialRecord:
        """Decode the log, store the requests, and fill in verdict and warnings."""
        requests = [
            decode_stream(stream, side.engine.dialect, self._tokenizer) for stream in folder.read_streams().records
        ]
        folder.write_requests(requests)
        telemetry: list[TelemetryRecord] = folder.read_telemetry().records
        evidence = Evidence(
            requests=requests,
            telemetry=telemetry,
            load=record.load,
            window=trial_window(record, requests),
            max_failure_share=self._experiment.trial.max_failure_share,
            engine_death=death,
            planned=record.planned_requests,
        )
        verdict, reasons = judge(evidence)
        return msgspec.structs.replace(record, verdict=verdict, reasons=reasons, warnings=warnings(evidence))
