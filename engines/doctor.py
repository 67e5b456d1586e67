"""Which engines can be started on this machine, and what to do about those that cannot.

Nothing is imported or started: packages are looked up by their metadata, programs on PATH, and each adapter is asked
for the command that a run would use.
"""

import contextlib
import shutil
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from engines.base import Model
from engines.environments import RECIPES, Environment, find
from engines.environments.finding import for_this_machine
from engines.environments.installing import is_current
from engines.errors import BadOption, EngineError, NotInstalled, UnknownEngine
from engines.machine import Machine
from engines.registry import adapter_class, engine, has_usual_base, known_adapters
from engines.server_engine import ServerEngine


class State(StrEnum):
    """Whether an engine can be started here."""

    READY = "ready"
    MISSING = "missing"
    ADDRESS = "address"
    """It is never started here: it needs the url of a server that runs already."""
    UNKNOWN = "unknown"
    """Its adapter, another package's, does not say."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one engine.

    Attributes:
        adapter: its name.
        state: whether it can be started here.
        place: what holds it: an environment, this environment, or a program on PATH; None where nothing does.
        version: of its package; None where it does not come from one.
        missing: what is missing, one item each.
        fix: the one command that provides it; None where none does.
        notes: what else to know.
    """

    adapter: str
    state: State
    place: str | None = None
    version: str | None = None
    missing: list[str] = []
    fix: str | None = None
    notes: list[str] = []


def examine(names: Sequence[str], machine: Machine) -> list[Finding]:
    """Look at engines, at all of them where none is named.

    Raises:
        UnknownEngine: there is none of that name.
    """
    return [_examine(name, machine) for name in known_adapters(names)]


def _examine(adapter: str, machine: Machine) -> Finding:
    try:
        kind = adapter_class(adapter)
    except UnknownEngine as error:
        return Finding(adapter=adapter, state=State.MISSING, missing=[str(error)])
    argv, refusal = _asked(adapter)
    needs = _Needs.of(kind) if has_usual_base(kind) else _Needs()
    if not needs.anything and isinstance(refusal, BadOption):
        return Finding(adapter=adapter, state=State.ADDRESS)
    if refusal is None and not has_usual_base(kind):
        return Finding(adapter=adapter, state=State.UNKNOWN, notes=["its adapter does not say what it needs"])
    return _judged(adapter, needs, argv, refusal, machine)


class _Needs(msgspec.Struct, frozen=True):
    """What an adapter's class says that it needs; nothing, of one without the usual base."""

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
        """Whether it says what holds it."""
        return bool(self.recipes or self.distributions or self.programs)

    def gpu_in(self, recipe: str | None) -> bool:
        """Whether what a recipe makes needs a GPU; the adapter's own word where there is no such recipe."""
        return RECIPES[recipe].needs_gpu if recipe in RECIPES else self.gpu


def _asked(adapter: str) -> tuple[Sequence[str], Exception | None]:
    """The command that a run would use, or why there is none; neither where it has no such question."""
    try:
        made = engine(adapter, Model("doctor", "/"), {})
        return (made.command() if isinstance(made, ServerEngine) else ()), None
    except Exception as error:  # noqa: BLE001  (other packages' adapters raise what they like)
        return (), error


def _judged(adapter: str, needs: _Needs, argv: Sequence[str], refusal: Exception | None, machine: Machine) -> Finding:
    environment, program = _home(needs, argv)
    recipe = environment.name if environment else None
    missing: list[str] = []
    fix: str | None = None
    if environment is None and program is None and needs.anything:
        recipe = next(iter(for_this_machine(needs.recipes)), None)
        missing.append(_absent(needs))
        fix = f"bakeoff engines install {recipe}" if recipe else None
    elif refusal is not None:
        missing.append(_complaint(refusal))
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
        notes=_notes(recipe, installed=environment is not None, wanted=fix is not None),
    )


def _home(needs: _Needs, argv: Sequence[str]) -> tuple[Environment | None, str | None]:
    """What holds it: an environment, or else a program."""
    if needs.recipes or needs.distributions:
        with contextlib.suppress(NotInstalled):  # a program may be there all the same
            return find(None, needs.recipes, needs.distributions), None
    if argv and Path(argv[0]) == Path(sys.executable):
        return Environment("this", Path(sys.prefix)), None
    return None, next((found for name in (*argv[:1], *needs.programs) if (found := shutil.which(name))), None)


def _absent(needs: _Needs) -> str:
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


def _notes(recipe: str | None, *, installed: bool, wanted: bool) -> list[str]:
    """Of a recipe that shall be used, or that was used when it said something else."""
    known = RECIPES.get(recipe or "")
    if known is None:
        return []
    if installed and not is_current(known):
        return [f"made for other versions than today's; renew it with: bakeoff engines install {known.name}"]
    return [known.note] if known.note and wanted and not installed else []


def _complaint(refusal: Exception) -> str:
    if isinstance(refusal, NotInstalled):
        return refusal.complaint  # the command is shown apart
    return (
        str(refusal) if isinstance(refusal, EngineError) else f"its adapter fails: {type(refusal).__name__}: {refusal}"
    )
