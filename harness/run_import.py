"""Imports other tools' result files as runs, shown, compared and judged like native runs, and marked as imported."""

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.harness.client.decode.token_counts import apportion
from bakeoff.harness.experiment.config import TrialConfig
from bakeoff.harness.host.environment import VERSION
from bakeoff.harness.verdict.evidence import Evidence
from bakeoff.harness.verdict.judge import judge
from bakeoff.results.errors import NotImportable
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import warning
from bakeoff.results.log.run_log import RunEnded, RunStarted, TrialFinished
from bakeoff.results.log.store import RunFolder, TrialFolder, new_run_id
from bakeoff.results.records import (
    EngineDescription,
    Outcome,
    RequestRecord,
    RunStatus,
    TrialPlan,
    TrialRecord,
    Verdict,
    Window,
    WindowKind,
)
from bakeoff.results.schema import SCHEMA_VERSION
from bakeoff.results.views.import_aiperf import read_aiperf
from bakeoff.results.views.import_guidellm import read_guidellm
from bakeoff.results.views.import_vllm import read_vllm, requests_of
from bakeoff.results.views.imported import Imported, checked_load

WORKLOAD = "imported"
_MARKED = "imported from {tool}: its client's stamps, whose error was not measured; no telemetry"
_FEWEST_TIMES = 3
_TELLING = 32
"""Prompts of a closed loop by which two measurements of it are told to be of the same traffic."""
"""With fewer times in every answer, nothing tells when answers advanced."""
_VLLM = "vllm bench serve"
NOTE = (
    f"{_MARKED.format(tool=_VLLM)}; its file does not name the time zone of its date, which is shown as if it were UTC"
)
"""Printed below the tables of a run imported from vllm bench serve."""


def import_vllm(file: Path, root: Path) -> RunFolder:
    """Import a detailed result file of ``vllm bench serve`` as a new run below ``root``.

    Results at the same load become repeats. Latencies come from the file's timestamps. In an open loop they count from
    the planned arrival as ours do, so they include queueing in the client, which vLLM's own table leaves out.

    Raises:
        NotImportable: the file is damaged, or has no times of single requests.
        NotWritable: the folder cannot be made.
    """
    read = read_vllm(file)
    several = len({result.model_id for result in read}) > 1
    results = [
        Imported(
            f"{result.engine} {result.model_id}" if several else result.engine, result.model_id, result.backend,
            checked_load(result.load, str(file)), requests_of(result, apportion), _created(result.date),
        )
        for result in read
    ]  # fmt: skip
    return _import(file, root, results, _VLLM, NOTE)


def import_aiperf(path: Path, root: Path) -> RunFolder:
    """Import ``profile_export.jsonl`` of AIPerf, or the folder that holds it, as a new run below ``root``.

    Raises:
        NotImportable, NotWritable: as :func:`import_vllm`.
    """
    return _import(path, root, read_aiperf(path), "AIPerf", _MARKED.format(tool="AIPerf"))


def import_guidellm(file: Path, root: Path) -> RunFolder:
    """Import ``benchmarks.json`` of GuideLLM as a new run below ``root``; benchmarks at one load become repeats.

    Raises:
        NotImportable, NotWritable: as :func:`import_vllm`.
    """
    note = f"{_MARKED.format(tool='GuideLLM')}; ITL is its mean within each answer, since the file has no single times"
    return _import(file, root, read_guidellm(file), "GuideLLM", note)


IMPORTS = {"vllm": import_vllm, "aiperf": import_aiperf, "guidellm": import_guidellm}
"""By the name of the tool."""


def _import(file: Path, root: Path, results: list[Imported], tool: str, note: str) -> RunFolder:
    outcomes = [request.outcome for result in results for request in result.requests]
    cancelled = outcomes.count(Outcome.CANCELLED)
    if cancelled == len(outcomes):
        raise NotImportable(f"{file}: every request was cancelled, so there is nothing to measure")
    if cancelled:
        note += f"; {cancelled} of {len(outcomes)} requests were cancelled by the tool: neither answered nor failed"
    plans = _plans(results)
    modified = datetime.fromtimestamp(file.stat().st_mtime, UTC).isoformat(timespec="seconds")
    created = results[0].measured_utc or modified
    experiment = {"imported_from": str(file), "tool": tool, "backends": [result.backend for result in results]}
    started = _started(experiment, plans, created, note)
    run = RunFolder.create(root, started)
    finished: list[TrialFinished] = []
    for order, (plan, result) in enumerate(zip(plans, results, strict=True), start=1):
        folder = run.trial(plan.id)
        folder.create()
        folder.write_requests(result.requests)
        finished.append(
            TrialFinished(record=_judged(_record(plan, order, result, tool), result.requests, folder, tool))
        )
    run.write_log([started, *finished, RunEnded(status=RunStatus.COMPLETE, ended_utc=created)])
    return run


def _plans(results: list[Imported]) -> list[TrialPlan]:
    """Plan one trial per result; results of one engine at one load are repeats."""
    plans: list[TrialPlan] = []
    for number, result in enumerate(results, start=1):
        earlier = sum((plan.engine, plan.load) == (result.engine, result.load) for plan in plans)
        plans.append(TrialPlan(f"r{earlier + 1}-import-{number}", result.engine, WORKLOAD, result.load, earlier + 1))
    return plans


def _record(plan: TrialPlan, order: int, result: Imported, tool: str) -> TrialRecord:
    requests = result.requests
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
        engine_description=EngineDescription(result.engine, tool, model=result.model),
    )


def _judged(record: TrialRecord, requests: list[RequestRecord], folder: TrialFolder, tool: str) -> TrialRecord:
    evidence = Evidence(
        requests=requests,
        telemetry=[],
        load=record.load,
        window=record.window,
        max_failure_share=TrialConfig().max_failure_share,
        planned=record.planned_requests,
    )
    verdict, findings = judge(evidence)
    if all(len(request.chunk_ns) < _FEWEST_TIMES for request in requests):
        findings = [found for found in findings if found.code is not FindingCode.ENGINE_FROZE]
    imported = warning(FindingCode.IMPORTED, tool=tool)
    return msgspec.structs.replace(record, verdict=verdict, findings=[*findings, imported], files=folder.stored_files())


def _fingerprint(result: Imported) -> str:
    """Hash the prompt lengths in order: the files have no other data on traffic. Equal seeds give equal lengths.

    A closed loop sends as many as the engine answers, so that its first ones tell.
    """
    lengths = [request.prompt_tokens for request in sorted(result.requests, key=lambda request: request.planned_ns)]
    if result.load.concurrency is not None:
        lengths = lengths[:_TELLING]
    return hashlib.sha256(msgspec.json.encode(lengths)).hexdigest()


def _started(experiment: dict[str, Any], plans: list[TrialPlan], created: str, note: str) -> RunStarted:
    return RunStarted(
        schema_version=SCHEMA_VERSION,
        run_id=new_run_id("import"),
        name="import",
        created_utc=created,
        pid=os.getpid(),
        host="unknown",
        bakeoff_version=VERSION,
        git_commit=None,
        experiment=experiment,
        environment={},
        plan=plans,
        notes=[note],
    )


def _created(date: str) -> str | None:
    """The time of the measurement in UTC, as ISO 8601; None if ``date`` is not of the form ``20261120-101500``.

    The file does not name its time zone. UTC is assumed, so that the same file has the same date wherever it is
    imported.
    """
    try:
        return datetime.strptime(date, "%Y%m%d-%H%M%S").replace(tzinfo=UTC).isoformat(timespec="seconds")
    except ValueError:
        return None
