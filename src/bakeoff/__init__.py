"""Bakeoff's Python API: measure engines, read and compare runs, and add your own engines and workloads.

    import bakeoff

    run = bakeoff.bench(url="http://127.0.0.1:8000")
    run.requests.groupby(["engine", "load"]).ttft_s.median()

Each function does what the command of the same name does. The names in ``__all__`` are stable. docs/definitions.md
describes the data frames, metrics and findings of a :class:`Run`.
"""

import importlib
import os
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bakeoff.engines import Deployment, EngineError, EngineSpec, Model, Setup
    from bakeoff.engines.dialects import Dialect, OpenAiDialect
    from bakeoff.engines.metrics import Prometheus, Series
    from bakeoff.engines.server_engine import ServerEngine
    from bakeoff.engines.spec import flag, one_of, option_argv
    from bakeoff.harness.claims.run import ClaimsRun
    from bakeoff.harness.errors import BadExperiment, HarnessError
    from bakeoff.harness.experiment.config import Experiment
    from bakeoff.harness.sizing.plan import Plan
    from bakeoff.results import ResultsError, Run
    from bakeoff.results.compare.comparison import EngineComparison
    from bakeoff.results.compare.gate import GateVerdict
    from bakeoff.workloads import Message, Seed, Session, Tokenizer, Turn, Workload, WorkloadError, prompt_reader

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
    "claims",
    "compare",
    "experiment",
    "flag",
    "gate",
    "load",
    "one_of",
    "option_argv",
    "plan",
    "prompt_reader",
    "run",
    "search",
]

_HOMES = {
    "bakeoff.engines": ("Deployment", "EngineError", "EngineSpec", "Model", "Setup"),
    "bakeoff.engines.dialects": ("Dialect", "OpenAiDialect"),
    "bakeoff.engines.metrics": ("Prometheus", "Series"),
    "bakeoff.engines.server_engine": ("ServerEngine",),
    "bakeoff.engines.spec": ("flag", "one_of", "option_argv"),
    "bakeoff.harness.errors": ("BadExperiment", "HarnessError"),
    "bakeoff.harness.experiment.config": ("Experiment",),
    "bakeoff.results": ("ResultsError", "Run"),
    "bakeoff.workloads": (
        "Message", "Seed", "Session", "Tokenizer", "Turn", "Workload", "WorkloadError", "prompt_reader",
    ),
}  # fmt: skip
"""The modules of lazily imported names: reading a run must not import the engines."""
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}


def experiment(source: "str | PathLike[str] | dict[str, Any]") -> "Experiment":
    """Build an experiment from a TOML file, or from a dict of the same structure.

    Raises:
        BadExperiment, EngineError, WorkloadError: it cannot be read, or is invalid; the message is one line.
    """
    from bakeoff.harness.experiment.config import experiment_from, load_experiment

    return experiment_from(source, "experiment") if isinstance(source, dict) else load_experiment(Path(source))


def run(source: "str | PathLike[str] | dict[str, Any] | Experiment", *, out: str | PathLike[str] = "runs") -> "Run":
    """Measure an experiment.

    Args:
        source: a TOML file, a dict of the same structure, or the result of :func:`experiment`.
        out: parent of the new run folder.

    Raises:
        BadExperiment, EngineError, WorkloadError, ResultsError: the errors that ``bakeoff run`` prints in one line.
        KeyboardInterrupt: Ctrl-C; finished trials are kept.
    """
    from bakeoff.harness.conduct.run import create_run, run_into
    from bakeoff.harness.experiment.config import Experiment

    loaded = source if isinstance(source, Experiment) else experiment(source)
    folder = create_run(loaded, Path(out))
    if run_into(folder, loaded):
        raise KeyboardInterrupt
    return load(folder.path)


def bench(*, out: str | PathLike[str] = "runs", **options: Any) -> "Run":  # noqa: ANN401  (typed where they arrive)
    """Measure a running server, which is asked for its engine and model if they are not given.

    Args:
        out: parent of the new run folder.
        options: ``url``, and any other parameter of :func:`bakeoff.harness.experiment.bench.bench_experiment`.

    Raises:
        BadExperiment, EngineError, WorkloadError, ResultsError, KeyboardInterrupt: as :func:`run`.
    """
    from bakeoff.harness.experiment.bench import bench_experiment

    return run(bench_experiment(**options), out=out)


def load(path: str | PathLike[str]) -> "Run":
    """Read a run folder; of a run in progress, the finished trials.

    Raises:
        ResultsError: there is no run, or its format has another version.
    """
    from bakeoff.results import load

    return load(os.fspath(path))


def compare(
    a: str,
    b: str,
    *,
    metrics: Sequence[str] | None = None,
    primary: str | None = None,
    alpha: float = 0.05,
    band: float | str | Iterable[str] | None = None,
) -> "EngineComparison":
    """Compare B with A, level by level, as ``bakeoff compare`` does.

    Args:
        a: baseline: ``RUN`` or ``RUN@ENGINE``.
        b: candidate: ``RUN`` or ``RUN@ENGINE``.
        metrics: to compare; None for the table's headline metrics.
        primary: the metric that counts most; None for the default.
        alpha: false alarm rate of the primary metric, and of all others together.
        band: largest change that counts as equal; see ``bakeoff compare --help``.

    Raises:
        ResultsError: a run cannot be read, or the two are not comparable.
    """
    from bakeoff.results.compare.comparison import compare_sides
    from bakeoff.results.compare.config import agreed
    from bakeoff.results.compare.sides import select

    return compare_sides(select(a), select(b), agreed(metrics, primary, alpha, band))


def gate(
    candidate: str,
    *,
    baseline: str | Sequence[str],
    metrics: Sequence[str] | None = None,
    primary: str | None = None,
    alpha: float = 0.01,
    detect: float | str = 0.1,
    band: float | str | Iterable[str] | None = None,
) -> "GateVerdict":
    """Judge whether a stored candidate is worse than a stored baseline, as ``bakeoff gate`` does.

    The answer is ``verdict.outcome``.

    Args:
        candidate: ``RUN`` or ``RUN@ENGINE``.
        baseline: ``RUN`` or ``RUN@ENGINE``, several of them pooled, or ``branch:NAME`` for a branch's newest runs.
        metrics: to compare; None for the table's headline metrics.
        primary: the metric that decides; None for the default.
        alpha: false alarm rate of the primary metric, and of all others together.
        detect: change of the primary metric that ``no regression`` rules out: a fraction, or ``10%``.
        band: largest change that counts as equal; see ``bakeoff gate --help``.

    Raises:
        ResultsError: a run cannot be read, is no evidence, or the two are not comparable.
    """
    from bakeoff.results.compare.config import agreed
    from bakeoff.results.compare.gate import judge
    from bakeoff.results.compare.sides import select
    from bakeoff.results.history.baseline import baseline_of

    selected = select(candidate)
    baselines = [baseline] if isinstance(baseline, str) else list(baseline)
    return judge(baseline_of(selected, baselines), selected, agreed(metrics, primary, alpha, band, detect=detect))


def search(
    source: "str | PathLike[str] | dict[str, Any] | Experiment",
    slo: str,
    *,
    out: str | PathLike[str] = "runs",
    **options: Any,  # noqa: ANN401  (typed where they arrive)
) -> "Run":
    """Find the highest load at which each engine meets its objectives; ``run.search`` holds the answers.

    Args:
        source: as in :func:`run`; its loads bound the range.
        slo: objectives of every trial, such as ``"ttft_p99<500ms,itl_p99<30ms"``.
        out: parent of the new run folder.
        options: any other parameter of :func:`bakeoff.harness.conduct.policies.search_config.search_config`.

    Raises:
        BadExperiment, EngineError, WorkloadError, ResultsError, KeyboardInterrupt: as :func:`run`.
    """
    from bakeoff.harness.conduct.policies.search_config import search_config
    from bakeoff.harness.conduct.run import capacity_search, create_run, run_into
    from bakeoff.harness.experiment.config import Experiment

    loaded = source if isinstance(source, Experiment) else experiment(source)
    config = search_config(loaded, slo, **options)
    folder = create_run(loaded, Path(out), search=config)
    if run_into(folder, loaded, make_policy=capacity_search(config)):
        raise KeyboardInterrupt
    return load(folder.path)


def plan(model: str, **options: Any) -> "Plan":  # noqa: ANN401  (typed where they arrive)
    """Plan memory, latency and cost of a model on GPUs, and how many keep an SLO, as ``bakeoff plan`` does.

    Args:
        model: name of a known model, its config.json, or the folder of that.
        options: any other field of :class:`bakeoff.harness.sizing.plan.Question`, such as ``gpu="h200"``, or
            ``slo="ttft_p90<500ms"`` with ``rate=5``.

    Raises:
        BadPlan, ResultsError: the errors that ``bakeoff plan`` prints in one line.
    """
    from bakeoff.harness.sizing.plan import make_plan, question_of

    return make_plan(question_of(model, options))


def claims(names: "Sequence[str]" = (), **options: Any) -> "ClaimsRun":  # noqa: ANN401  (typed where they arrive)
    """Test claims on this machine, as ``bakeoff claims run`` does; ``.records`` hold the verdicts.

    Args:
        names: of claims; empty for all.
        options: any other parameter of :func:`bakeoff.harness.claims.run.claims`, such as ``budget_min=60``.

    Raises:
        BadClaim, EngineError, ResultsError, KeyboardInterrupt: as ``bakeoff claims run``; finished claims are kept.
    """
    from bakeoff.harness.claims.run import claims as run_claims

    return run_claims(names, **options)


def __getattr__(name: str) -> Any:  # noqa: ANN401  (whatever is imported)
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'bakeoff' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
