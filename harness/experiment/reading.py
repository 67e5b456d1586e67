"""Experiments from TOML files, dicts and run folders, checked."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.engines import check, records_requests
from bakeoff.engines.secrets import MASK
from bakeoff.harness.errors import BadExperiment
from bakeoff.harness.experiment.config import CLASSES, Experiment
from bakeoff.harness.experiment.contradictions import problem_of_experiment
from bakeoff.harness.experiment.grid import with_grids
from bakeoff.harness.rules.rule_set import STEADY, with_rules
from bakeoff.results.errors import NotComparable
from bakeoff.results.log.store import LATEST, RunFolder
from bakeoff.results.metrics.objectives import service_level
from bakeoff.results.records import Slo
from bakeoff.results.run.run import located
from bakeoff.workloads import arrival
from bakeoff.workloads.options import parsed_toml, typed_options

_MAX_NAME_BYTES = 200
_OF_CLASSES = {"name": CLASSES}


def load_experiment(path: Path) -> Experiment:
    """Read and check an experiment file, or the experiment of a run folder.

    Raises:
        BadExperiment: it is missing, not TOML, has an unknown key or contradicts itself, or the run concealed a key.
        ResultsError: the folder is no run, or damaged.
    """
    if path.parts and path.parts[0].lower() in {"http:", "https:"}:
        raise BadExperiment("a server's address is no experiment file; use bakeoff bench URL or bakeoff search URL")
    path = located(path) if str(path) == LATEST else path
    if path.is_dir():
        data = RunFolder.open(path).read_manifest().experiment
        if MASK in repr(data):
            raise BadExperiment(
                f"{path} conceals a key of its experiment; give the experiment's file, or repeat the bench command"
            )
        return experiment_from(data, str(path))
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BadExperiment(f"{path} does not exist; give the path of an experiment file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadExperiment(f"{path} cannot be read: {error}") from error
    return experiment_from(parsed_toml(text, str(path), "an experiment", BadExperiment), str(path))


def loaded_experiment(source: "str | PathLike[str] | dict[str, Any] | Experiment") -> Experiment:
    """An experiment as a program gives it: a TOML file, a dict of the same structure, or an :class:`Experiment`.

    Raises:
        BadExperiment: as :func:`load_experiment`.
        EngineError, WorkloadError: an engine, a workload or one of their options is unknown.
    """
    if isinstance(source, Experiment):
        has_grid = any(engine.grid for engine in source.engines)
        return experiment_from(msgspec.to_builtins(source), "experiment") if has_grid else source
    return experiment_from(source, "experiment") if isinstance(source, dict) else load_experiment(Path(source))


_EVERY_REQUEST = "attainment>=100%"
"""The objective of bounds of each request, where no share of them is given."""


def experiment_from(data: dict[str, Any], owner: str) -> Experiment:
    """Build and check an experiment from plain data.

    Args:
        data: as in the TOML file.
        owner: names the data in error messages.

    Raises:
        BadExperiment: as :func:`load_experiment`.
        EngineError, WorkloadError: an engine, a workload or one of their options is unknown.
    """
    plain = with_grids(with_rules(data), owner)
    if isinstance(texts := data.get("slo"), str | list):
        plain |= _service_level(texts, owner)
    if data.get("classes"):
        if data.get("rules", STEADY) != STEADY:
            raise BadExperiment(
                f"{owner}: classes are played by the rules '{STEADY}' alone; leave out rules or classes"
            )
        if data.get("workload", _OF_CLASSES) != _OF_CLASSES:
            raise BadExperiment(f"{owner}: classes say what is sent; leave out workload")
        plain["workload"] = _OF_CLASSES
    experiment = typed_options(Experiment, plain, owner, BadExperiment)
    if not experiment.name.isprintable() or len(experiment.name.encode()) > _MAX_NAME_BYTES:
        raise BadExperiment(
            f"{owner}: name is part of a folder's; give printable characters, {_MAX_NAME_BYTES} at most"
        )
    problem = problem_of_experiment(experiment)
    if problem:
        raise BadExperiment(f"{owner}: {problem}")
    for engine in experiment.engines:
        for shape in experiment.requests_of(engine):
            check(engine.adapter, engine.options, experiment.spec_of(engine), engine, shape)
    experiment.source()
    _check_arrivals(experiment)
    return experiment


def _service_level(texts: str | list[Any], owner: str) -> dict[str, Any]:
    """The fields ``slo`` and ``objectives`` of an experiment."""
    if not all(isinstance(text, str) for text in texts):
        raise BadExperiment(f'{owner}: slo has bounds that are no text; write each like "ttft<500ms"')
    try:
        requests, trial = service_level(texts)
    except NotComparable as error:
        raise BadExperiment(f"{owner}: slo: {error}") from error
    required = [each.text for each in trial]
    if requests != Slo() and not any(each.metric == "attainment" for each in trial):
        required.append(_EVERY_REQUEST)
    return {"slo": msgspec.to_builtins(requests), "objectives": required}


def _check_arrivals(experiment: Experiment) -> None:
    """Make every arrival process once.

    Raises:
        WorkloadError: one is unknown, or its options do not fit.
    """
    for load in experiment.loads:
        if load.arrival not in {None, "workload"}:
            arrival(load.arrival or "", load.rate_per_s or 0.0, load.arrival_options)
    for each in experiment.classes:
        if each.arrival is not None:
            arrival(each.arrival, 1.0, each.arrival_options)


def with_slo(experiment: Experiment, texts: str | Sequence[str] | None) -> Experiment:
    """The experiment with other objectives, and with other bounds of requests if there are any; empty keeps both.

    Raises:
        NotComparable: a bound is malformed.
    """
    if not texts:
        return experiment
    requests, trial = service_level(texts)
    return msgspec.structs.replace(
        experiment,
        slo=experiment.slo if requests == Slo() else requests,
        objectives=[each.text for each in trial],
    )


def with_client(experiment: Experiment, workers: int | None, ray: str | None) -> Experiment:
    """The experiment with another client; None keeps the experiment's value.

    Raises:
        BadExperiment: the new values contradict the rest.
    """
    overrides = {name: value for name, value in (("workers", workers), ("ray", ray)) if value is not None}
    changed = msgspec.structs.replace(experiment, client=msgspec.structs.replace(experiment.client, **overrides))
    if problem := problem_of_experiment(changed):
        raise BadExperiment(problem)
    return changed


def profiling(experiment: Experiment) -> Experiment:
    """The experiment with profiled trials.

    Raises:
        BadExperiment: none of its engines records its steps or exports spans, or one has several addresses.
    """
    if not any(records_requests(engine.adapter) for engine in experiment.engines):
        names = ", ".join(engine.name for engine in experiment.engines)
        raise BadExperiment(f"no engine can be profiled ({names}); profile the adapter 'reference' or 'vllm'")
    profiled = msgspec.structs.replace(experiment, profile=True)
    if problem := problem_of_experiment(profiled):
        raise BadExperiment(problem)
    return profiled
