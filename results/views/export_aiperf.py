"""A trial as the two result files of AIPerf: ``profile_export_aiperf.json`` and ``profile_export.jsonl``.

The first holds the statistics, the second one line per request. Its own plots read a folder with both.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from bakeoff.results.records import RequestRecord
from bakeoff.results.run.cells import Trial
from bakeoff.results.run.run import Run
from bakeoff.results.views.aiperf import VERSION, Call, calls, duration_s
from bakeoff.results.views.base import Log, sent_ns, until_closed_s
from bakeoff.results.views.statistics import rate, stat_of
from bakeoff.results.views.wall_clock import WallClock

SCHEMA_VERSION = "1.4"
SUMMARY, RECORDS = "profile_export_aiperf.json", "profile_export.jsonl"
_PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)


def encode(run: Run, trial: Trial) -> dict[str, bytes]:
    """Both files of one trial by name."""
    lines = b"".join(msgspec.json.encode(line) + b"\n" for line in records(run, trial))
    return {SUMMARY: msgspec.json.format(msgspec.json.encode(summary(run, trial))) + b"\n", RECORDS: lines}


def summary(run: Run, trial: Trial) -> dict[str, Any]:
    """The statistics, in milliseconds and tokens."""
    log, clock = Log.of(trial), WallClock(run)
    good = calls(log)
    phase_s = until_closed_s(log)
    prompt = [_prompt_tokens(call.record) for call in good]
    output = [call.output_tokens for call in good]
    last_ns = max((request.ended_ns for request in log.requests), default=log.start_ns)
    failed = len(log.requests) - len(good)
    return {
        "schema_version": SCHEMA_VERSION,
        "aiperf_version": VERSION,
        "benchmark_id": f"{run.manifest.run_id}/{trial.record.id}",
        "request_throughput": _scalar("requests/sec", rate(len(good), phase_s)),
        **_distributions(good),
        "input_sequence_length": _distribution("tokens", prompt),
        "request_count": _scalar("requests", len(good)),
        "output_token_throughput": _scalar("tokens/sec", rate(sum(output), phase_s)),
        "total_token_throughput": _scalar("tokens/sec", rate(sum(output) + sum(prompt), phase_s)),
        "benchmark_duration": _scalar("sec", duration_s(good)),
        "total_output_tokens": _scalar("tokens", sum(output)),
        "total_isl": _scalar("tokens", sum(prompt)),
        "total_osl": _scalar("tokens", sum(output)),
        **({"error_request_count": _scalar("requests", failed)} if failed else {}),
        "was_cancelled": False,
        "is_complete": True,
        "error_summary": _errors(log, good),
        "start_time": clock.text(log.start_ns),
        "end_time": clock.text(last_ns),
        "metadata": {"exported_by": f"bakeoff {run.manifest.bakeoff_version}", "model": _model(trial)},
    }


def records(run: Run, trial: Trial) -> list[dict[str, Any]]:
    """One object per request."""
    log, clock = Log.of(trial), WallClock(run)
    good = {call.record.index: call for call in calls(log)}
    return [_record(number, request, good.get(request.index), clock) for number, request in enumerate(log.requests)]


def _record(number: int, request: RequestRecord, call: Call | None, clock: WallClock) -> dict[str, Any]:
    start_ns = sent_ns(request)
    metadata = {
        "session_num": number,
        "conversation_id": request.session,
        "turn_index": request.turn,
        "credit_issued_ns": clock.nanoseconds(request.planned_ns),
        "request_start_ns": clock.nanoseconds(start_ns),
        "request_ack_ns": None if request.first_byte_ns is None else clock.nanoseconds(request.first_byte_ns),
        "request_end_ns": clock.nanoseconds(request.ended_ns),
        "worker_id": "bakeoff",
        "record_processor_id": "bakeoff",
        "benchmark_phase": "profiling",
        "was_cancelled": request.outcome.value == "cancelled",
    }
    if call is None:
        return {"metadata": metadata, "metrics": {}, "error": _details(request)}
    metrics = {
        name: {"value": value, "unit": unit}
        for name, (unit, value) in _per_request(call).items()
        if value is not None and value != []
    }
    return {"metadata": metadata, "metrics": metrics}


def _per_request(call: Call) -> dict[str, tuple[str, Any]]:
    """Metrics of one request: unit and value."""
    itl = call.itl_s
    gaps = [gap * 1e3 for gap in call.gaps_s]
    return {
        "time_to_first_token": ("ms", call.ttft_s * 1e3),
        "time_to_second_token": ("ms", gaps[0] if gaps else None),
        "request_latency": ("ms", call.latency_s * 1e3),
        "inter_token_latency": ("ms", None if itl is None else itl * 1e3),
        "inter_chunk_latency": ("ms", gaps),
        "output_token_throughput_per_user": ("tokens/sec/user", 1 / itl if itl else None),
        "e2e_output_token_throughput": (
            "tokens/sec/user", call.output_tokens / call.latency_s if call.latency_s > 0 else None,
        ),
        "output_sequence_length": ("tokens", call.output_tokens),
        "output_token_count": ("tokens", call.output_tokens),
        "input_sequence_length": ("tokens", _prompt_tokens(call.record)),
    }  # fmt: skip


def _distributions(good: Sequence[Call]) -> dict[str, Any]:
    """Statistics of each metric over requests; the inter-chunk latency pools the gaps of all requests."""
    samples: dict[str, tuple[str, list[float]]] = {}
    for call in good:
        for name, (unit, value) in _per_request(call).items():
            values = samples.setdefault(name, (unit, []))[1]
            values.extend(value if isinstance(value, list) else [] if value is None else [value])
    return {name: _distribution(unit, values) for name, (unit, values) in samples.items() if values}


def _distribution(unit: str, values: Sequence[float]) -> dict[str, Any] | None:
    if not values:
        return None
    names = {"avg": "mean", **{f"p{q}": f"p{q}" for q in _PERCENTILES}, "min": "min", "max": "max", "std": "std"}
    statistics = {name: stat_of(values, stat) for name, stat in names.items()}
    return {"unit": unit, **statistics, "count": len(values), "sum": float(sum(values))}


def _scalar(unit: str, value: float | None) -> dict[str, Any] | None:
    return None if value is None else {"unit": unit, "avg": float(value)}


def _errors(log: Log, good: Sequence[Call]) -> list[dict[str, Any]]:
    """Failures with their counts."""
    fine = {call.record.index for call in good}
    failures = [_details(request) for request in log.requests if request.index not in fine]
    different = [details for i, details in enumerate(failures) if details not in failures[:i]]
    return [{"error_details": details, "count": failures.count(details)} for details in different]


def _details(request: RequestRecord) -> dict[str, Any]:
    message = request.error or "no content"
    return {"code": request.status, "type": request.outcome.value, "message": message}


def _model(trial: Trial) -> str:
    description = trial.record.engine_description
    return (description.model if description else None) or trial.record.engine


def _prompt_tokens(request: RequestRecord) -> int:
    return request.prompt_tokens or request.requested_input_tokens or 0
