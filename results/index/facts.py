"""Facts of a run that the index stores."""

import math
from pathlib import Path

import msgspec

from bakeoff.results.compare.comparability import digest, sent_sha256
from bakeoff.results.compare.primary import primary_load, primary_metric
from bakeoff.results.log.run_log import Manifest, Source
from bakeoff.results.log.store import RunFolder
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.records import RunStatus, Verdict
from bakeoff.results.report.verdict import VerdictLine, verdict
from bakeoff.results.run.cells import Trial, repeated_trials
from bakeoff.results.run.run import Run, by_repeat
from bakeoff.results.text.format import machine_text


class Spread(msgspec.Struct, frozen=True, array_like=True):
    """Mean of one metric over the valid trials of a cell.

    Attributes:
        mean: geometric (arithmetic if a value is not positive), in the metric's unit.
        trials: number of trials.
    """

    mean: float
    trials: int


class CellFacts(msgspec.Struct, frozen=True):
    """Valid trials that agree in everything that must be equal within a series of runs.

    Attributes:
        engine: label.
        level: label of the load.
        machine: CPU, cores and GPUs, without the host name.
        workload: name.
        traffic_sha256: of what was sent.
        weights_sha256: of the model; empty if the engine does not report it.
        conditions_sha256: of everything else that must be equal, see :mod:`bakeoff.results.compare.comparability`.
        metrics: name in the catalogue → mean; without metrics that a valid trial lacks.
    """

    engine: str
    level: str
    machine: str
    workload: str
    traffic_sha256: str
    weights_sha256: str
    conditions_sha256: str
    metrics: dict[str, Spread]


class Headline(msgspec.Struct, frozen=True):
    """The primary metric of the run's verdict, for each engine.

    Attributes:
        metric: name in the catalogue.
        level: label of the load.
        values: engine → geometric mean over its valid trials; None if absent.
    """

    metric: str
    level: str
    values: dict[str, float | None]


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a run. Facts from the trials' logs are None or empty until the logs are folded.

    Attributes:
        id: name of the folder.
        name: of the experiment.
        status: see :meth:`bakeoff.results.log.store.RunFolder.status`.
        created_utc: ISO 8601.
        ended_utc: ISO 8601.
        machine: description, with the host name.
        source: commit under test.
        engines: labels in planned order.
        levels: labels of the loads.
        workloads: names.
        models: names in the experiment.
        urls: addresses of the engines that ran already.
        planned: number of planned trials; one that was measured again counts once.
        finished: number of finished trials, counted likewise.
        valid: number of valid trials.
        is_search: whether the run is a capacity search, whose trials beyond the capacity are INVALID on purpose.
        failure: why the run failed.
        problem: why the run cannot be read.
        verdict: sentence of the report.
        headline: primary metric.
        cells: valid trials, for series over runs.
    """

    id: str
    name: str
    status: RunStatus
    created_utc: str
    ended_utc: str | None = None
    machine: str = ""
    source: Source | None = None
    engines: list[str] = []
    levels: list[str] = []
    workloads: list[str] = []
    models: list[str] = []
    urls: list[str] = []
    planned: int = 0
    finished: int | None = None
    valid: int | None = None
    is_search: bool = False
    failure: str | None = None
    problem: str | None = None
    verdict: VerdictLine | None = None
    headline: Headline | None = None
    cells: list[CellFacts] = []

    @property
    def is_folded(self) -> bool:
        """Whether the trials' logs are folded."""
        return self.finished is not None


def planned_facts(folder: RunFolder) -> RunFacts:
    """Facts from the run log alone.

    Raises:
        RunUnreadable: the log is damaged or of another schema.
    """
    manifest = folder.read_manifest()
    plan = manifest.trials
    return RunFacts(
        id=folder.path.name,
        name=manifest.name,
        status=manifest.status,
        created_utc=manifest.created_utc,
        ended_utc=manifest.ended_utc,
        machine=machine_text(manifest),
        source=manifest.source,
        engines=list(dict.fromkeys(trial.engine for trial in plan)),
        levels=list(dict.fromkeys(trial.load.label for trial in plan)),
        workloads=list(dict.fromkeys(trial.workload for trial in plan)),
        models=_models(manifest),
        urls=_urls(manifest),
        planned=len(plan) - len(repeated_trials(plan)),
        failure=manifest.failure,
    )


def facts_of(path: Path) -> RunFacts:
    """All facts of a run, from its folded logs.

    Raises:
        RunNotFound, RunUnreadable: as :func:`bakeoff.results.load`.
    """
    folder = RunFolder.open(path)
    run = Run(folder)
    return msgspec.structs.replace(
        planned_facts(folder),
        finished=len(run.counted),
        valid=run.valid,
        is_search=run.search is not None,
        verdict=verdict(run),
        headline=_headline(run),
        cells=_cells(run),
    )


def _models(manifest: Manifest) -> list[str]:
    model = manifest.experiment.get("model") or {}
    named = (model.get("name"), model.get("path")) if isinstance(model, dict) else ()
    return [str(name) for name in named if name][:1]


def _urls(manifest: Manifest) -> list[str]:
    engines = manifest.experiment.get("engines") or []
    entries = [
        entry
        for engine in engines
        if isinstance(engine, dict)
        for entry in (engine, *(each for each in engine.get("urls") or [] if isinstance(each, dict)))
    ]
    return list(dict.fromkeys(str(entry["url"]) for entry in entries if entry.get("url")))


def _headline(run: Run) -> Headline | None:
    load = primary_load(plan.load for plan in run.manifest.trials)
    if load is None:
        return None
    metric = primary_metric(load)
    engines = dict.fromkeys(plan.engine for plan in run.manifest.trials)
    of_engine = {name: [trial for trial in run.finished if trial.record.engine == name] for name in engines}
    spreads = {name: _spread(trials, load.label, metric) for name, trials in of_engine.items()}
    return Headline(metric, load.label, {name: spread and spread.mean for name, spread in spreads.items()})


def _cells(run: Run) -> list[CellFacts]:
    """Valid trials grouped by what must be equal within a series."""
    environment = run.manifest.environment
    gpus = [str(gpu.get("name")) for gpu in environment.get("gpus") or []]
    machine = ", ".join([f"{environment.get('cpu')}, {environment.get('cores')} cores", *gpus])
    groups: dict[tuple[str, ...], list[Trial]] = {}
    for trial in run.finished:
        record = trial.record
        if record.verdict is not Verdict.VALID:
            continue
        described = record.engine_description
        weights = (described.model_sha256 or "") if described else ""
        key = (record.engine, record.load.label, machine, record.workload, sent_sha256(record), weights)
        groups.setdefault(key, []).append(trial)
    conditions = digest(run.manifest)
    return [
        CellFacts(*key, conditions_sha256=conditions, metrics=_spreads(trials, key[1]))
        for key, trials in groups.items()
    ]


def _spreads(trials: list[Trial], level: str) -> dict[str, Spread]:
    spreads = {metric: _spread(trials, level, metric) for metric in CATALOGUE}
    return {metric: spread for metric, spread in spreads.items() if spread is not None}


def _spread(trials: list[Trial], level: str, metric: str) -> Spread | None:
    valid = [trial for trial in trials if (trial.record.verdict, trial.record.load.label) == (Verdict.VALID, level)]
    if any(trial.metrics[metric].value is None for trial in valid):
        return None  # the trials that have it are a biased sample: docs/definitions.md, "Intervals"
    values = list(by_repeat(trials, level, metric).values())
    if not values:
        return None
    is_positive = min(values) > 0  # as in results.statistics.interval
    mean = math.exp(sum(map(math.log, values)) / len(values)) if is_positive else sum(values) / len(values)
    return Spread(mean, len(values))
