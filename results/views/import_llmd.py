"""Reports of llm-d's benchmark, versions 0.2 and 0.2.1, as runs without logs, for comparisons.

A report has no single request, so it cannot become a run of its own: it becomes a trial whose metrics are its figures.
Reports with one ``run.eid`` were measured together and are trials of one run. What a tool other than Bakeoff calls TTFT
or ITL differs from our definition, so such figures are only compared with those of the same tool and version.

Latencies are taken from percentiles, and only from those that have enough requests; rates from their means. Requests
that failed are missing in them, as in the report.
"""

import hashlib
import importlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.results.errors import NotImportable
from bakeoff.results.export.benchmark_json import StoredRun, StoredTrial
from bakeoff.results.log.run_log import Manifest
from bakeoff.results.metrics import CATALOGUE, Value, absent
from bakeoff.results.metrics.declaration import QUANTILES
from bakeoff.results.metrics.percentiles import too_few
from bakeoff.results.records import EngineDescription, Load, RunStatus, Slo, TrialPlan, TrialRecord, Verdict, Window
from bakeoff.results.run.work import Work
from bakeoff.results.views.imported import checked_load
from bakeoff.results.views.llmd_format import LATENCIES, RATES, STATED, TOOL, VERSION, Origin

_VERSIONS = (VERSION, "0.2.1")
_YAML = (".yaml", ".yml")
_MISSING = absent("the report does not contain it")
_SECONDS = {"s": 1.0, "ms": 1e-3, "s/token": 1.0, "ms/token": 1e-3}
_WORK_QUANTILES = ("p10", "p50", "p90")


class _Statistics(msgspec.Struct, frozen=True):
    units: str
    mean: float
    p10: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


class _Requests(msgspec.Struct, frozen=True):
    total: int
    failures: int | None = None
    incomplete: int | None = None
    output_length: _Statistics | None = None


class _Aggregate(msgspec.Struct, frozen=True):
    requests: _Requests
    latency: dict[str, _Statistics | None] | None = None
    throughput: dict[str, _Statistics | None] | None = None


class _RequestPerformance(msgspec.Struct, frozen=True):
    aggregate: _Aggregate


class _Results(msgspec.Struct, frozen=True):
    request_performance: _RequestPerformance


class _Time(msgspec.Struct, frozen=True):
    start: datetime | None = None


class _Run(msgspec.Struct, frozen=True):
    uid: str
    eid: str | None = None
    time: _Time | None = None


class _Metadata(msgspec.Struct, frozen=True):
    label: str = ""
    cfg_id: str | None = None


class _Component(msgspec.Struct, frozen=True):
    metadata: _Metadata
    standardized: dict[str, Any]


class _Length(msgspec.Struct, frozen=True, omit_defaults=True):
    distribution: str
    value: float
    std_dev: float | None = None
    min: float | None = None
    max: float | None = None

    @property
    def stated(self) -> "_Length | str":
        """What a tool states of it: the length if it is fixed or has a standard deviation, else the distribution only.

        The other lengths are those that the tool measured, which vary from run to run.
        """
        return self if self.distribution == "fixed" or self.std_dev is not None else self.distribution


class _Prefix(msgspec.Struct, frozen=True):
    prefix_len: _Length
    num_groups: int
    num_users_per_group: int
    num_prefixes: int


class _MultiTurn(msgspec.Struct, frozen=True):
    enabled: bool = True
    max_turns: _Length | None = None


class _LoadStandardized(msgspec.Struct, frozen=True):
    tool: str
    tool_version: str
    input_seq_len: _Length
    output_seq_len: _Length | None = None
    source: str | None = None
    prefix: _Prefix | None = None
    multi_turn: _MultiTurn | None = None
    parallelism: int = 1
    stage: int = 0
    rate_qps: float | None = None
    concurrency: float | None = None


class _LoadNative(msgspec.Struct, frozen=True):
    config: Any = None


class _Load(msgspec.Struct, frozen=True):
    metadata: _Metadata
    standardized: _LoadStandardized
    native: _LoadNative = _LoadNative()


class _Scenario(msgspec.Struct, frozen=True):
    load: _Load
    stack: list[_Component] | None = None


class _Report(msgspec.Struct, frozen=True):
    run: _Run
    scenario: _Scenario
    results: _Results


class _Read(msgspec.Struct, frozen=True):
    """One report with what of it identifies its trial.

    Attributes:
        file: it was read from.
        report: its fields.
        origin: of a report of Bakeoff.
        engine: label, tool, version and model.
        stated: conditions that no other part of a run has.
    """

    file: Path
    report: _Report
    origin: Origin | None
    engine: EngineDescription
    stated: dict[str, str]

    @property
    def session(self) -> str:
        """The experiment that it belongs to, or itself."""
        return self.report.run.eid or self.report.run.uid


def read_reports(place: Path) -> list[StoredRun]:
    """The runs in a report, or in a folder of reports.

    Args:
        place: a file, JSON or YAML; or a folder.

    Returns:
        one run for each experiment, oldest first; empty if there are no reports.

    Raises:
        NotImportable: a report is damaged, of another version, or holds no aggregates; or PyYAML is needed.
    """
    reads = sorted((_read(file, document) for file, document in _documents(place)), key=_started_utc)
    groups: dict[tuple[str, str], list[_Read]] = {}
    for read in reads:
        groups.setdefault((read.session, json.dumps(read.stated)), []).append(read)
    return [_run(place, group) for group in groups.values()]


def _documents(place: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The reports at a place; other files are left out, unless one was named that only a report can be."""
    if place.is_file():
        files = [place]
    elif place.is_dir() and not (place / "run.jsonl").exists():
        files = sorted(file for file in place.iterdir() if file.suffix in {".json", *_YAML})
    else:
        files = []
    for file in files:
        document = _document(file)
        if isinstance(document, dict) and {"version", "run", "results"} <= document.keys():
            yield file, document
        elif file == place and file.suffix in _YAML:
            raise NotImportable(f"{file} is not a benchmark report of llm-d; give one of version {VERSION}")


def _document(file: Path) -> Any:  # noqa: ANN401  (any JSON or YAML value)
    """What a file holds; None if it is neither JSON nor YAML, or cannot be read."""
    # Python's own decoder: llm-d writes Infinity for an unlimited concurrency.
    decode: Callable[[bytes], Any] = json.loads
    damaged: tuple[type[Exception], ...] = (ValueError, RecursionError, OSError)
    if file.suffix in _YAML:
        try:
            yaml = importlib.import_module("yaml")
        except ImportError as error:
            raise NotImportable(f"{file} is YAML, which needs PyYAML: pip install pyyaml") from error
        decode, damaged = yaml.safe_load, (*damaged, yaml.YAMLError)
    try:
        return decode(file.read_bytes())
    except damaged:
        return None


def _read(file: Path, document: Mapping[str, Any]) -> _Read:
    if document["version"] not in _VERSIONS:
        raise NotImportable(
            f"{file} is a benchmark report of version {document['version']}; only {' and '.join(_VERSIONS)} are read"
        )
    try:
        report = msgspec.convert(document, _Report)
        standardized = report.scenario.load.standardized
        origin = msgspec.convert(report.scenario.load.native.config, Origin) if standardized.tool == TOOL else None
    except msgspec.ValidationError as error:
        raise NotImportable(f"{file} is no report that can be compared ({error}); give one with all of it") from error
    version = f"metric definitions {origin.definitions}" if origin else f"version {standardized.tool_version}"
    engine, machine = _engine(report, origin)
    stated = {"source of figures": f"llm-d report of {standardized.tool}, {version}"}
    if origin is None:  # other tools store neither a hash of the weights nor a machine
        stated |= {"model": engine.model or "unknown", "accelerators": machine}
    return _Read(file, report, origin, engine, stated)


def _engine(report: _Report, origin: Origin | None) -> tuple[EngineDescription, str]:
    """The engine, and its accelerators: the first component of that kind stands for all, or any other if none is."""
    stack = report.scenario.stack or []
    engines = [component for component in stack if component.standardized.get("kind") == "inference_engine"]
    parts = [component.standardized for component in engines]
    first = (engines or stack or [_Component(_Metadata(), {})])[0]
    tool, model = first.standardized.get("tool"), first.standardized.get("model")
    description = EngineDescription(
        label=origin.engine if origin else first.metadata.label or str(tool or "engine"),
        adapter=origin.adapter if origin else str(tool or ""),
        version=str(first.standardized.get("tool_version") or "") or None,
        model=str(model.get("name")) if isinstance(model, dict) else None,
        model_sha256=origin.model_sha256 if origin else None,
        request=origin.request if origin else {},
    )
    return description, "; ".join(f"{part.get('replicas')} × {_accelerator(part)}" for part in parts) or "unknown"


def _accelerator(engine: Mapping[str, Any]) -> str:
    accelerator = engine.get("accelerator")
    if not isinstance(accelerator, dict):
        return "unknown"
    return f"{engine.get('role')} on {accelerator.get('count')} {accelerator.get('model')}"


def _started_utc(read: _Read) -> str:
    """When the measurement began, in UTC; empty if the report does not say."""
    time = read.report.run.time
    if time is None or time.start is None:
        return ""
    start = time.start if time.start.tzinfo else time.start.replace(tzinfo=UTC)
    return start.astimezone(UTC).isoformat()


def _run(place: Path, reads: list[_Read]) -> StoredRun:
    """The run of the reports of one experiment, in the order in which they were measured."""
    first = reads[0]
    trials: list[StoredTrial] = []
    for read in reads:
        trials.append(_trial(read, trials))
    origin = first.origin
    experiment = origin.experiment if origin else {}
    manifest = Manifest(
        run_id=first.session,
        name="llm-d",
        created_utc=_started_utc(first),
        host="unknown",
        bakeoff_version="",
        git_commit=None,
        experiment=experiment | {STATED: first.stated},
        environment=origin.environment if origin else {},
        status=RunStatus.COMPLETE,
        trials=[
            TrialPlan(trial.record.id, trial.record.engine, trial.record.workload, trial.record.load,
                      trial.record.repeat)
            for trial in trials
        ],
        slo=origin.slo if origin else Slo(),
    )  # fmt: skip
    return StoredRun("", manifest, trials, str(place))


def _trial(read: _Read, before: list[StoredTrial]) -> StoredTrial:
    aggregate, origin = read.report.results.request_performance.aggregate, read.origin
    requests = aggregate.requests
    load = origin.load if origin else _load(read)
    repeats = sum((trial.record.engine, trial.record.load) == (read.engine.label, load) for trial in before)
    record = TrialRecord(
        id=read.report.run.uid,
        engine=read.engine.label,
        workload=origin.workload if origin else "llm-d",
        load=load,
        repeat=origin.repeat if origin else repeats + 1,
        order=len(before) + 1,
        started_ns=0,
        ended_ns=0,
        issue_start_ns=0,
        issue_end_ns=0,
        window=Window(0, 0),
        planned_requests=requests.total,
        workload_sha256=_traffic_sha256(read),
        verdict=origin.verdict if origin else Verdict.VALID,
        findings=origin.findings if origin else [],
        engine_description=read.engine,
    )
    return StoredTrial(record, _metrics(read.file, aggregate), work=_work(read.file, requests))


def _load(read: _Read) -> Load:
    """The load of another tool, which names no arrival process; neither rate nor concurrency: told apart by stage."""
    stated = read.report.scenario.load.standardized
    rate, slots = (_finite(value) for value in (stated.rate_qps, stated.concurrency))
    cap = None if slots is None else int(slots)
    if rate is not None:
        load = Load(rate_per_s=rate, arrival="rate", max_in_flight=cap)
    elif cap is not None:
        load = Load(concurrency=cap)
    else:
        load = Load(arrival="unstated load", arrival_options={"stage": stated.stage})
    return checked_load(load, str(read.file))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _traffic_sha256(read: _Read) -> str:
    """Hash of the traffic: of Bakeoff the workload's own; of other tools what they state of it."""
    load = read.report.scenario.load
    if read.origin is not None:
        return load.metadata.cfg_id or ""
    stated = load.standardized
    lengths = [length.stated for length in (stated.input_seq_len, stated.output_seq_len) if length]
    traffic = [lengths, stated.source, stated.prefix, stated.multi_turn, stated.parallelism]
    return hashlib.sha256(msgspec.json.encode(traffic)).hexdigest()


def _metrics(file: Path, aggregate: _Aggregate) -> dict[str, Value]:
    requests = aggregate.requests
    metrics = dict.fromkeys(CATALOGUE, _MISSING)
    for name, (key, _) in LATENCIES.items():
        if statistics := (aggregate.latency or {}).get(name):
            factor = _factor(file, name, statistics.units, _SECONDS)
            for label, q in QUANTILES:
                if (value := getattr(statistics, label)) is not None:
                    few = too_few(q, requests.total)
                    metrics[f"{key}_{label}_s"] = few or Value(_checked(file, name, value) * factor)
    for name, (metric, unit) in RATES.items():
        if statistics := (aggregate.throughput or {}).get(name):
            _factor(file, name, statistics.units, {unit: 1.0})
            metrics[metric] = Value(_checked(file, name, statistics.mean))
    if requests.failures is not None:
        metrics["failures"] = Value(float(_checked(file, "failures", requests.failures)))
    return metrics


def _factor(file: Path, name: str, units: str, factors: Mapping[str, float]) -> float:
    if units not in factors:
        raise NotImportable(f"{file}: {name} is in {units}, not in {' or '.join(factors)}; correct the file")
    return factors[units]


def _checked(file: Path, name: str, value: float) -> float:
    if not 0 <= value < math.inf:
        raise NotImportable(f"{file}: {name} is {value}, which is impossible; correct the file")
    return value


def _work(file: Path, requests: _Requests) -> Work:
    """The work as far as it is known: how many requests were answered, and how long the answers were."""
    counted = requests.total - (requests.incomplete or 0)
    answered = counted - (requests.failures or 0)
    if min(counted, answered, requests.failures or 0, requests.incomplete or 0) < 0:
        raise NotImportable(f"{file} counts more failures than requests; correct the file")
    length = requests.output_length
    if length is None:
        return Work()
    quantiles = [getattr(length, name) for name in _WORK_QUANTILES]
    return Work(
        requests=counted,
        ok=answered,
        output_tokens=round(_checked(file, "output_length", length.mean) * answered),
        delivered=[] if None in quantiles else [_checked(file, "output_length", value) for value in quantiles],
    )
