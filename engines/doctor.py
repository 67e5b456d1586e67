"""Check which engines can be started on this machine, and how to fix the others.

No engine is imported or started: packages are found by their metadata, programs on PATH, and each adapter reports the
command that a run would use.
"""

import contextlib
import shutil
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from bakeoff.engines.base import Model
from bakeoff.engines.environments import RECIPES, Environment, find
from bakeoff.engines.environments.installation import is_current
from bakeoff.engines.environments.lookup import for_this_machine
from bakeoff.engines.errors import BadOption, EngineError, NotInstalled, UnknownEngine
from bakeoff.engines.machine import Machine
from bakeoff.engines.registry import adapter_class, engine, is_server_engine, known_adapters
from bakeoff.engines.server_engine import ServerEngine


class State(StrEnum):
    """Whether an engine can be started here."""

    READY = "ready"
    MISSING = "missing"
    ADDRESS = "address"
    """The adapter needs the url of a running server."""
    UNKNOWN = "unknown"
    """The adapter, of another package, does not report its requirements."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one engine.

    Attributes:
        adapter: name of the adapter.
        state: whether it can be started here.
        place: where it is installed: an environment, this environment, or a program on PATH; None if nowhere.
        version: of its package; None if it has none.
        missing: what is missing, one item each.
        fix: command that provides it; None if there is none.
        notes: further remarks.
    """

    adapter: str
    state: State
    place: str | None = None
    version: str | None = None
    missing: list[str] = []
    fix: str | None = None
    notes: list[str] = []


def examine(names: Sequence[str], machine: Machine) -> list[Finding]:
    """Check the named engines, or all.

    Raises:
        UnknownEngine: no adapter has one of the names.
    """
    return [_examine(name, machine) for name in known_adapters(names)]


def _examine(adapter: str, machine: Machine) -> Finding:
    try:
        kind = adapter_class(adapter)
    except UnknownEngine as error:
        return Finding(adapter=adapter, state=State.MISSING, missing=[str(error)])
    argv, refusal = _command(adapter)
    needs = _Needs.of(kind) if is_server_engine(kind) else _Needs()
    if not needs.anything and isinstance(refusal, BadOption):
        return Finding(adapter=adapter, state=State.ADDRESS)
    if refusal is None and not is_server_engine(kind):
        return Finding(adapter=adapter, state=State.UNKNOWN, notes=["its adapter does not report its requirements"])
    return _finding(adapter, needs, argv, refusal, machine)


class _Needs(msgspec.Struct, frozen=True):
    """Requirements of an adapter; empty if it does not derive from ServerEngine."""

    recipes: tuple[str, ...] = ()
    distributions: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    gpu: bool = False

    @classmethod
    def of(cls, kind: type[ServerEngine]) -> "_Needs":
        recipes = kind.recipes
        only_gpu = bool(recipes) and all(name in RECIPES and RECIPES[name].needs_gpu for name in recipes)
        return cls(recipes, kind.distributions, kind.programs, kind.needs_gpu or only_gpu)

    @property
    def anything(self) -> bool:
        """Whether any installation is named."""
        return bool(self.recipes or self.distributions or self.programs)

    def gpu_in(self, recipe: str | None) -> bool:
        """Whether a recipe needs a GPU; without a recipe, whether the adapter does."""
        return RECIPES[recipe].needs_gpu if recipe in RECIPES else self.gpu


def _command(adapter: str) -> tuple[Sequence[str], Exception | None]:
    """The command that a run would use, or the error; an adapter without ``command`` has neither."""
    try:
        instance = engine(adapter, Model("doctor", "/"), {})
        return (instance.command() if isinstance(instance, ServerEngine) else ()), None
    except Exception as error:  # noqa: BLE001  (adapters of other packages can raise anything)
        return (), error


def _finding(adapter: str, needs: _Needs, argv: Sequence[str], refusal: Exception | None, machine: Machine) -> Finding:
    environment, program = _installation(needs, argv)
    recipe = environment.name if environment else None
    missing: list[str] = []
    fix: str | None = None
    if environment is None and program is None and needs.anything:
        recipe = next(iter(for_this_machine(needs.recipes)), None)
        missing.append(_not_installed(needs))
        fix = f"bakeoff engines install {recipe}" if recipe else None
    elif refusal is not None:
        missing.append(_error_text(refusal))
        fix = refusal.command if isinstance(refusal, NotInstalled) else None
    if needs.gpu_in(recipe) and not machine.gpus.names:
        missing.append("an NVIDIA GPU")
        other = next((name for name in needs.recipes if not needs.gpu_in(name)), None)
        fix = f"bakeoff engines install {other}" if other else None
    return Finding(
        adapter=adapter,
        state=State.MISSING if missing else State.READY,
        place=_place(environment, program),
        version=_version(environment, needs),
        missing=missing,
        fix=fix,
        notes=_notes(recipe, installed=environment is not None, to_install=fix is not None),
    )


def _installation(needs: _Needs, argv: Sequence[str]) -> tuple[Environment | None, str | None]:
    """The environment, or else the program, in which the engine is installed."""
    if needs.recipes or needs.distributions:
        with contextlib.suppress(NotInstalled):  # a program may exist nevertheless
            return find(None, needs.recipes, needs.distributions), None
    if argv and Path(argv[0]) == Path(sys.executable):
        return Environment("this", Path(sys.prefix)), None
    return None, next((path for name in (*argv[:1], *needs.programs) if (path := shutil.which(name))), None)


def _not_installed(needs: _Needs) -> str:
    names = dict.fromkeys((*(needs.distributions or needs.recipes), *needs.programs))
    return f"{' or '.join(names)} is not installed"


def _place(environment: Environment | None, program: str | None) -> str | None:
    if environment is None:
        return program
    return "this environment" if environment.name == "this" else f"environment {environment.name}"


def _version(environment: Environment | None, needs: _Needs) -> str | None:
    if environment is None:
        return None
    recipe = RECIPES.get(environment.name)
    names = (*needs.distributions, *([recipe.distribution] if recipe else []))
    return next((version for name in names if (version := environment.version(name))), None)


def _notes(recipe: str | None, *, installed: bool, to_install: bool) -> list[str]:
    """Remarks on a recipe: before its installation, or if the installed versions are outdated."""
    recipe_entry = RECIPES.get(recipe or "")
    if recipe_entry is None:
        return []
    if installed and not is_current(recipe_entry):
        return [f"outdated; renew it with: bakeoff engines install {recipe_entry.name}"]
    return [recipe_entry.note] if recipe_entry.note and to_install and not installed else []


def _error_text(refusal: Exception) -> str:
    if isinstance(refusal, NotInstalled):
        return refusal.missing  # the command is shown separately
    return (
        str(refusal) if isinstance(refusal, EngineError) else f"its adapter fails: {type(refusal).__name__}: {refusal}"
    )
