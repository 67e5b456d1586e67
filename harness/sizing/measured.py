"""Measured loads of a run: its requests, their figures, and the server's limits."""

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from bakeoff.harness.errors import BadPlan
from bakeoff.harness.sizing.server import Limits, Request
from bakeoff.harness.sizing.sizing import CPU_STEP_TOKENS, GPU_STEP_TOKENS
from bakeoff.results.export.published import published_rows
from bakeoff.results.units import NS_PER_S

Row = Mapping[str, Any]
"""One row of a table: of trials or of requests."""

METRICS = ("itl_p50_s", "ttft_p50_s", "output_tokens_per_s", "tpot_p50_s")
"""Metrics that a calibration fits and predicts, in addition to memory."""
PEAKS = ("peak_gpu_bytes", "peak_host_bytes")
_FEWEST_REQUESTS = 300
_CLOSED, _LIMITED = re.compile(r"c=(\d+)"), re.compile(r".* ≤(\d+)")


class Load(msgspec.Struct, frozen=True):
    """One engine at one load.

    Attributes:
        label: of the load.
        concurrency: of a closed loop; None for an open loop.
        requests: of one trial, in planned order, repeated if they are few.
        measured: medians over the VALID repeats by metric; absent metrics have no entry.
        spread: largest less smallest of the VALID repeats over their median, by metric; no entry with one repeat.
        max_in_flight: of an open loop; None without a limit.
    """

    label: str
    concurrency: int | None
    requests: list[Request]
    measured: dict[str, float]
    spread: dict[str, float] = {}
    max_in_flight: int | None = None


class MeasuredEngine(msgspec.Struct, frozen=True):
    """One engine of a run.

    Attributes:
        engine: label.
        run: path of the run.
        loads: in planned order.
        limits: of the server, from the experiment, else the engine's defaults.
        memory_fraction: of GPU memory that the engine reserves; None if unknown.
        why_no_memory: why its memory cannot be attributed to it; None if it can.
        adapter: of the engine.
        ranks: GPUs of tensor parallelism.
        stages: of pipeline parallelism.
        on_gpu: whether the trials have GPU memory; None if they have none, but the engine ran elsewhere.
        model: the run's name for its model.
    """

    engine: str
    run: str
    loads: list[Load]
    limits: Limits
    memory_fraction: float | None
    why_no_memory: str | None
    adapter: str = ""
    ranks: int = 1
    stages: int = 1
    on_gpu: bool | None = None
    model: str = ""


def measured_engines(path: Path) -> list[MeasuredEngine]:
    """The engines of a run folder, or of a published one (trials.csv, requests.csv and experiment.toml).

    Raises:
        BadPlan: there is no run, or no VALID trial in it.
        ResultsError: the run cannot be read.
    """
    trials, requests, experiment = _published(path) if (path / "trials.csv").is_file() else _run(path)
    by_engine: dict[str, list[Row]] = {}
    for trial in trials:
        if trial["verdict"] == "VALID":
            by_engine.setdefault(str(trial["engine"]), []).append(trial)
    if not by_engine:
        raise BadPlan(f"{path} has no VALID trial; give a run folder, or a folder with trials.csv and requests.csv")
    return [_engine(name, own, requests, experiment, path) for name, own in by_engine.items()]


def _run(path: Path) -> tuple[Sequence[Row], Sequence[Row], Mapping[str, Any]]:
    from bakeoff import results  # noqa: PLC0415  (its frames take pandas, 0.3 s; only plans with a run need them)

    run = results.load(path)
    sent = [row for row in _rows(run.all_requests) if row["phase"] == "measured"]
    return _rows(run.trials), sent, run.manifest.experiment


def _rows(frame: Any) -> list[Row]:  # noqa: ANN401  (a data frame)
    return frame.to_dict("records")


def _published(path: Path) -> tuple[Sequence[Row], Sequence[Row], Mapping[str, Any]]:
    try:
        experiment = tomllib.loads((path / "experiment.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadPlan(f"{path} is not a published run: {error}") from error
    trials = published_rows(path / "trials.csv", ("trial", "engine", "load", "verdict"))
    requests = published_rows(path / "requests.csv", ("trial", "planned_ns", "prompt_tokens", "output_tokens"))
    return trials, requests, experiment


def _engine(
    name: str, trials: Sequence[Row], requests: Sequence[Row], experiment: Mapping[str, Any], path: Path
) -> MeasuredEngine:
    entries = experiment.get("engines", [])
    entry = next(
        (candidate for candidate in entries if (candidate.get("label") or candidate.get("adapter")) == name), {}
    )
    spec = {} if entry.get("url") else {**experiment.get("spec", {}), **entry.get("spec", {})}
    on_gpu = any(_number(trial, "peak_gpu_bytes") is not None for trial in trials)
    limits = Limits(
        sequences=int(spec.get("max_num_seqs") or Limits().sequences),
        step_tokens=int(spec.get("max_num_batched_tokens") or (GPU_STEP_TOKENS if on_gpu else CPU_STEP_TOKENS)),
        plans_ahead=on_gpu,
    )
    shared = "it ran at an address, beside others" if entry.get("url") else None
    by_load: dict[str, list[Row]] = {}
    for trial in trials:
        by_load.setdefault(str(trial["load"]), []).append(trial)
    share = cached_share(trials)
    loads = [_load(label, own, requests, share) for label, own in by_load.items()]
    return MeasuredEngine(
        engine=name,
        run=str(path),
        loads=loads,
        limits=limits,
        memory_fraction=spec.get("memory_fraction"),
        why_no_memory=shared,
        adapter=entry.get("adapter", ""),
        ranks=int(spec.get("tensor_parallel_size") or 1),
        stages=int(spec.get("pipeline_parallel_size") or 1),
        on_gpu=None if not on_gpu and (entry.get("url") or entry.get("ssh")) else on_gpu,
        model=str(experiment.get("model", {}).get("name", "")),
    )


def cached_share(trials: Sequence[Row]) -> float:
    """Share of prompts in the prefix cache, for requests for which the engine did not report it.

    The engine's counter covers ramp and tail, too, whose prompts are cached once an earlier trial has sent them. All
    trials of a run have the same traffic, so the smallest share is the nearest to that of the window.
    """
    return min(_values(trials, "server_prefix_hit_share"), default=0.0)


def _load(label: str, trials: Sequence[Row], requests: Sequence[Row], share: float) -> Load:
    """The first trial's requests, and medians over all trials."""
    first = trials[0]["trial"]
    sent = [
        (planned, int(prompt), int(output), int(share * prompt if cached is None else cached))
        for row in requests
        if row["trial"] == first
        and (planned := _number(row, "planned_ns")) is not None
        and (prompt := _number(row, "prompt_tokens")) is not None
        and (output := _number(row, "output_tokens"))
        for cached in [_number(row, "cached_tokens")]
    ]
    sent.sort()
    closed, limited = _CLOSED.fullmatch(label), _LIMITED.fullmatch(label)
    values = {name: _values(trials, name) for name in (*METRICS, *PEAKS)}
    return Load(
        label=label,
        concurrency=int(closed[1]) if closed else None,
        requests=repeated(
            [
                Request(prompt, output, (planned - sent[0][0]) / NS_PER_S, cached)
                for planned, prompt, output, cached in sent
            ]
        ),
        measured={name: median(samples) for name, samples in values.items() if samples},
        spread={
            name: (max(samples) - min(samples)) / median(samples)
            for name, samples in values.items()
            if len(samples) > 1 and median(samples) > 0
        },
        max_in_flight=int(limited[1]) if limited else None,
    )


def repeated(requests: Sequence[Request]) -> list[Request]:
    """At least 300 requests, so that medians of a simulation vary little; later rounds follow at the same pace."""
    if not requests:
        return []
    last = requests[-1].arrival_s
    span = last + last / max(1, len(requests) - 1)
    rounds = range(-(-_FEWEST_REQUESTS // len(requests)))
    return [
        msgspec.structs.replace(request, arrival_s=request.arrival_s + number * span)
        for number in rounds
        for request in requests
    ]


def _values(rows: Sequence[Row], name: str) -> list[float]:
    return [value for row in rows if (value := _number(row, name)) is not None]


def _number(row: Row, name: str) -> float | None:
    """A number of a row; None if it is missing.

    Raises:
        BadPlan: it is another text.
    """
    value = row.get(name)
    try:
        number = math.nan if value is None or value == "" else float(value)
    except ValueError as error:
        raise BadPlan(f"{name} of trial {row['trial']} is '{value}', not a number; export the run again") from error
    return None if math.isnan(number) else number
