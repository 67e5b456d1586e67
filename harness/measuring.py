"""What the command line and the pytest plugin share: the experiment of a bench, a run watched, and is it evidence."""

import asyncio
from os import PathLike
from typing import Any

from rich.console import Console

from harness.experiment import Experiment, experiment_from
from harness.machine_state import MAX_FOREIGN_SHARE
from harness.observer import observer, trial_line
from harness.run import run_experiment
from harness.series import Clear
from harness.world import current_world
from results import Run
from results.records import RunStatus, Verdict
from results.store import RunFolder


def bench_experiment(
    *,
    engine: str,
    url: str,
    model: str,
    tokenizer: str | PathLike[str],
    workload: str = "chat",
    scale: float | None = None,
    rate_per_s: float | None = None,
    arrival: str = "poisson",
    concurrency: int | None = None,
    duration_s: float = 30.0,
    ramp_s: float = 5.0,
    repeats: int = 1,
    seed: int = 1,
    api_key_env: str | None = None,
    calibrate: bool = True,
    max_foreign_share: float = MAX_FOREIGN_SHARE,
    name: str = "bench",
) -> Experiment:
    """The experiment of one load on a server that runs already; ``bakeoff bench --help`` says what each value means.

    Raises:
        BadExperiment, EngineError, WorkloadError: as :func:`~harness.experiment.experiment_from`.
    """
    load: dict[str, Any] = {"concurrency": concurrency} if concurrency is not None else {}
    if rate_per_s is not None:
        load |= {"rate_per_s": rate_per_s, "arrival": arrival}
    data = {
        "name": name,
        "seed": seed,
        "repeats": repeats,
        "model": {"name": model, "tokenizer": str(tokenizer)},
        "engines": [{"adapter": engine, "url": url, **({"api_key_env": api_key_env} if api_key_env else {})}],
        "workload": {"name": workload, "options": {} if scale is None else {"scale": scale}},
        "loads": [load],
        "trial": {"duration_s": duration_s, "ramp_s": ramp_s, "max_foreign_share": max_foreign_share},
        "client": {"calibrate": calibrate},
    }
    return experiment_from(data, "bench")


def run_into(
    folder: RunFolder, experiment: Experiment, earlier: RunFolder | None = None, clear: Clear | None = None
) -> bool:
    """Run an experiment before somebody's eyes; returns whether it was interrupted."""
    console = Console(stderr=True)
    with observer(console, experiment) as watcher:
        try:
            current_world().run(run_experiment(experiment, folder, watcher, earlier, clear))
        except (KeyboardInterrupt, asyncio.CancelledError):
            return True
    return False


def why_invalid(run: Run) -> str | None:
    """Why a run is no evidence: it failed, or a load level of an engine has no valid trial. None of one that is."""
    if run.status is not RunStatus.FAILED and all(cell.valid for cell in run.cells):
        return None
    invalid = (trial_line(trial.record) for trial in run.finished if trial.record.verdict is Verdict.INVALID)
    return run.manifest.failure or next(invalid, "a trial never ended")
