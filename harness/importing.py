"""Other tools' result files as runs of ours: shown, compared and judged like any other, and marked as imported."""

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from harness.client.token_counts import apportion
from harness.experiment.config import TrialConfig
from harness.host.environment import VERSION
from harness.verdict.judge import Evidence, judge
from results.findings import FindingCode, warning
from results.records import (
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
from results.run_log import RunEnded, RunStarted, TrialFinished
from results.store import RunFolder, new_run_id
from results.views.import_vllm import VllmResult, read_vllm, requests_of

WORKLOAD = "imported"
TOOL = "vllm bench serve"
NOTE = f"imported from {TOOL}: its client's stamps, whose error was not measured; no telemetry"


def import_vllm(file: Path, root: Path) -> RunFolder:
    """Make a run below ``root`` of a detailed result file of ``vllm bench serve``.

    Several results in one file at the same load are its repeats. Latencies are those of the file's own times; where it
    had a rate, they count from the planned arrival as ours do, which its own table leaves out.

    Raises:
        NotImportable: the file is damaged, or holds no times of single requests.
        NotWritable: the folder cannot be made.
    """
    found = read_vllm(file)
    plans = _plans(found)
    created = _created(found[0].date, file)
    started = _started(file, found, plans, created)
    run = RunFolder.create(root, started)
    finished: list[TrialFinished] = []
    for order, (plan, result) in enumerate(zip(plans, found, strict=True), start=1):
        folder = run.trial(plan.id)
        folder.create()
        requests = requests_of(result, apportion)
        folder.write_requests(requests)
        finished.append(TrialFinished(record=_judged(_record(plan, order, result, requests), requests)))
    run.write_log([started, *finished, RunEnded(status=RunStatus.COMPLETE, ended_utc=created)])
    return run


def _plans(found: list[VllmResult]) -> list[TrialPlan]:
    """One trial per result; those of one engine at one load are repeats."""
    plans: list[TrialPlan] = []
    for number, result in enumerate(found, start=1):
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
        window=Window(start_ns, end_ns + 1, WindowKind.MAKESPAN),
        planned_requests=len(requests),
        workload_sha256=_fingerprint(result),
        verdict=Verdict.INVALID,
        engine_description=EngineDescription(result.engine, TOOL, model=result.model_id),
    )


def _judged(record: TrialRecord, requests: list[RequestRecord]) -> TrialRecord:
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
    return msgspec.structs.replace(record, verdict=verdict, findings=[*findings, imported])


def _fingerprint(result: VllmResult) -> str:
    """What the file tells of the traffic: the lengths of the prompts in order. Equal seeds give equal ones."""
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
    """When it was measured, in UTC as ISO 8601.

    ``date`` is ``20261120-101500`` in the local time of the client's machine, which the file does not name: this
    machine's is taken. Where the text is another, it is the time at which the file was written.
    """
    try:
        measured = datetime.strptime(date, "%Y%m%d-%H%M%S").astimezone(UTC)
    except ValueError:
        measured = datetime.fromtimestamp(file.stat().st_mtime, UTC)
    return measured.isoformat(timespec="seconds")
