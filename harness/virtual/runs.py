"""Runs, searches and gates in virtual time, by one call each."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bakeoff.harness.conduct.policies.gate import InterimAnalyses, gate_experiment
from bakeoff.harness.conduct.progress import Observer, QuietObserver
from bakeoff.harness.conduct.run import capacity_search, create_run, fixed_plan, gate, run_experiment
from bakeoff.harness.conduct.world import inside
from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.harness.virtual.engine import VirtualEngine
from bakeoff.harness.virtual.world import VirtualWorld
from bakeoff.results import Run, load
from bakeoff.results.compare.config import ComparisonConfig
from bakeoff.results.compare.gate import GateVerdict
from bakeoff.results.log.search import SearchConfig
from bakeoff.results.log.store import RunFolder

QUIET = QuietObserver()


def virtual_experiment(labels: Iterable[str], loads: Iterable[Mapping[str, Any]], **changes: Any) -> Experiment:  # noqa: ANN401
    """An experiment on virtual engines: prompts of 8 words, answers of 5 tokens, 3 repeats, no warm-up.

    Args:
        labels: of the engines.
        loads: as in an experiment file.
        changes: top-level keys that override the defaults.

    Raises:
        BadExperiment: as :func:`bakeoff.harness.experiment.reading.experiment_from`.
    """
    data: dict[str, Any] = {
        "name": "virtual",
        "engines": [{"adapter": "reference", "label": label} for label in labels],
        "loads": list(loads),
        "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 5}},
        "trial": {"warm_up_s": 0.0},
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
    observer: Observer = QUIET,
    search: SearchConfig | None = None,
) -> Run:
    """Run an experiment to its end; afterwards ``world.sites`` hold the true timings.

    Args:
        world: has an engine for each label of the experiment.
        experiment: to run.
        root: parent of the new run folder.
        earlier: a run whose finished trials are reused.
        observer: is notified of the progress.
        search: searches for the highest load at which each engine meets its objectives; None runs the fixed plan.

    Raises:
        EngineError, WorkloadError: as :func:`bakeoff.harness.conduct.run.run_experiment`.
    """
    with inside(world):
        folder = create_run(experiment, root, earlier, search=search)
        make_policy = capacity_search(search) if search else fixed_plan
        world.run(run_experiment(experiment, folder, observer, earlier, make_policy))
    return load(folder.path)


def gate_in(
    world: VirtualWorld, experiment: Experiment, root: Path, *, baseline: str, candidate: str, config: ComparisonConfig
) -> tuple[Run, GateVerdict]:
    """Measure two engines in alternation until the verdict is clear; see :func:`run_in`.

    Raises:
        NoEvidence: too few trials are valid, and the INVALID ones do not accuse the candidate.
    """
    pair, a, b = gate_experiment(experiment, baseline, candidate)
    with inside(world):
        folder = create_run(pair, root)
        analyses = InterimAnalyses(folder, a, b, pair.repeats, config)
        world.run(run_experiment(pair, folder, QUIET, make_policy=gate(analyses)))
    return load(folder.path), analyses.final()


def virtual_run(experiment: Experiment, engines: Mapping[str, VirtualEngine], root: Path, *, seed: int = 1) -> Run:
    """Run :func:`run_in` in a new world that has these engines, by label."""
    return run_in(VirtualWorld(engines, seed=seed), experiment, root)


def virtual_search(
    experiment: Experiment, engines: Mapping[str, VirtualEngine], root: Path, config: SearchConfig, *, seed: int = 1
) -> Run:
    """Search by :func:`run_in` in a new world that has these engines, by label."""
    return run_in(VirtualWorld(engines, seed=seed), experiment, root, search=config)


def virtual_gate(
    experiment: Experiment,
    engines: Mapping[str, VirtualEngine],
    root: Path,
    *,
    baseline: str,
    candidate: str,
    config: ComparisonConfig,
    seed: int = 1,
) -> GateVerdict:
    """Run :func:`gate_in` in a new world that has these engines, by label; returns only the verdict."""
    world = VirtualWorld(engines, seed=seed)
    return gate_in(world, experiment, root, baseline=baseline, candidate=candidate, config=config)[1]
