"""Prepares a run before the first engine starts: model, tokenizer, engines and traffic planner."""

import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import msgspec

from bakeoff.engines import Engine, Model, engine, records_requests
from bakeoff.engines.base import SPAN_ENDPOINT
from bakeoff.engines.launcher import require_launching
from bakeoff.engines.registry import adapter_class
from bakeoff.harness.conduct.traffic_classes import classes_of
from bakeoff.harness.conduct.world import World
from bakeoff.harness.errors import BadExperiment
from bakeoff.harness.experiment.config import EngineConfig, Experiment
from bakeoff.harness.experiment.demands import refuse_unmet
from bakeoff.harness.host.environment import machine
from bakeoff.harness.traffic.planner import TrafficPlanner, traffic_planner
from bakeoff.results.log.store import RunFolder
from bakeoff.workloads import Tokenizer


class Preparation(msgspec.Struct, frozen=True):
    """Everything that a conductor and its policy need.

    Attributes:
        experiment: to measure.
        model: its name and files.
        tokenizer: the model's.
        engines: by label.
        planner: of the traffic.
        machine: from :func:`bakeoff.harness.host.environment.machine`.
        world: of the run.
    """

    experiment: Experiment
    model: Model
    tokenizer: Tokenizer
    engines: dict[str, Engine]
    planner: TrafficPlanner
    machine: dict[str, Any]
    world: World


@contextlib.asynccontextmanager
async def prepared(
    experiment: Experiment,
    run: RunFolder,
    world: World,
    fetching: Callable[[int, int | None], None],
    *,
    redraw: bool = False,
) -> AsyncGenerator[Preparation]:
    """Fetch the model, and make the engines and the traffic planner, whose files are deleted at the end of the block.

    Args:
        experiment: to measure.
        run: its folder.
        world: of the run.
        fetching: is called with a download's progress.
        redraw: draw new traffic for each repeat.

    Raises:
        EngineError, WorkloadError: the model or an engine's options are wrong, or this system launches no engine.
    """
    if not all(config.addresses for config in experiment.engines):
        require_launching()
    model = await _model(experiment, world, fetching)
    tokenizer = world.tokenizer(experiment.model, model)
    engines = {
        config.name: engine(
            config.adapter,
            model,
            _options(config, experiment),
            experiment.spec_of(config),
            config,
            request=experiment.request_of(config),
        )
        for config in experiment.engines
    }
    _refuse_unread_pages(experiment, engines)
    with traffic_planner(experiment, tokenizer, redraw=redraw) as planner:
        _refuse_unmet(experiment, engines, planner, tokenizer)
        this_machine = machine(run.read_manifest().environment)
        yield Preparation(experiment, model, tokenizer, engines, planner, this_machine, world)


def _refuse_unmet(
    experiment: Experiment, engines: Mapping[str, Engine], planner: TrafficPlanner, tokenizer: Tokenizer
) -> None:
    """Refuse traffic that an engine cannot be sent, in any class of it.

    Raises:
        BadExperiment: there is such.
    """
    sample = [planned.session for planned in planner.warm_up_sessions("demands")]
    workloads = {each.name: each.workload.name for each in experiment.classes} or {"": experiment.workload.name}
    for name, workload in workloads.items():
        turns = [turn for session in sample if session.traffic_class == name for turn in session.turns]
        dialects = {
            label: classes_of(experiment, engine.dialect)[name].dialect if name else engine.dialect
            for label, engine in engines.items()
        }
        try:
            refuse_unmet(dialects, turns, workload, tokenizer, experiment.workload.history)
        except BadExperiment as error:
            raise BadExperiment(f"class '{name}': {error}" if name else str(error)) from error


def _refuse_unread_pages(experiment: Experiment, engines: Mapping[str, Engine]) -> None:
    """Refuse addresses of metrics pages whose names the adapter does not know.

    Raises:
        BadExperiment: an engine has such addresses.
    """
    for config in experiment.engines:
        if engines[config.name].metrics is None and any(address.metrics for address in config.urls):
            raise BadExperiment(
                f"engine '{config.name}': the adapter '{config.adapter}' reads no metrics page; remove metrics, or "
                "set the adapter of the servers' engine"
            )


def _options(config: EngineConfig, experiment: Experiment) -> dict[str, Any]:
    """The adapter's options; for a run with profiled trials, plus those that let the engine record requests."""
    if not experiment.profile or config.addresses or not records_requests(config.adapter):
        return config.options
    kind = adapter_class(config.adapter)
    recording: dict[str, Any] = dict(kind.recording_options)
    if SPAN_ENDPOINT in recording.values() and (config.container or config.ssh):
        return config.options  # it could not reach the receiver, which listens on the loopback interface
    if experiment.kernels:
        recording |= getattr(kind, "kernel_options", {})
    return {**recording, **config.options}


async def _model(experiment: Experiment, world: World, fetching: Callable[[int, int | None], None]) -> Model:
    """The experiment's model, fetched if necessary; without files if all engines are running servers."""
    config = experiment.model
    if config.path is None and all(engine.addresses for engine in experiment.engines):
        return Model(config.name or "default")
    return await world.model(config, fetching)
