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
    from bakeoff.harness.cli.commands.bench import bench
    from bakeoff.harness.cli.commands.calibrate import calibrate
    from bakeoff.harness.cli.commands.compare import compare
    from bakeoff.harness.cli.commands.demo import demo
    from bakeoff.harness.cli.commands.doctor import doctor
    from bakeoff.harness.cli.commands.export import export
    from bakeoff.harness.cli.commands.floor import floor
    from bakeoff.harness.cli.commands.gate import gate
    from bakeoff.harness.cli.commands.history import history
    from bakeoff.harness.cli.commands.machine import machine
    from bakeoff.harness.cli.commands.plan import plan
    from bakeoff.harness.cli.commands.profile import profile
    from bakeoff.harness.cli.commands.run import run
    from bakeoff.harness.cli.commands.search import search
    from bakeoff.harness.cli.sections.cost import cost
    from bakeoff.harness.cli.sections.frontier import frontier
    from bakeoff.harness.cli.sections.grid import grid
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
    "bakeoff.harness.cli.commands.calibrate": ("calibrate",),
    "bakeoff.harness.cli.commands.doctor": ("doctor",),
    "bakeoff.harness.cli.commands.export": ("export",),
    "bakeoff.harness.cli.commands.floor": ("floor",),
    "bakeoff.harness.cli.commands.gate": ("gate",),
    "bakeoff.harness.cli.commands.machine": ("machine",),
    "bakeoff.harness.cli.commands.bench": ("bench",),
    "bakeoff.harness.cli.commands.demo": ("demo",),
    "bakeoff.harness.cli.commands.profile": ("profile",),
    "bakeoff.harness.cli.commands.run": ("run",),
    "bakeoff.harness.cli.commands.plan": ("plan",),
    "bakeoff.harness.cli.commands.compare": ("compare",),
    "bakeoff.harness.cli.sections.cost": ("cost",),
    "bakeoff.harness.cli.sections.frontier": ("frontier",),
    "bakeoff.harness.cli.sections.grid": ("grid",),
    "bakeoff.harness.cli.commands.history": ("history",),
    "bakeoff.harness.cli.commands.search": ("search",),
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
