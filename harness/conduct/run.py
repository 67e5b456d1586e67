"""Carries out runs: from an experiment to a run folder.

The run's status states how it ended: ``complete``; ``interrupted`` after Ctrl-C, which keeps all finished trials and
the requests of the current trial; ``failed`` with the reason; and, after ``kill -9`` of this process, ``incomplete``;
then :func:`~bakeoff.harness.conduct.recovery.recover` decodes the requests of the current trial.
"""

import asyncio
import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from bakeoff.engines import pick_port
from bakeoff.engines.base import addresses_of
from bakeoff.engines.secrets import conceal_environment, masked, masked_data
from bakeoff.harness.conduct.conductor import Conductor
from bakeoff.harness.conduct.policies import Done, Policy
from bakeoff.harness.conduct.policies.capacity_search import CapacitySearch
from bakeoff.harness.conduct.policies.fixed_plan import FixedPlan, is_spoilt
from bakeoff.harness.conduct.policies.gate import Gate, InterimAnalyses
from bakeoff.harness.conduct.preparation import Preparation, prepared
from bakeoff.harness.conduct.progress import Observer, progress, trial_line
from bakeoff.harness.conduct.recovery import recover
from bakeoff.harness.conduct.trial import TrialRunner
from bakeoff.harness.conduct.warm_up import WarmUp
from bakeoff.harness.conduct.world import World, current_world
from bakeoff.harness.errors import first_leaf
from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.host.amd import READER
from bakeoff.harness.host.environment import VERSION
from bakeoff.harness.host.scratch import scratch_folder
from bakeoff.results import Run
from bakeoff.results.errors import NotReachable, NotWritable, ResultsError, RunUnreadable
from bakeoff.results.log.remote import RunCopy
from bakeoff.results.log.run_log import RunEnded, RunLog, RunLogWriter, RunStarted
from bakeoff.results.log.search import SearchConfig
from bakeoff.results.log.store import QUICK_BYTES, RunFolder
from bakeoff.results.machine.ceilings import Ceilings, stored_ceilings
from bakeoff.results.records import RunStatus, TrialPlan, TrialRecord, Verdict
from bakeoff.results.schema import SCHEMA_VERSION
from bakeoff.workloads import APPROXIMATE

MakePolicy = Callable[[Preparation, RunFolder], Policy]


def fixed_plan(preparation: Preparation, run: RunFolder) -> Policy:  # noqa: ARG001  (a MakePolicy)
    """The policy of an ordinary run."""
    return FixedPlan(preparation.experiment.plan())


def capacity_search(config: SearchConfig) -> MakePolicy:
    """The policy of a search."""
    return lambda preparation, run: CapacitySearch(config, preparation, run)


def gate(analyses: InterimAnalyses) -> MakePolicy:
    """The policy of a run that ends as soon as its verdict is clear."""
    return lambda preparation, _: Gate(preparation.experiment.plan(), analyses)


def create_run(
    experiment: Experiment, root: Path, earlier: RunFolder | None = None, *, search: SearchConfig | None = None
) -> RunFolder:
    """Create the run's folder below ``root``, before anything is fetched or started.

    Args:
        experiment: to run.
        root: parent of the new folder.
        earlier: a run whose finished trials will be reused.
        search: configuration of a capacity search; its plan is empty and its name ends in ``-search``.

    Raises:
        NotWritable: the folder cannot be created.
    """
    conceal_environment()
    world = current_world()
    provenance = world.provenance()
    if search is not None:
        experiment = msgspec.structs.replace(experiment, name=f"{experiment.name}-search")
    started = RunStarted(
        t_ns=world.now_ns(),
        schema_version=SCHEMA_VERSION,
        run_id=world.run_id(experiment.name),
        name=experiment.name,
        created_utc=_text(world.now_utc()),
        pid=provenance.pid,
        host=provenance.host,
        bakeoff_version=VERSION,
        git_commit=provenance.git_commit,
        source=provenance.source,
        experiment=masked_data(msgspec.to_builtins(experiment)),
        environment=provenance.environment,
        plan=[] if search else experiment.plan(),
        slo=experiment.slo,
        objectives=experiment.objectives,
        prices={each.name: own for each in experiment.engines if (own := experiment.prices_of(each)).are_stated},
        api_prices=experiment.api_prices,
        classes={each.name: experiment.slo_of_class(each.name) for each in experiment.classes},
        grid={each.name: each.point for each in experiment.engines if each.point is not None},
        resumed_from=earlier.path.name if earlier else None,
        notes=[*_notes(experiment), *_notes_on_gpus(provenance.environment)],
        search=search,
        ceilings=_ceilings(root, provenance.environment) if experiment.profile else [],
    )
    return RunFolder.create(root, started)


def run_into(
    folder: RunFolder,
    experiment: Experiment,
    earlier: RunFolder | None = None,
    make_policy: MakePolicy = fixed_plan,
    *,
    store: str | None = None,
) -> bool:
    """Run an experiment into ``folder`` with its progress on stderr; returns whether it was interrupted.

    Args:
        folder: made by :func:`create_run`.
        experiment: the same as the folder's.
        earlier: a run whose finished trials are reused.
        make_policy: chooses the trials.
        store: address of a store's folder of runs, to which the run is copied while it goes on.

    Raises:
        NotReachable: the store cannot be written; the folder is removed, and nothing is measured.
    """
    copy = _begun_copy(folder, store) if store is not None else None
    with progress(Console(stderr=True), experiment, folder.read_log()) as observer:
        if copy is not None:
            observer.notice(f"the run is copied to {copy.address} while it goes on")
        try:
            current_world().run(run_experiment(experiment, folder, observer, earlier, make_policy, copy=copy))
        except (KeyboardInterrupt, asyncio.CancelledError):
            return True
    return False


def _begun_copy(folder: RunFolder, store: str) -> RunCopy:
    try:
        return RunCopy.begin(folder, store)
    except NotReachable:
        shutil.rmtree(folder.path)
        raise


def rehearse(experiment: Experiment) -> None:
    """Check everything that can be checked without a load: model, tokenizer, engines' programs, traffic.

    Raises:
        BakeoffError: as :func:`run_into` would; nothing is left behind.
    """
    with scratch_folder() as scratch:
        folder = create_run(experiment, scratch)
        current_world().run(_rehearsed(experiment, folder))


async def _rehearsed(experiment: Experiment, folder: RunFolder) -> None:
    world = current_world()
    with progress(Console(stderr=True), experiment, folder.read_log()) as observer:
        async with prepared(experiment, folder, world, observer.fetching) as preparation:
            for engine in preparation.engines.values():
                if not engine.url:
                    engine.launch(pick_port())
                elif not experiment.client.ray:  # workers elsewhere may reach what this machine cannot
                    for address in addresses_of(engine):
                        await world.require_listener(address.url)
            for load in experiment.loads:
                await world.in_thread(preparation.planner.traffic, load, 1, experiment.engines[0].name)


async def run_experiment(
    experiment: Experiment,
    run: RunFolder,
    observer: Observer,
    earlier: RunFolder | None = None,
    make_policy: MakePolicy = fixed_plan,
    *,
    copy: RunCopy | None = None,
) -> None:
    """Run the trials that a policy chooses into ``run``, reusing the finished ones of ``earlier``.

    Afterwards the run's status is ``complete``, or ``failed`` if an engine did not start or died.

    Raises:
        EngineError, WorkloadError: the model, an engine's options or the traffic are wrong.
        NotWritable: the disk is full; records written before are intact. Or the run has ended, and its copy lacks some.
        CancelledError: interrupted; the finished trials are kept.
    """
    task, world = asyncio.current_task(), current_world()
    assert task is not None
    world.on_termination(task.cancel)  # handle SIGTERM and SIGHUP like Ctrl-C
    with contextlib.closing(RunLogWriter(run.log_path, world.now_ns)) as writer:
        try:
            done = await _carried_out(
                experiment, run, writer, observer, earlier=earlier, make_policy=make_policy, copy=copy
            )
        except asyncio.CancelledError:
            _end(writer, world, RunStatus.INTERRUPTED, "interrupted by the user")
            recover(run, most_bytes=QUICK_BYTES)
            if incomplete := _end_copy(run, writer.log, copy):
                observer.notice(str(incomplete))
            raise
        except Exception as error:
            cause = first_leaf(error)
            with contextlib.suppress(NotWritable):  # the error may be a full disk
                _end(writer, world, RunStatus.FAILED, f"{type(cause).__name__}: {cause}")
            if incomplete := _end_copy(run, writer.log, copy):
                observer.notice(str(incomplete))
            raise
        _end(writer, world, RunStatus.FAILED if done.failure else RunStatus.COMPLETE, done.failure, *done.notes)
        if incomplete := _end_copy(run, writer.log, copy):
            raise incomplete


async def _carried_out(
    experiment: Experiment,
    run: RunFolder,
    writer: RunLogWriter,
    observer: Observer,
    *,
    earlier: RunFolder | None,
    make_policy: MakePolicy,
    copy: RunCopy | None,
) -> Done:
    world, client = current_world(), experiment.client
    is_search = writer.log.search is not None
    async with (
        prepared(experiment, run, world, observer.fetching, redraw=is_search) as preparation,
        world.sampler() as telemetry,
        world.fleet(client) as fleet,
    ):
        fleet.on_silence = observer.silence
        tokenizer = preparation.tokenizer
        runner = TrialRunner(
            experiment, run, fleet, telemetry, tokenizer=tokenizer, world=world, observer=observer
        )  # fmt: skip
        warm_up = WarmUp(fleet, preparation.planner, experiment.trial, client.transport, world.now_ns)
        conductor = Conductor(
            preparation, run, writer, observer,
            runner=runner, warm_up=warm_up, reusable=reusable(earlier, is_search=is_search), copy=copy,
        )  # fmt: skip
        return await conductor.carry_out(make_policy(preparation, run))


def reusable(earlier: RunFolder | None, *, is_search: bool) -> dict[str, list[tuple[RunFolder, TrialRecord]]]:
    """The trials of an earlier run, and of those that it resumed, that need not be measured again, by fingerprint.

    Engines with equal settings share fingerprints. A trial that several of the runs have comes from the newest. A
    comparison pairs trials of one session, so one whose partners are missing there is measured again with them. INVALID
    trials are evidence in a search alone, unless the client or the machine spoilt them.
    """
    finished: dict[str, list[tuple[RunFolder, TrialRecord]]] = {}
    seen: set[Path] = set()
    known: set[tuple[str, str]] = set()
    while earlier is not None and earlier.path not in seen:
        seen.add(earlier.path)
        log = earlier.read_log()
        if log.started is not None and log.started.schema_version != SCHEMA_VERSION:
            break  # its files cannot be those of a run of today
        newer = set(known)
        records = [record for record in log.finished.values() if record.fingerprint]
        if is_search:
            usable = [record for record in records if record.verdict is Verdict.VALID or not is_spoilt(record)]
        else:
            usable = _in_whole_pairs(records, log.started.plan if log.started else [])
        for record in usable:
            if (record.fingerprint, record.engine) not in newer:
                known.add((record.fingerprint, record.engine))
                finished.setdefault(record.fingerprint, []).append((earlier, record))
        earlier = _resumed_by(earlier, log.started.resumed_from if log.started else None)
    return finished


_Place = tuple[int, str, bool]
"""Repeat, load level, and whether the trial is profiled: engines that share it are compared there."""


def _place(trial: TrialPlan | TrialRecord) -> _Place:
    return trial.repeat, trial.load.label, trial.profiled


def _in_whole_pairs(records: Sequence[TrialRecord], plan: Sequence[TrialPlan]) -> list[TrialRecord]:
    """VALID trials beside those of all other engines in their session, and the spoilt attempts that came before them.

    Args:
        records: finished trials of a run.
        plan: of that run, which may have fewer engines than the one that resumes it.
    """
    planned = Counter(map(_place, plan))
    engines: dict[tuple[str | None, _Place], set[str]] = {}
    for record in records:
        if record.verdict is Verdict.VALID:
            engines.setdefault((record.reused_from, _place(record)), set()).add(record.engine)
    whole = {at for at, own in engines.items() if len(own) >= planned[at[1]]}
    by_id = {record.id: record for record in records}
    chosen: dict[str, TrialRecord] = {}
    for record in records:
        at: TrialRecord | None = record
        if record.verdict is not Verdict.VALID or (record.reused_from, _place(record)) not in whole:
            continue
        while at is not None and at.id not in chosen:
            chosen[at.id] = at
            at = by_id.get(at.replaces) if at.replaces else None
    return list(chosen.values())


def _resumed_by(run: RunFolder, earlier: str | None) -> RunFolder | None:
    """The run that ``run`` resumed, if it still lies beside it and can be read."""
    if earlier is None:
        return None
    try:
        folder = RunFolder.open(run.path.parent / earlier)
        folder.read_log()
    except ResultsError:
        return None
    return folder


def why_invalid(run: Run) -> str | None:
    """Why a run is no evidence: it failed, or an engine has a load level without a valid trial; None if it is valid."""
    if run.status is not RunStatus.FAILED and all(cell.valid for cell in run.cells):
        return None
    invalid = (trial_line(trial.record) for trial in run.finished if trial.record.verdict is Verdict.INVALID)
    return run.manifest.failure or next(invalid, "a trial never ended")


def _notes(experiment: Experiment) -> list[str]:
    notes = list(experiment.source().notes())
    notes += [f"class {each.name}: {text}" for each in experiment.classes if (text := each.request.described())]
    if experiment.model.tokenizer == APPROXIMATE:
        notes.append("prompts are approximate: their lengths were counted without the model's tokenizer")
    return notes


def _notes_on_gpus(environment: Mapping[str, Any]) -> list[str]:
    if any(gpu.get("reader") == READER for gpu in environment.get("gpus") or ()):
        return [f"AMD's GPUs are read through {READER}, which is experimental: it was tried on simulated ones alone"]
    return []


def _ceilings(root: Path, environment: Mapping[str, Any]) -> list[Ceilings]:
    """Ceilings stored by ``bakeoff lab machine``; none if the file is damaged, which the attribution will report."""
    try:
        return stored_ceilings(root, environment)
    except RunUnreadable:
        return []


def _end(writer: RunLogWriter, world: World, status: RunStatus, failure: str | None, *notes: str) -> None:
    ended = RunEnded(
        status=status, ended_utc=_text(world.now_utc()), failure=masked(failure) if failure else None, notes=list(notes)
    )
    writer.append(ended)


def _end_copy(run: RunFolder, log: RunLog, copy: RunCopy | None) -> NotWritable | None:
    """Store the rest of a run that has ended in its copy, if it has one; returns the error if that fails."""
    if copy is None:
        return None
    copy.update(log)
    if copy.problem is None:
        return None
    return NotWritable(copy.problem, f"the run is whole in {run.path}: copy that folder to {copy.address}")


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
