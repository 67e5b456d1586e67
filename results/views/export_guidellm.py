"""A run as GuideLLM's report, ``benchmarks.json``: one benchmark per trial, as in its sweeps.

Its own ``GenerativeBenchmarksReport.load_file`` reads it, and so do its HTML, CSV and console outputs.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from bakeoff.results.records import Load, Outcome
from bakeoff.results.run.cells import Trial
from bakeoff.results.run.run import Run
from bakeoff.results.views.base import Log
from bakeoff.results.views.distribution import plain
from bakeoff.results.views.guidellm import VERSION, Call, calls, window
from bakeoff.results.views.guidellm_metrics import STATUSES, grouped, late_s, lines, metrics
from bakeoff.results.views.wall_clock import WallClock

SCHEMA_VERSION = 2
_DELAYS = (
    "queued_time_avg", "resolve_start_delay_avg", "resolve_targeted_start_delay_avg", "request_start_delay_avg",
    "resolve_end_delay_avg", "resolve_time_avg", "finalized_delay_avg", "processed_delay_avg",
)  # fmt: skip
"""Times within GuideLLM's own scheduler: -1, which it writes for unknown times."""


def encode(run: Run, trials: Sequence[Trial]) -> bytes:
    """Report of those ``trials``, at least one, that have requests."""
    clock = WallClock(run)
    measured = [(trial, Log.of(trial)) for trial in trials]
    benchmarks = [
        _benchmark(run, trial, log, number, clock) for number, (trial, log) in enumerate(measured) if log.requests
    ]
    report: dict[str, Any] = {
        "metadata": {
            "version": SCHEMA_VERSION,
            "guidellm_version": VERSION,
            "python_version": str(run.manifest.environment.get("python", "unknown")),
            "platform": f"exported by bakeoff {run.manifest.bakeoff_version}",
        },
        "config": _scenario(trials),
        "benchmarks": benchmarks,
        "conclusions": [],
    }
    return msgspec.json.encode(report)


def _benchmark(run: Run, trial: Trial, log: Log, number: int, clock: WallClock) -> dict[str, Any]:
    groups = grouped(calls(log))
    start_s, end_s = (clock.seconds(t_s * 1e9) for t_s in window(groups["total"]))
    counts = {status: len(group) for status, group in groups.items()}
    times = {
        "start_time": clock.seconds(log.start_ns), "request_start_time": start_s, "measure_start_time": start_s,
        "measure_end_time": end_s, "request_end_time": end_s, "end_time": clock.seconds(trial.record.ended_ns),
    }  # fmt: skip
    return {
        "type_": "generative_benchmark",
        "config": _config(run, trial, number),
        "scheduler_state": _state(times, counts),
        "scheduler_metrics": {
            **times,
            "requests_made": counts,
            **dict.fromkeys(_DELAYS, -1.0),
            "request_targeted_start_delay_avg": plain(map(late_s, groups["total"])).mean,
            "request_time_avg": plain(call.latency_s for call in groups["total"]).mean,
            "strategy_type": _strategy(log.load)["type_"],
        },
        "metrics": metrics(groups, log.load),
        "requests": {
            **{status: [_stats(call, clock) for call in groups[status]] for status in STATUSES[:3]},
            "total": None,
        },
        "warnings": [],
        "start_time": start_s,
        "end_time": end_s,
        "duration": end_s - start_s,
        "warmup_duration": 0.0,
        "cooldown_duration": 0.0,
    }


def _stats(call: Call, clock: WallClock) -> dict[str, Any]:
    """One request."""
    record = call.record

    def at(t_s: float | None) -> float | None:
        return None if t_s is None else clock.seconds(t_s * 1e9)

    ended = at(call.end_s)
    timings = {
        "targeted_start": clock.seconds(record.planned_ns), "queued": clock.seconds(record.planned_ns),
        "dequeued": clock.seconds(record.planned_ns), "scheduled_at": clock.seconds(record.planned_ns),
        "resolve_start": at(call.start_s), "request_start": at(call.start_s),
        "first_request_iteration": None if record.first_byte_ns is None else clock.seconds(record.first_byte_ns),
        "first_token_iteration": at(call.first_s), "first_output_token_iteration": at(call.first_s),
        "last_token_iteration": at(call.last_s), "last_request_iteration": ended,
        "request_iterations": lines(record), "token_iterations": call.iterations,
        "request_end": ended, "resolve_end": ended, "finalized": ended,
    }  # fmt: skip
    status = "completed" if call.success else "cancelled" if record.outcome is Outcome.CANCELLED else "errored"
    return {
        "type_": "generative_request_stats",
        "request_id": f"{record.index}",
        "output": record.text or None,
        "info": {
            "request_id": f"{record.index}", "conversation_id": record.session, "turn_index": record.turn,
            "preceding_nodes": record.turn, "status": status, "timings": timings, "error": record.error,
        },
        "input_metrics": {
            "text_tokens": call.prompt_tokens, "cached_tokens": record.cached_tokens,
            "total_tokens": call.prompt_tokens,
        },
        "output_metrics": {
            "text_tokens": call.output_tokens, "text_words": len(record.text.split()),
            "text_characters": len(record.text), "total_tokens": call.output_tokens,
        },
        "request_start_time": at(call.start_s),
        "request_end_time": ended,
        **_derived(call),
    }  # fmt: skip


def _derived(call: Call) -> dict[str, Any]:
    """Derived values that the tool stores for other readers of the file."""
    total, output = (call.prompt_tokens or 0) + (call.output_tokens or 0), call.output_tokens or 0
    speed = 1 / call.latency_s if call.latency_s > 0 else None
    return {
        "request_latency": call.latency_s,
        "prompt_tokens": call.prompt_tokens,
        "output_tokens": call.output_tokens,
        "total_tokens": total,
        "time_to_first_token_ms": call.ttft_ms or None,
        "time_to_first_output_token_ms": call.ttft_ms or None,
        "time_per_output_token_ms": call.tpot_ms or None,
        "inter_token_latency_ms": call.itl_ms or None,
        "tokens_per_second": total * speed if speed else None,
        "output_tokens_per_second": output * speed if speed else None,
    }


def _scenario(trials: Sequence[Trial]) -> dict[str, Any]:
    """Configuration of the report: GuideLLM's arguments for the first trial's load."""
    return {
        "metadata": {"labels": {"source": "bakeoff"}},
        "spec": {
            "backend": _backend(trials[0]),
            "profile": _profile(trials[0].record.load),
            "data": [{"kind": "synthetic_text", "prompt_tokens": 1, "output_tokens": 1}],
        },
    }


def _config(run: Run, trial: Trial, number: int) -> dict[str, Any]:
    return {
        "id_": f"{run.manifest.run_id}/{trial.record.id}",
        "run_id": run.manifest.run_id,
        "run_index": number,
        "strategy": _strategy(trial.record.load),
        "constraints": {},
        "profile": _profile(trial.record.load),
        "requests": {"workload": trial.record.workload, "workload_sha256": trial.record.workload_sha256},
        "backend": _backend(trial),
        "environment": {"source": "bakeoff", "trial": trial.record.id, "verdict": trial.record.verdict.value},
    }


def _backend(trial: Trial) -> dict[str, Any]:
    description = trial.record.engine_description
    url = description.url if description else None
    model = description.model if description else None
    return {"kind": "openai_http", "target": url or "http://localhost", "model": model or trial.record.engine}


def _strategy(load: Load) -> dict[str, Any]:
    if load.concurrency is not None:
        return {"type_": "concurrent", "streams": load.concurrency, "max_concurrency": load.concurrency}
    return {"type_": _arrival(load), "rate": load.rate_per_s}


def _profile(load: Load) -> dict[str, Any]:
    if load.concurrency is not None:
        return {"kind": "concurrent", "streams": [load.concurrency]}
    return {"kind": _arrival(load), "rate": [load.rate_per_s]}


def _arrival(load: Load) -> str:
    """GuideLLM's arrival process nearest to ours; it has two."""
    return "constant" if load.arrival == "constant" else "poisson"


def _state(times: dict[str, float], counts: dict[str, int]) -> dict[str, Any]:
    return {
        "node_id": 0,
        "num_processes": 1,
        "start_time": times["start_time"],
        "end_time": times["end_time"],
        "start_requests_time": times["request_start_time"],
        "end_requests_time": times["request_end_time"],
        "created_requests": counts["total"],
        "processed_requests": counts["total"],
        "successful_requests": counts["successful"],
        "errored_requests": counts["errored"],
        "cancelled_requests": counts["incomplete"],
    }
