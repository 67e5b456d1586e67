"""Bakeoff in Python: measure engines, read runs, compare them, and add an engine or a workload of your own.

    import bakeoff

    run = bakeoff.bench(url="http://127.0.0.1:8000")
    run.requests.groupby(["engine", "load"]).ttft_s.median()

Each function does what the command of its name does; what is imported here is what stays. Frames, metrics and findings
of a :class:`Run` are described in docs/definitions.md.
"""

import importlib
import sys
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engines import Deployment, EngineError, EngineSpec, Model, Setup
    from engines.dialects import Dialect, OpenAiDialect
    from engines.metrics import Prometheus, Series
    from engines.server_engine import ServerEngine
    from engines.spec import flag, one_of, option_argv
    from harness.errors import BadExperiment, HarnessError
    from harness.experiment.config import Experiment
    from results import ResultsError, Run
    from results.comparison import EngineComparison
    from results.gate import GateVerdict
    from workloads import Message, Seed, Session, Tokenizer, Turn, Workload, WorkloadError, prompt_reader

__all__ = [
    "BadExperiment",
    "Deployment",
    "Dialect",
    "EngineError",
    "EngineSpec",
    "Experiment",
    "HarnessError",
    "Message",
    "Model",
    "OpenAiDialect",
    "Prometheus",
    "ResultsError",
    "Run",
    "Seed",
    "Series",
    "ServerEngine",
    "Session",
    "Setup",
    "Tokenizer",
    "Turn",
    "Workload",
    "WorkloadError",
    "bench",
    "compare",
    "experiment",
    "flag",
    "gate",
    "load",
    "one_of",
    "option_argv",
    "prompt_reader",
    "run",
    "search",
]

_HOMES = {
    "engines": ("Deployment", "EngineError", "EngineSpec", "Model", "Setup"),
    "engines.dialects": ("Dialect", "OpenAiDialect"),
    "engines.metrics": ("Prometheus", "Series"),
    "engines.server_engine": ("ServerEngine",),
    "engines.spec": ("flag", "one_of", "option_argv"),
    "harness.errors": ("BadExperiment", "HarnessError"),
    "harness.experiment.config": ("Experiment",),
    "results": ("ResultsError", "Run"),
    "workloads": (
        "Message", "Seed", "Session", "Tokenizer", "Turn", "Workload", "WorkloadError", "prompt_reader",
    ),
}  # fmt: skip
"""Modules that hold what is imported from here, each at its first use: a run's reader needs no engines."""
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}


def experiment(source: "str | PathLike[str] | dict[str, Any]") -> "Experiment":
    """An experiment from its TOML file, or from data of the same shape.

    Raises:
        BadExperiment, EngineError, WorkloadError: it cannot be read, or contradicts itself; the message is one line.
    """
    from harness.experiment.config import experiment_from, load_experiment

    return experiment_from(source, "experiment") if isinstance(source, dict) else load_experiment(Path(source))


def run(source: "str | PathLike[str] | dict[str, Any] | Experiment", *, out: str | PathLike[str] = "runs") -> "Run":
    """Measure an experiment: a file, data of its shape, or one that was made by :func:`experiment`.

    Args:
        source: what is measured.
        out: folder in which the run's folder is made.

    Raises:
        BadExperiment, EngineError, WorkloadError, ResultsError: as ``bakeoff run`` says in a line.
        KeyboardInterrupt: Ctrl-C; what was measured until then is kept.
    """
    from harness.conduct.run import create_run, run_into
    from harness.experiment.config import Experiment

    made = source if isinstance(source, Experiment) else experiment(source)
    folder = create_run(made, Path(out))
    if run_into(folder, made):
        raise KeyboardInterrupt
    return load(folder.path)


def bench(*, out: str | PathLike[str] = "runs", **options: Any) -> "Run":  # noqa: ANN401  (typed where they arrive)
    """Measure a server that runs already; it is asked for what is not said.

    Args:
        out: folder in which the run's folder is made.
        options: ``url``, and whatever else :func:`harness.experiment.bench.bench_experiment` takes.

    Raises:
        BadExperiment, EngineError, WorkloadError, ResultsError, KeyboardInterrupt: as :func:`run`.
    """
    from harness.experiment.bench import bench_experiment

    return run(bench_experiment(**options), out=out)


def load(path: str | PathLike[str]) -> "Run":
    """Read a run folder; one that is still being measured shows what there is.

    Raises:
        ResultsError: there is no run, or one of another version.
    """
    from results import load

    return load(Path(path))


def compare(
    a: str,
    b: str,
    *,
    metrics: Sequence[str] | None = None,
    primary: str | None = None,
    alpha: float = 0.01,
    band: float | str | Iterable[str] | None = None,
) -> "EngineComparison":
    """Compare side B with side A, level by level; options are those of ``bakeoff compare``.

    Args:
        a: the baseline: ``RUN`` or ``RUN@ENGINE``.
        b: the candidate, likewise.
        metrics: to compare; None for the headline of the table.
        primary: the metric that counts most; None for the rule.
        alpha: share of false alarms.
        band: what counts as the same.

    Raises:
        ResultsError: a side cannot be read, or the two measure different things.
    """
    from results.comparison import compare_sides
    from results.comparison_config import agreed
    from results.sides import select

    return compare_sides(select(a), select(b), agreed(metrics, primary, alpha, band))


def gate(
    candidate: str,
    *,
    baseline: str | Sequence[str],
    metrics: Sequence[str] | None = None,
    primary: str | None = None,
    alpha: float = 0.01,
    band: float | str | Iterable[str] | None = None,
) -> "GateVerdict":
    """Whether a stored candidate is worse than a stored baseline: ``verdict.outcome``; as ``bakeoff gate``.

    Args:
        candidate: ``RUN`` or ``RUN@ENGINE``.
        baseline: likewise; several are one baseline that shows how runs differ, ``branch:NAME`` the newest of one.
        metrics: to compare; None for the headline of the table.
        primary: the metric that decides; None for the rule.
        alpha: share of false alarms of the primary metric, and of all others together.
        band: what counts as the same.

    Raises:
        ResultsError: a side cannot be read, is no evidence, or the two measure different things.
    """
    from results.baseline import baseline_of
    from results.comparison_config import agreed
    from results.gate import judge
    from results.sides import select

    side = select(candidate)
    named = [baseline] if isinstance(baseline, str) else list(baseline)
    return judge(baseline_of(side, named), side, agreed(metrics, primary, alpha, band))


def search(
    source: "str | PathLike[str] | dict[str, Any] | Experiment",
    slo: str,
    *,
    out: str | PathLike[str] = "runs",
    **options: Any,  # noqa: ANN401  (typed where they arrive)
) -> "Run":
    """Find the highest load at which each engine meets its objectives; ``run.search`` holds the answers.

    Args:
        source: as of :func:`run`; its loads bound the range.
        slo: what must hold in each trial: ``"ttft_p99<500ms,itl_p99<30ms"``.
        out: folder in which the run's folder is made.
        options: whatever else :func:`harness.conduct.policies.search_config.search_config` takes.

    Raises:
        BadExperiment, EngineError, WorkloadError, ResultsError, KeyboardInterrupt: as :func:`run`.
    """
    from harness.conduct.policies.search_config import search_config
    from harness.conduct.run import capacity_search, create_run, run_into
    from harness.experiment.config import Experiment

    made = source if isinstance(source, Experiment) else experiment(source)
    config = search_config(made, slo, **options)
    folder = create_run(made, Path(out), search=config)
    if run_into(folder, made, make_policy=capacity_search(config)):
        raise KeyboardInterrupt
    return load(folder.path)


def __getattr__(name: str) -> Any:  # noqa: ANN401  (whatever is imported)
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'bakeoff' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return list(__all__)


if __name__ == "__main__":
    from harness.cli import main

    sys.exit(main())
