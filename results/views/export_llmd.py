"""A trial as a report of llm-d's benchmark: JSON, which its YAML reader reads too.

All figures are of our definitions (docs/definitions.md) over the trial's window: latencies of the successful requests
planned inside, gaps between tokens that end inside, rates over its length. Percentiles are linear (numpy), and like
those of other tools they leave failed requests out and refuse no small sample.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.results.metrics import has_failed
from bakeoff.results.metrics.catalogue import DEFINITIONS, LATENCIES
from bakeoff.results.metrics.declaration import TrialData
from bakeoff.results.metrics.trial import share_of
from bakeoff.results.records import EngineDescription, Outcome, RequestRecord, Slo
from bakeoff.results.run.cells import Trial
from bakeoff.results.run.run import Run
from bakeoff.results.views import llmd_format
from bakeoff.results.views.base import engine_tokens
from bakeoff.results.views.llmd_format import RATES, TOOL, Origin
from bakeoff.results.views.statistics import stat_of
from bakeoff.results.views.wall_clock import WallClock

UNKNOWN = "unknown"
_STATISTICS = {
    "mean": "mean", "stddev": "std", "min": "min", "p0p1": "p0.1", "p1": "p1", "p5": "p5", "p10": "p10", "p25": "p25",
    "p50": "p50", "p75": "p75", "p90": "p90", "p95": "p95", "p99": "p99", "p99p9": "p99.9", "max": "max",
}  # fmt: skip
_PARALLELISM = {"tensor_parallel_size": "tp", "pipeline_parallel_size": "pp", "data_parallel_size": "dp"}
_MEANING = (
    "figures by the definitions of Bakeoff, over the window from run.time.start to run.time.end: latencies count from "
    "the planned start of a request, rates are over the length of the window"
)


def encode(run: Run, trial: Trial) -> bytes:
    """Report of one trial."""
    return msgspec.json.format(msgspec.json.encode(report(run, trial)), indent=2) + b"\n"


def report(run: Run, trial: Trial) -> dict[str, Any]:
    """The JSON object."""
    record = trial.record
    load = _load(run, trial)
    state = f"{record.engine}, {record.workload} at {record.load.label}, repeat {record.repeat}: {record.verdict}"
    return {
        "version": llmd_format.VERSION,
        "run": {
            "uid": f"{run.manifest.run_id}-{record.id}",
            "eid": run.manifest.run_id,
            "time": _time(run, trial),
            "description": f"{run.manifest.name}: {state}",
        },
        "scenario": {
            **({"stack": [_component(run, trial, record.engine_description)]} if record.engine_description else {}),
            **({"load": load} if load else {}),
        },
        "results": {
            "request_performance": {
                "aggregate": {
                    "requests": _requests(trial),
                    "latency": _latency(trial),
                    "throughput": _throughput(trial),
                }
            }
        },
    }


def _time(run: Run, trial: Trial) -> dict[str, str]:
    """The window: labels of day and time, and its length."""
    clock = WallClock(run)
    start, end = (
        datetime.fromtimestamp(clock.seconds(t_ns), UTC).isoformat()
        for t_ns in (trial.window.start_ns, trial.window.end_ns)
    )
    return {"start": start, "end": end, "duration": f"PT{trial.window.length_s:.6f}S"}


def _component(run: Run, trial: Trial, description: EngineDescription) -> dict[str, Any]:
    """The engine; of kind ``generic`` if the model or the number of its accelerators is unknown."""
    accelerator = _accelerator(run.manifest.environment, description)
    standardized: dict[str, Any] = {
        "kind": "generic",
        "tool": description.adapter,
        "tool_version": description.version or UNKNOWN,
        **({"model": {"name": description.model}} if description.model else {}),
    }
    if accelerator and description.model:
        engine = {"kind": "inference_engine", "role": "replica", "replicas": 1, "accelerator": accelerator}
        standardized |= engine
    native = {
        "args": _arguments(description.argv),
        "envars": description.env,
        **({"config": description.settings} if description.settings else {}),
    }
    lasting = {**native, "args": [word for word in description.argv if word not in description.drawn]}
    return {
        "metadata": {
            "label": trial.record.engine,
            "cfg_id": hashlib.sha256(msgspec.json.encode(lasting, order="sorted")).hexdigest(),
        },
        "standardized": standardized,
        "native": native,
    }


def _accelerator(environment: Mapping[str, Any], description: EngineDescription) -> dict[str, Any] | None:
    """Accelerators of an engine that the run started on its own machine; None if their number is unknown."""
    if not description.argv or Path(description.argv[0]).name == "ssh":
        return None
    names = sorted({str(gpu.get("name")) for gpu in environment.get("gpus") or []})
    if not names:
        return {"model": "none", "count": 0, "parallelism": {}}
    stated = {
        short: description.settings.get(name, description.asked.get(name)) for name, short in _PARALLELISM.items()
    }
    sizes = {short: size for short, size in stated.items() if isinstance(size, int)}
    if "tp" not in sizes:
        return None
    return {"model": ", ".join(names), "count": math.prod(sizes.values()), "parallelism": sizes}


def _arguments(argv: Sequence[str]) -> dict[str, Any]:
    """A command line as a table: flag → value, None for a flag without one, a list for a flag given several times."""
    table: dict[str, Any] = {}
    flag = "command"
    for word in argv:
        if word.startswith("-") and not word.lstrip("-").replace(".", "").isdigit():
            flag, has_value, value = word.partition("=")
            table.setdefault(flag, []).extend([value] if has_value else [])
        else:
            table.setdefault(flag, []).append(word)
    return {
        name: " ".join(values) if name == "command" else values[0] if len(values) == 1 else values or None
        for name, values in table.items()
    }


def _load(run: Run, trial: Trial) -> dict[str, Any] | None:
    """The workload; None if the length of the prompts, which is required, is unknown."""
    record, inside = trial.record, trial.inside
    prompts = _lengths([request.requested_input_tokens or request.prompt_tokens for request in inside])
    if prompts is None:
        return None
    levels = list(dict.fromkeys(plan.load.label for plan in run.manifest.trials))
    load = record.load
    optional = {
        "output_seq_len": _lengths([request.requested_output_tokens for request in inside]),
        "multi_turn": {"enabled": True} if any(request.turn for request in inside) else None,
        "rate_qps": load.rate_per_s,
        "concurrency": load.concurrency or load.max_in_flight,
    }
    return {
        "metadata": {"cfg_id": record.workload_sha256, "description": f"{record.workload}; {_MEANING}"},
        "standardized": {
            "tool": TOOL,
            "tool_version": run.manifest.bakeoff_version,
            "source": UNKNOWN,
            "stage": levels.index(load.label) if load.label in levels else 0,
            "input_seq_len": prompts,
            **{name: value for name, value in optional.items() if value is not None},
        },
        "native": {"config": _origin(run, trial)},
    }


def _origin(run: Run, trial: Trial) -> Origin:
    record, manifest = trial.record, run.manifest
    engine = record.engine_description
    return Origin(
        definitions=DEFINITIONS,
        environment=manifest.environment,
        experiment=manifest.experiment,
        slo=manifest.slo,
        engine=record.engine,
        workload=record.workload,
        load=record.load,
        repeat=record.repeat,
        verdict=record.verdict,
        findings=record.findings,
        adapter=engine.adapter if engine else "",
        model_sha256=engine.model_sha256 if engine else None,
        request=engine.request if engine else {},
    )


def _lengths(tokens: Sequence[int | None]) -> dict[str, Any] | None:
    """Lengths of the requests; None if one is unknown, or if there are none."""
    known = [count for count in tokens if count]
    if not known or len(known) < len(tokens):
        return None
    if min(known) == max(known):
        return {"distribution": "fixed", "value": known[0]}
    mean = stat_of(known, "mean")
    return {"distribution": "other", "value": mean, "min": min(known), "max": max(known)}


def _requests(trial: Trial) -> dict[str, Any]:
    """Counts and lengths of the requests planned inside the window."""
    answered = trial.answered
    lengths = {
        "input_length": [request.prompt_tokens for request in answered],
        "output_length": [engine_tokens(request) for request in answered],
    }
    return {
        "total": len(trial.inside),
        "failures": sum(map(has_failed, trial.inside)),
        "incomplete": sum(map(_is_cancelled, trial.inside)),
        **{
            name: _statistics("count", known)
            for name, values in lengths.items()
            if (known := [value for value in values if value is not None]) and len(known) == len(values)
        },
    }


def _is_cancelled(request: RequestRecord) -> bool:
    return request.outcome is Outcome.CANCELLED


def _latency(trial: Trial) -> dict[str, Any]:
    data = TrialData(trial.load, trial.window, slo=Slo(), share_of=share_of(trial.record))
    observed = {name: LATENCIES[key].observe(data).values_s for name, (key, _) in llmd_format.LATENCIES.items()}
    units = {name: unit for name, (_, unit) in llmd_format.LATENCIES.items() if len(observed[name])}
    return {name: _statistics(unit, observed[name].tolist()) for name, unit in units.items()}


def _throughput(trial: Trial) -> dict[str, Any]:
    """Rates over the window, each one number; the total where both parts are known."""
    rates = {name: trial.metrics[metric].value for name, (metric, _) in RATES.items()}
    prompt, output = rates["input_token_rate"], rates["output_token_rate"]
    units = {name: unit for name, (_, unit) in RATES.items()} | {"total_token_rate": "tokens/s"}
    rates["total_token_rate"] = None if prompt is None or output is None else prompt + output
    return {name: {"units": units[name], "mean": rate} for name, rate in rates.items() if rate is not None}


def _statistics(units: str, values: Sequence[float]) -> dict[str, Any]:
    return {"units": units, **{name: stat_of(values, stat) for name, stat in _STATISTICS.items()}}
