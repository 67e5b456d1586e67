"""Imports other tools' result files as runs, shown, compared and judged like native runs, and marked as imported."""

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bakeoff.harness.client.token_counts import apportion
from bakeoff.harness.experiment.config import TrialConfig
from bakeoff.harness.host.environment import VERSION
from bakeoff.harness.verdict.judge import Evidence, judge
from bakeoff.results.findings import FindingCode, warning
from bakeoff.results.log.run_log import RunEnded, RunStarted, TrialFinished
from bakeoff.results.log.store import RunFolder, TrialFolder, new_run_id
from bakeoff.results.records import (
    SCHEMA_VERSION,
    EngineDescription,
    RequestRecord,
    RunStatus,
    TrialPlan,
    TrialRecord,
    Verdict,
    Window,
    WindowKind,
)
from bakeoff.results.views.import_vllm import VllmResult, read_vllm, requests_of

WORKLOAD = "imported"
TOOL = "vllm bench serve"
NOTE = (
    f"imported from {TOOL}: its client's stamps, whose error was not measured; no telemetry; its file does not name "
    "the time zone of its date, which is shown as if it were UTC"
)
"""Printed below the run's tables."""


def import_vllm(file: Path, root: Path) -> RunFolder:
    """Import a detailed result file of ``vllm bench serve`` as a new run below ``root``.

    Results at the same load become repeats. Latencies come from the file's timestamps. In an open loop they count from
    the planned arrival as ours do, so they include queueing in the client, which vLLM's own table leaves out.

    Raises:
        NotImportable: the file is damaged, or has no times of single requests.
        NotWritable: the folder cannot be made.
    """
    results = read_vllm(file)
    plans = _plans(results)
    created = _created(results[0].date, file)
    started = _started(file, results, plans, created)
    run = RunFolder.create(root, started)
    finished: list[TrialFinished] = []
    for order, (plan, result) in enumerate(zip(plans, results, strict=True), start=1):
        folder = run.trial(plan.id)
        folder.create()
        requests = requests_of(result, apportion)
        folder.write_requests(requests)
        finished.append(TrialFinished(record=_judged(_record(plan, order, result, requests), requests, folder)))
    run.write_log([started, *finished, RunEnded(status=RunStatus.COMPLETE, ended_utc=created)])
    return run


def _plans(results: list[VllmResult]) -> list[TrialPlan]:
    """Plan one trial per result; results of one engine at one load are repeats."""
    plans: list[TrialPlan] = []
    for number, result in enumerate(results, start=1):
        earlier = sum((plan.engine, plan.load) == (result.engine, result.load) for plan in plans)
        plans.append(TrialPlan(f"r{earlier + 1}-import-{number}", result.engine, WORKLOAD, result.load, earlier + 1))
    return plans


def _record(plan: TrialPlan, order: int, result: VllmResult, requests: list[RequestRecord]) -> TrialRecord:
    start_ns = min(request.planned_ns for request in requests)
    end_ns = max(request.ended_ns for request in requests)
    last_planned_ns = max(request.planned_ns for request in requests)
    return TrialRecord(
        id=plan.id,
        engine=plan.engine,
        workload=plan.workload,
        load=plan.load,
        repeat=plan.repeat,
        order=order,
        started_ns=start_ns,
        ended_ns=end_ns,
        issue_start_ns=start_ns,
        issue_end_ns=end_ns if plan.load.rate_per_s is None else last_planned_ns,
        window=Window(start_ns, end_ns + 1, WindowKind.MAKESPAN),  # its end is exclusive
        planned_requests=len(requests),
        workload_sha256=_fingerprint(result),
        verdict=Verdict.INVALID,
        engine_description=EngineDescription(result.engine, TOOL, model=result.model_id),
    )


def _judged(record: TrialRecord, requests: list[RequestRecord], folder: TrialFolder) -> TrialRecord:
    evidence = Evidence(
        requests=requests,
        telemetry=[],
        load=record.load,
        window=record.window,
        max_failure_share=TrialConfig().max_failure_share,
        planned=record.planned_requests,
    )
    verdict, findings = judge(evidence)
    imported = warning(FindingCode.IMPORTED, tool=TOOL)
    return msgspec.structs.replace(record, verdict=verdict, findings=[*findings, imported], files=folder.stored_files())


def _fingerprint(result: VllmResult) -> str:
    """Hash the prompt lengths in order: the file has no other data on traffic. Equal seeds give equal lengths."""
    return hashlib.sha256(msgspec.json.encode(result.input_lens)).hexdigest()


def _started(file: Path, results: list[VllmResult], plans: list[TrialPlan], created: str) -> RunStarted:
    return RunStarted(
        schema_version=SCHEMA_VERSION,
        run_id=new_run_id("import"),
        name="import",
        created_utc=created,
        pid=os.getpid(),
        host="unknown",
        bakeoff_version=VERSION,
        git_commit=None,
        experiment={"imported_from": str(file), "tool": TOOL, "backends": [result.backend for result in results]},
        environment={},
        plan=plans,
        notes=[NOTE],
    )


def _created(date: str, file: Path) -> str:
    """The time of the measurement in UTC, as ISO 8601.

    ``date`` has the form ``20261120-101500``. The file does not name its time zone. UTC is assumed, so that the same
    file has the same date wherever it is imported. If ``date`` has another form, the file's modification time is used.
    """
    try:
        measured = datetime.strptime(date, "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        measured = datetime.fromtimestamp(file.stat().st_mtime, UTC)
    return measured.isoformat(timespec="seconds")
