"""A whole run: from an experiment to a run folder.

Whatever ends it, the folder tells: ``complete``; ``interrupted`` after Ctrl-C, with every finished trial whole and
the cut-off one salvaged; ``failed`` with the engine's last words; and after ``kill -9`` of this process a reader calls
it ``incomplete`` (:func:`recover` then decodes what the cut-off trial had recorded).
"""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from engines import Engine, EngineError, Model, attached, dialect, engine, launched, pick_port
from engines.models import KNOWN_MODELS, cached, resolve
from engines.secrets import masked_data
from harness.client import Fleet, decode_stream, local_fleet
from harness.client.ray_fleet import ray_fleet
from harness.environment import VERSION, environment, git_commit
from harness.errors import first_leaf
from harness.experiment import ClientConfig, Experiment, experiment_from
from harness.observer import Observer
from harness.telemetry import sampler
from harness.traffic import TrafficPlanner, traffic_planner
from harness.trial import Side, TrialRunner
from results.records import SCHEMA_VERSION, EngineDescription, Manifest, RunStatus, TrialPlan, TrialRecord
from results.store import RunFolder, new_run_id
from workloads import NoTokenizer, Tokenizer, workload
from workloads.errors import WorkloadError


def create_run(experiment: Experiment, root: Path) -> RunFolder:
    """Make the run's folder below ``root``, before anything is fetched or started.

    Raises:
        NotWritable: the folder cannot be made.
    """
    return RunFolder.create(root, _manifest(experiment))


async def run_experiment(experiment: Experiment, run: RunFolder, observer: Observer) -> None:
    """Run every trial of ``experiment`` into ``run``.

    Afterwards its status is ``complete``, or ``failed`` when an engine did not start or died.

    Raises:
        EngineError, WorkloadError: the model or an engine's options are wrong.
        CancelledError: interrupted; what was measured is kept and marked.
    """
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        failure = await _measure(experiment, run, observer)
    except asyncio.CancelledError:
        _end(run, RunStatus.INTERRUPTED, "interrupted by the user")
        recover(run)
        raise
    except Exception as error:
        cause = first_leaf(error)
        _end(run, RunStatus.FAILED, f"{type(cause).__name__}: {cause}")
        raise
    _end(run, RunStatus.FAILED if failure else RunStatus.COMPLETE, failure)


def recover(run: RunFolder) -> int:
    """Decode the streams of trials that were cut off, so that their requests can be read; returns how many trials."""
    manifest = run.read_manifest()
    with_streams = [(plan, run.trial(plan.id)) for plan in manifest.trials if run.trial(plan.id).stream_logs()]
    cut_off = [(plan, folder) for plan, folder in with_streams if not folder.has_requests()]
    if not cut_off:
        return 0
    experiment = experiment_from(manifest.experiment, str(run.path))
    tokenizer = _tokenizer_here(experiment)
    for plan, folder in cut_off:
        side = next(side for side in experiment.engines if side.shown == plan.engine)
        spoken = dialect(side.adapter, side.options, side)
        folder.write_requests(decode_stream(stream, spoken, tokenizer) for stream in folder.read_streams())
    return len(cut_off)


async def _measure(experiment: Experiment, run: RunFolder, observer: Observer) -> str | None:
    """Run the trials; returns what went wrong with engines, or None."""
    model = await _resolve_model(experiment, observer)
    tokenizer = _tokenizer(experiment, model)
    engines = {
        side.shown: engine(side.adapter, model, side.options, experiment.spec_of(side), side)
        for side in experiment.engines
    }
    with traffic_planner(experiment, tokenizer) as planner:
        await _plan_repeat(experiment, planner, 1)  # what is wrong with the traffic shows before anything is started
        return await _run_trials(_Prepared(experiment, model, tokenizer, engines, planner), run, observer)


class _Prepared(msgspec.Struct, frozen=True):
    """All that is known before the first engine starts."""

    experiment: Experiment
    model: Model
    tokenizer: Tokenizer
    engines: dict[str, Engine]
    planner: TrafficPlanner


async def _run_trials(prepared: _Prepared, run: RunFolder, observer: Observer) -> str | None:
    """Start engine after engine and run its trials; returns what went wrong with engines, or None."""
    experiment, planner = prepared.experiment, prepared.planner
    ports = {side.shown: side.port for side in experiment.engines}
    failures: dict[str, str] = {}
    async with sampler() as telemetry, _fleet(experiment.client) as fleet:
        runner = TrialRunner(experiment, run, fleet, telemetry, prepared.tokenizer)
        plan = list(enumerate(experiment.plan(), start=1))
        for (repeat, label), group in itertools.groupby(plan, key=lambda item: (item[1].repeat, item[1].engine)):
            if label in failures:
                continue  # an engine that failed once is given up; the others go on
            await _plan_repeat(experiment, planner, repeat)
            observer.starting(label, repeat)
            log = run.engine_log(label, repeat)
            try:
                async with _side(prepared.engines[label], label, prepared.model, pick_port(ports[label]), log) as side:
                    await _trials(list(group), side, runner, planner, observer)
            except EngineError as error:
                failures[label] = _failure(label, repeat, error)
    return "; ".join(failures.values()) or None


def _fleet(client: ClientConfig) -> contextlib.AbstractAsyncContextManager[Fleet]:
    """The client's workers, on this machine or on a cluster's."""
    return (
        ray_fleet(client.ray, client.workers, client.cores) if client.ray else local_fleet(client.workers, client.cores)
    )


async def _trials(
    group: Sequence[tuple[int, TrialPlan]],
    side: Side,
    runner: TrialRunner,
    planner: TrafficPlanner,
    observer: Observer,
) -> None:
    """The trials of one start of one engine; those after its death are left undone."""
    for order, plan in group:
        observer.trial_started(plan)
        record: TrialRecord = await runner.run(plan, order, side, planner.traffic(plan.load, plan.repeat, plan.engine))
        observer.trial_finished(record)
        death = side.server.died()
        if death:
            raise death


@contextlib.asynccontextmanager
async def _side(made: Engine, label: str, model: Model, port: int, log: Path) -> AsyncGenerator[Side]:
    """The engine, running and described."""
    launch = made.launch(port)
    running = (
        launched(launch, log, made.access) if launch else contextlib.nullcontext(attached(made.url or "", made.access))
    )
    async with running as server:
        details = await made.describe(server)
        version = details.pop("version", None)
        description = EngineDescription(
            label=label,
            adapter=made.adapter,
            version=version,
            argv=masked_data(launch.argv) if launch else [],
            env=masked_data(launch.env) if launch else {},
            url=made.url,
            model=model.name,
            model_sha256=model.sha256,
            details=masked_data(details),
            notes=list(made.notes),
        )
        yield Side(made, server, description)


async def _resolve_model(experiment: Experiment, observer: Observer) -> Model:
    """The model; fetched when it is a known one that is not cached. An experiment on addresses alone needs none."""
    config = experiment.model
    if config.path is None and all(side.url for side in experiment.engines):
        return Model(config.name or "default")
    return await asyncio.to_thread(resolve, config.name, config.path, observer.fetching)


def _tokenizer(experiment: Experiment, model: Model) -> Tokenizer:
    place = experiment.model.tokenizer or model.path
    if place is None:
        raise NoTokenizer("prompts of exact length need the model's tokenizer; set tokenizer (a folder) in [model]")
    return Tokenizer(Path(place).expanduser())


def _tokenizer_here(experiment: Experiment) -> Tokenizer | None:
    """The tokenizer, if it is on this machine already."""
    known = cached(experiment.model.name) if experiment.model.name in KNOWN_MODELS else None
    place = experiment.model.tokenizer or experiment.model.path or known
    try:
        return Tokenizer(Path(place).expanduser()) if place else None
    except WorkloadError:
        return None


async def _plan_repeat(experiment: Experiment, planner: TrafficPlanner, repeat: int) -> None:
    """Make the traffic of one repeat while no engine runs; what is made already costs nothing."""
    for plan in experiment.plan():
        if plan.repeat == repeat:
            await asyncio.to_thread(planner.traffic, plan.load, repeat, plan.engine)


def _failure(label: str, repeat: int, error: EngineError) -> str:
    """One line, and the engine's last lines below it where they say more."""
    tail = [line for line in error.log_tail if line.strip() and line.strip() not in str(error)]
    return "\n  | ".join([f"{label}, repeat {repeat}: {error}", *tail])


def _manifest(experiment: Experiment) -> Manifest:
    return Manifest(
        schema_version=SCHEMA_VERSION,
        run_id=new_run_id(experiment.name),
        name=experiment.name,
        status=RunStatus.RUNNING,
        created_utc=_now(),
        pid=os.getpid(),
        host=socket.gethostname(),
        bakeoff_version=VERSION,
        git_commit=git_commit(),
        experiment=masked_data(msgspec.to_builtins(experiment)),
        environment=environment(),
        trials=experiment.plan(),
        slo=experiment.slo,
        notes=workload(experiment.workload.name, experiment.workload.options).notes(),
    )


def _end(run: RunFolder, status: RunStatus, failure: str | None) -> None:
    manifest = run.read_manifest()
    run.write_manifest(msgspec.structs.replace(manifest, status=status, failure=failure, ended_utc=_now()))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
