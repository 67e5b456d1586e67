"""Bakeoff's Python API: measure engines, read and compare runs, and add your own engines and workloads.

    import bakeoff

    run = bakeoff.bench(url="http://127.0.0.1:8000")
    print(run)
    run.requests.groupby(["engine", "load"]).ttft_s.median()

Each function does what the command of the same name does, with the same parameters; it returns what the command prints.
Ctrl-C in ``run``, ``bench``, ``demo``, ``profile`` and ``search`` raises :class:`RunInterrupted`, which has the
finished trials. The names in ``__all__`` are stable.
docs/definitions.md describes the data frames, metrics and findings of a :class:`Run`.
"""

import importlib
from os import PathLike
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bakeoff.engines import Deployment, EngineError, EngineSpec, Model, Setup
    from bakeoff.engines.dialects import (
        Dialect,
        EmptyChunk,
        Finish,
        HttpRequest,
        OpenAiDialect,
        StreamFault,
        TokenDelta,
        TokenKind,
        Usage,
    )
    from bakeoff.engines.identity import Identity
    from bakeoff.engines.metrics import Histogram, Prometheus, Series
    from bakeoff.engines.server_engine import ServerEngine
    from bakeoff.engines.spec import flag, one_of, option_argv, switch
    from bakeoff.harness.claims.run import claims
    from bakeoff.harness.cli.calibrating import calibrate
    from bakeoff.harness.cli.doctor import doctor
    from bakeoff.harness.cli.exchanging import export
    from bakeoff.harness.cli.gating import floor, gate
    from bakeoff.harness.cli.machine import machine
    from bakeoff.harness.cli.measuring import bench, demo, profile, run
    from bakeoff.harness.cli.planning import plan
    from bakeoff.harness.cli.reading import compare, cost, frontier, grid, history
    from bakeoff.harness.cli.searching import search
    from bakeoff.harness.errors import BadExperiment, HarnessError, RunInterrupted
    from bakeoff.harness.experiment.config import Experiment
    from bakeoff.results import ResultsError, Run, load
    from bakeoff.workloads import Message, Seed, Session, Tokenizer, Turn, Workload, WorkloadError, prompt_reader

__all__ = [
    "BadExperiment",
    "Deployment",
    "Dialect",
    "EmptyChunk",
    "EngineError",
    "EngineSpec",
    "Experiment",
    "Finish",
    "HarnessError",
    "Histogram",
    "HttpRequest",
    "Identity",
    "Message",
    "Model",
    "OpenAiDialect",
    "Prometheus",
    "ResultsError",
    "Run",
    "RunInterrupted",
    "Seed",
    "Series",
    "ServerEngine",
    "Session",
    "Setup",
    "StreamFault",
    "TokenDelta",
    "TokenKind",
    "Tokenizer",
    "Turn",
    "Usage",
    "Workload",
    "WorkloadError",
    "bench",
    "calibrate",
    "claims",
    "compare",
    "cost",
    "demo",
    "doctor",
    "experiment",
    "export",
    "flag",
    "floor",
    "frontier",
    "gate",
    "grid",
    "history",
    "load",
    "machine",
    "one_of",
    "option_argv",
    "plan",
    "profile",
    "prompt_reader",
    "run",
    "search",
    "switch",
]

_HOMES = {
    "bakeoff.engines": ("Deployment", "EngineError", "EngineSpec", "Model", "Setup"),
    "bakeoff.engines.dialects": (
        "Dialect", "EmptyChunk", "Finish", "HttpRequest", "OpenAiDialect", "StreamFault", "TokenDelta", "TokenKind",
        "Usage",
    ),
    "bakeoff.engines.identity": ("Identity",),
    "bakeoff.engines.metrics": ("Histogram", "Prometheus", "Series"),
    "bakeoff.engines.server_engine": ("ServerEngine",),
    "bakeoff.engines.spec": ("flag", "one_of", "option_argv", "switch"),
    "bakeoff.harness.claims.run": ("claims",),
    "bakeoff.harness.cli.calibrating": ("calibrate",),
    "bakeoff.harness.cli.doctor": ("doctor",),
    "bakeoff.harness.cli.exchanging": ("export",),
    "bakeoff.harness.cli.gating": ("floor", "gate"),
    "bakeoff.harness.cli.machine": ("machine",),
    "bakeoff.harness.cli.measuring": ("bench", "demo", "profile", "run"),
    "bakeoff.harness.cli.planning": ("plan",),
    "bakeoff.harness.cli.reading": ("compare", "cost", "frontier", "grid", "history"),
    "bakeoff.harness.cli.searching": ("search",),
    "bakeoff.harness.errors": ("BadExperiment", "HarnessError", "RunInterrupted"),
    "bakeoff.harness.experiment.config": ("Experiment",),
    "bakeoff.results": ("ResultsError", "Run", "load"),
    "bakeoff.workloads": (
        "Message", "Seed", "Session", "Tokenizer", "Turn", "Workload", "WorkloadError", "prompt_reader",
    ),
}  # fmt: skip
"""The modules of lazily imported names: reading a run must not import the engines."""
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}


def experiment(source: "str | PathLike[str] | dict[str, Any] | Experiment") -> "Experiment":
    """Build an experiment from a TOML file, or from a dict of the same structure.

    Raises:
        BadExperiment, EngineError, WorkloadError: it cannot be read, or is invalid; the message is one line.
    """
    from bakeoff.harness.experiment.reading import loaded_experiment

    return loaded_experiment(source)


def __getattr__(name: str) -> Any:  # noqa: ANN401  (whatever is imported)
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'bakeoff' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
