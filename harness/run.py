"""A whole run: from an experiment to a run folder.

Whatever ends it, the folder tells: ``complete``; ``interrupted`` after Ctrl-C, with every finished trial whole and
the cut-off one salvaged; ``failed`` with the engine's last words; and after ``kill -9`` of this process a reader calls
it ``incomplete`` (:func:`recover` then decodes what the cut-off trial had recorded).
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from engines import Model, dialect, engine
from engines.models import KNOWN_MODELS, cached
from engines.secrets import conceal_environment, masked, masked_data
from harness.client import decode_stream
from harness.conduct.progress import Observer
from harness.conduct.world import World, current_world
from harness.errors import first_leaf
from harness.experiment.config import EngineConfig, Experiment, ModelConfig
from harness.experiment.demands import refuse_unmet
from harness.host.environment import VERSION, machine
from harness.series import Clear, run_series
from harness.stage import Prepared
from harness.traffic.planner import traffic_planner
from results.errors import NotWritable
from results.records import SCHEMA_VERSION, Manifest, RunStatus, TrialPlan
from results.store import RunFolder
from workloads import APPROXIMATE, Tokenizer, workload
from workloads.errors import WorkloadError

Measure = Callable[[Prepared], Coroutine[Any, Any, str | None]]
"""Puts engines through trials; returns what went wrong with them, or None."""


def create_run(
    experiment: Experiment,
    root: Path,
    earlier: RunFolder | None = None,
    plan: Sequence[TrialPlan] | None = None,
) -> RunFolder:
    """Make the run's folder below ``root``, before anything is fetched or started.

    Args:
        experiment: what will be run.
        root: where to.
        earlier: a run whose finished trials will be taken over.
        plan: the trials as far as they are known; the default is all of the experiment's.

    Raises:
        NotWritable: the folder cannot be made.
    """
    conceal_environment()
    return RunFolder.create(root, _manifest(experiment, earlier, experiment.plan() if plan is None else plan))


async def run_experiment(
    experiment: Experiment,
    run: RunFolder,
    observer: Observer,
    earlier: RunFolder | None = None,
    clear: Clear | None = None,
) -> None:
    """Run every trial of ``experiment`` into ``run``, but for those that ``earlier`` has finished.

    Where ``clear`` says after a repeat that it is enough, the later ones are left out.

    Afterwards its status is ``complete``, or ``failed`` when an engine did not start or died.

    Raises:
        EngineError, WorkloadError: the model or an engine's options are wrong.
        NotWritable: the disk filled up; what was recorded before is whole.
        CancelledError: interrupted; what was measured is kept and marked.
    """

    async def series(prepared: Prepared) -> str | None:
        return await run_series(prepared, run, observer, earlier, clear)

    await conducted(experiment, run, observer, series)


async def conducted(
    experiment: Experiment, run: RunFolder, observer: Observer, measure: Measure, *, redraw: bool = False
) -> None:
    """Prepare an experiment, let ``measure`` put its engines through trials, and store how that ended.

    Args:
        experiment: what to prepare.
        run: its folder.
        observer: who watches.
        measure: given what was prepared, returns what went wrong with engines, or None.
        redraw: draw the traffic of each repeat anew.

    Raises:
        EngineError, WorkloadError, CancelledError: as :func:`run_experiment`.
    """
    task, world = asyncio.current_task(), current_world()
    assert task is not None
    world.on_termination(task.cancel)  # as Ctrl-C
    try:
        failure = await _measured(experiment, run, observer, measure, world, redraw=redraw)
    except asyncio.CancelledError:
        _end(run, world, RunStatus.INTERRUPTED, "interrupted by the user")
        recover(run)
        raise
    except Exception as error:
        cause = first_leaf(error)
        with contextlib.suppress(NotWritable):  # a full disk may be what went wrong
            _end(run, world, RunStatus.FAILED, f"{type(cause).__name__}: {cause}")
        raise
    _end(run, world, RunStatus.FAILED if failure else RunStatus.COMPLETE, failure)


def recover(run: RunFolder) -> int:
    """Decode the streams of trials that were cut off, so that their requests can be read; returns how many trials."""
    manifest = run.read_manifest()
    with_streams = [(plan, run.trial(plan.id)) for plan in manifest.trials if run.trial(plan.id).stream_logs()]
    cut_off = [(plan, folder) for plan, folder in with_streams if not folder.has_requests()]
    if not cut_off:
        return 0
    sides = {side.shown: side for side in msgspec.convert(manifest.experiment["engines"], list[EngineConfig])}
    tokenizer = _tokenizer_here(msgspec.convert(manifest.experiment.get("model", {}), ModelConfig))
    for plan, folder in cut_off:
        side = sides[plan.engine]
        spoken = dialect(side.adapter, side.options, side)
        folder.write_requests(decode_stream(stream, spoken, tokenizer) for stream in folder.read_streams())
    return len(cut_off)


async def _measured(
    experiment: Experiment, run: RunFolder, observer: Observer, measure: Measure, world: World, *, redraw: bool
) -> str | None:
    """What ``measure`` says of all that is to be prepared for it."""
    model = await _resolve_model(experiment, observer, world)
    tokenizer = world.tokenizer(experiment.model, model)
    engines = {
        side.shown: engine(side.adapter, model, side.options, experiment.spec_of(side), side)
        for side in experiment.engines
    }
    with traffic_planner(experiment, tokenizer, redraw=redraw) as planner:
        sample = [turn for planned in planner.settling("demands") for turn in planned.session.turns]
        refuse_unmet(engines, sample, experiment.workload.name, tokenizer)
        here = machine(run.read_manifest().environment)
        return await measure(Prepared(experiment, model, tokenizer, engines, planner, here, world))


async def _resolve_model(experiment: Experiment, observer: Observer, world: World) -> Model:
    """The model; fetched when it is a known one that is not cached. An experiment on addresses alone needs none."""
    config = experiment.model
    if config.path is None and all(side.url for side in experiment.engines):
        return Model(config.name or "default")
    return await world.model(config, observer.fetching)


def _tokenizer_here(model: ModelConfig) -> Tokenizer | None:
    """The tokenizer, if it is on this machine already."""
    known = cached(model.name) if model.name in KNOWN_MODELS else None
    place = model.tokenizer or model.path or known
    try:
        return Tokenizer(Path(place).expanduser()) if place and place != APPROXIMATE else None
    except WorkloadError:
        return None


def _manifest(experiment: Experiment, earlier: RunFolder | None, plan: Sequence[TrialPlan]) -> Manifest:
    world = current_world()
    here = world.provenance()
    return Manifest(
        schema_version=SCHEMA_VERSION,
        run_id=world.run_id(experiment.name),
        name=experiment.name,
        status=RunStatus.RUNNING,
        created_utc=_text(world.now_utc()),
        pid=here.pid,
        host=here.host,
        bakeoff_version=VERSION,
        git_commit=here.git_commit,
        source=here.source,
        experiment=masked_data(msgspec.to_builtins(experiment)),
        environment=here.environment,
        trials=list(plan),
        slo=experiment.slo,
        resumed_from=earlier.path.name if earlier else None,
        notes=_notes(experiment),
    )


def _notes(experiment: Experiment) -> list[str]:
    notes = list(workload(experiment.workload.name, experiment.workload.options).notes())
    if experiment.model.tokenizer == APPROXIMATE:
        notes.append("prompts are approximate: their lengths were counted without the model's tokenizer")
    return notes


def _end(run: RunFolder, world: World, status: RunStatus, failure: str | None) -> None:
    manifest = run.read_manifest()
    said, ended_utc = masked(failure) if failure else None, _text(world.now_utc())
    run.write_manifest(msgspec.structs.replace(manifest, status=status, failure=said, ended_utc=ended_utc))


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
