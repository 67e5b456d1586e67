"""All that is known before the first engine starts: model, tokenizer, engines and traffic."""

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from engines import Engine, Model, engine
from harness.conduct.world import World
from harness.experiment.config import Experiment
from harness.experiment.demands import refuse_unmet
from harness.host.environment import machine
from harness.traffic.planner import TrafficPlanner, traffic_planner
from results.store import RunFolder
from workloads import Tokenizer


class Preparation(msgspec.Struct, frozen=True):
    """What a conductor and its policy work with.

    Attributes:
        experiment: what is measured.
        model: its files.
        tokenizer: the model's.
        engines: by label.
        planner: of the traffic.
        machine: as :func:`harness.host.environment.machine` gives it.
        world: where it is measured.
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
    """Fetch the model, make the engines and the traffic planner, whose files go with the block.

    Args:
        experiment: what is measured.
        run: its folder.
        world: where it is measured.
        fetching: hears of a download's progress.
        redraw: draw the traffic of each repeat anew.

    Raises:
        EngineError, WorkloadError: the model or an engine's options are wrong.
    """
    model = await _model(experiment, world, fetching)
    tokenizer = world.tokenizer(experiment.model, model)
    engines = {
        config.shown: engine(config.adapter, model, config.options, experiment.spec_of(config), config)
        for config in experiment.engines
    }
    with traffic_planner(experiment, tokenizer, redraw=redraw) as planner:
        sample = [turn for session in planner.warm_up_sessions("demands") for turn in session.session.turns]
        refuse_unmet(engines, sample, experiment.workload.name, tokenizer)
        here = machine(run.read_manifest().environment)
        yield Preparation(experiment, model, tokenizer, engines, planner, here, world)


async def _model(experiment: Experiment, world: World, fetching: Callable[[int, int | None], None]) -> Model:
    """The model; fetched when it is a known one that is not cached. An experiment on addresses alone needs none."""
    config = experiment.model
    if config.path is None and all(engine.url for engine in experiment.engines):
        return Model(config.name or "default")
    return await world.model(config, fetching)
