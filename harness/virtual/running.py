"""Runs, searches and gates in virtual time, in a line each."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.conduct.progress import Observer
from harness.conduct.world import inside
from harness.experiment.config import Experiment, experiment_from
from harness.gating import Looks, two_sides
from harness.run import create_run, run_experiment
from harness.searching import Terms as SearchTerms
from harness.searching import create_search, search
from harness.virtual.engine import VirtualEngine
from harness.virtual.world import VirtualWorld
from results import Run, load
from results.gate import GateVerdict
from results.records import TrialPlan, TrialRecord
from results.search import Attempt, SearchRecord
from results.store import RunFolder
from results.terms import Terms


class Quiet:
    """An observer that says nothing."""

    def fetching(self, have_bytes: int, total_bytes: int | None) -> None:
        """Nothing."""

    def starting(self, label: str, repeat: int) -> None:
        """Nothing."""

    def trial_started(self, plan: TrialPlan) -> None:
        """Nothing."""

    def trial_finished(self, record: TrialRecord) -> None:
        """Nothing."""

    def judged(self, search: SearchRecord, engine: str, attempt: Attempt) -> None:
        """Nothing."""


QUIET = Quiet()


def virtual_experiment(labels: Iterable[str], loads: Iterable[Mapping[str, Any]], **changes: Any) -> Experiment:  # noqa: ANN401
    """An experiment on virtual engines: prompts of 8 words, answers of 5 tokens, 3 repeats, no settling.

    Args:
        labels: of the engines.
        loads: as in an experiment file.
        changes: tables that replace those of here.

    Raises:
        BadExperiment: as :func:`harness.experiment.config.experiment_from`.
    """
    data: dict[str, Any] = {
        "name": "virtual",
        "engines": [{"adapter": "reference", "label": label} for label in labels],
        "loads": list(loads),
        "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 5}},
        "trial": {"settle_s": 0.0},
        "quality": {"samples": 0},
        **changes,
    }
    return experiment_from(data, "virtual")


def run_in(
    world: VirtualWorld,
    experiment: Experiment,
    root: Path,
    *,
    earlier: RunFolder | None = None,
    watcher: Observer = QUIET,
) -> Run:
    """Run an experiment to its end; ``world.sites`` then hold the truth.

    Args:
        world: has an engine for each label of the experiment.
        experiment: what is run.
        root: folder in which the run's folder is made.
        earlier: a run whose finished trials are taken over.
        watcher: who is told of the progress.

    Raises:
        EngineError, WorkloadError: as :func:`harness.run.run_experiment`.
    """
    with inside(world):
        folder = create_run(experiment, root, earlier)
        world.run(run_experiment(experiment, folder, watcher, earlier))
    return load(folder.path)


def search_in(world: VirtualWorld, experiment: Experiment, root: Path, terms: SearchTerms) -> Run:
    """Search for what each engine bears; see :func:`run_in` and :func:`harness.searching.search`."""
    with inside(world):
        folder = create_search(experiment, root)
        world.run(search(experiment, folder, QUIET, terms))
    return load(folder.path)


def gate_in(
    world: VirtualWorld, experiment: Experiment, root: Path, *, baseline: str, candidate: str, terms: Terms
) -> tuple[Run, GateVerdict]:
    """Measure two engines side by side until the verdict is clear; see :func:`run_in`.

    Raises:
        NoEvidence: too little of the run is valid, and what is not says nothing against the candidate.
    """
    pair, a, b = two_sides(experiment, baseline, candidate)
    with inside(world):
        folder = create_run(pair, root)
        looks = Looks(folder, a, b, pair.repeats, terms)
        world.run(run_experiment(pair, folder, QUIET, clear=looks.clear))
    return load(folder.path), looks.last()


def virtual_run(experiment: Experiment, engines: Mapping[str, VirtualEngine], root: Path, *, seed: int = 1) -> Run:
    """:func:`run_in` a world of its own, with these engines by label."""
    return run_in(VirtualWorld(engines, seed=seed), experiment, root)


def virtual_search(
    experiment: Experiment, engines: Mapping[str, VirtualEngine], root: Path, terms: SearchTerms, *, seed: int = 1
) -> Run:
    """:func:`search_in` a world of its own, with these engines by label."""
    return search_in(VirtualWorld(engines, seed=seed), experiment, root, terms)


def virtual_gate(
    experiment: Experiment,
    engines: Mapping[str, VirtualEngine],
    root: Path,
    *,
    baseline: str,
    candidate: str,
    terms: Terms,
    seed: int = 1,
) -> GateVerdict:
    """:func:`gate_in` a world of its own, with these engines by label; the verdict alone."""
    world = VirtualWorld(engines, seed=seed)
    return gate_in(world, experiment, root, baseline=baseline, candidate=candidate, terms=terms)[1]
