"""What engines and environments there are, and which of them can run here: as data, and for the terminal."""

import textwrap
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from engines import EngineSpec
from engines.doctor import Finding, State
from engines.environments import RECIPES, installed
from engines.environments.finding import environments_folder, record
from engines.environments.installing import is_current
from engines.errors import UnknownEngine
from engines.machine import Machine
from engines.registry import adapter_class, has_usual_base, known_adapters
from engines.spec import Cannot
from results.report.format import ABSENT, plain, plain_block
from results.report.terminal_table import terminal_table

_HERE = {
    State.READY: ("yes", "green"),
    State.MISSING: ("no", "red"),
    State.ADDRESS: ("at its url", ""),
    State.UNKNOWN: ("not known", "yellow"),
}


def catalogue(names: Sequence[str] = ()) -> dict[str, Any]:
    """What ``bakeoff engines list`` prints of these adapters, or of all, and of the environments that serve them.

    Raises:
        UnknownEngine: there is no adapter of that name.
    """
    shown = known_adapters(names)
    recipes = [name for name, recipe in RECIPES.items() if not names or recipe.adapter in names]
    return {
        "engines": [_engine(name) for name in shown],
        "environments_folder": str(environments_folder()),
        "environments": [_environment(name) for name in recipes],
    }


def _engine(name: str) -> dict[str, Any]:
    try:
        kind = adapter_class(name)
    except UnknownEngine as error:  # another package's; the others shall be listed all the same
        return {"name": name, "options": [], "spec": [], "problem": str(error)}
    spellings = kind.spellings if has_usual_base(kind) else {}
    told = [field for field in EngineSpec.__struct_fields__ if not isinstance(spellings.get(field, Cannot("")), Cannot)]
    return {"name": name, "options": list(kind.Options.__struct_fields__), "spec": told, "problem": None}


def _environment(name: str) -> dict[str, Any]:
    recipe = RECIPES[name]
    made = record(name) if installed(name) else None
    return {
        "name": name,
        "adapter": recipe.adapter or None,
        "requirements": [requirement for group in recipe.requirements for requirement in group],
        "needs_gpu": recipe.needs_gpu,
        "note": recipe.note or None,
        "disk_bytes": recipe.disk_bytes,
        "installed": made is not None,
        "current": is_current(recipe),
        "version": made.versions.get(recipe.distribution) if made else None,
        "size_bytes": made.size_bytes if made else None,
    }


def print_catalogue(found: dict[str, Any], console: Console) -> None:
    """Print engines with what each can be told, then the environments."""
    _title(console, "Engines", "adapter of [[engines]]; spec is what all engines share")
    for one in found["engines"]:
        options, told = (", ".join(one[name]) or ABSENT for name in ("options", "spec"))
        lines = [f"{one['name']}: options {options}", f"  spec {told}"]
        for line in [f"{one['name']}: {one['problem']}"] if one["problem"] else lines:
            wrapped = textwrap.fill(plain(line), console.width, subsequent_indent="    ", break_on_hyphens=False)
            console.print(Text(wrapped, style="dim" if line.startswith(" ") else ""))
    if not found["environments"]:
        return
    _title(console, "\nEnvironments", "bakeoff engines install NAME")
    table = terminal_table("name", "for", "installed", "disk", "", gap=2)
    for one in found["environments"]:
        table.add_row(*(Text(plain(word)) for word in _environment_row(one)))
    console.print(table)
    console.print(Text(plain(f"in {found['environments_folder']}"), style="dim"), soft_wrap=True)


def _environment_row(one: dict[str, Any]) -> tuple[str, ...]:
    state = ABSENT
    if one["installed"]:
        state = one["version"] if one["current"] else f"{one['version']}, outdated"
    disk = bytes_text(one["size_bytes"]) if one["installed"] else f"needs {bytes_text(one['disk_bytes'])}"
    notes = [*(["needs an NVIDIA GPU"] if one["needs_gpu"] else []), *([one["note"]] if one["note"] else [])]
    return one["name"], one["adapter"] or ABSENT, state, disk, "; ".join(notes)


def diagnosis(findings: Sequence[Finding], machine: Machine) -> dict[str, Any]:
    """Everything that ``bakeoff engines doctor`` prints."""
    return {"machine": msgspec.to_builtins(machine), "engines": msgspec.to_builtins(findings)}


def print_diagnosis(findings: Sequence[Finding], machine: Machine, console: Console) -> None:
    """Print which engines can run here, and below what would help the others."""
    table = terminal_table("engine", "runs here", "in", "version", "missing", gap=2)
    for one in findings:
        words, style = _HERE[one.state]
        missing = "; ".join((*one.missing, *(one.notes if one.fix is None else ())))
        cells = (one.adapter, one.place or ABSENT, one.version or ABSENT, missing)
        adapter, place, version, lacks = (Text(plain(cell)) for cell in cells)
        table.add_row(adapter, Text(words, style=style), place, version, lacks)
    console.print(table)
    console.print(Text(plain_block(_machine_text(machine)), style="dim"), soft_wrap=True)
    fixes = [one for one in findings if one.fix]
    if fixes:
        console.print(Text("\nWhat would help:", style="bold"))
    for one in fixes:
        note = f"   ({'; '.join(one.notes)})" if one.notes else ""
        console.print(Text(plain(f"  {one.adapter}: {one.fix}{note}")), soft_wrap=True)
    if any(one.state is State.MISSING for one in findings):
        console.print(Text("\nAny engine can also be measured at its url, in a container or over ssh: docs/engines.md"))


def _machine_text(machine: Machine) -> str:
    gpus = ", ".join(machine.gpus.names) or f"none ({machine.gpus.reason})"
    runtimes = (f"{one.name} {one.version or f'no ({one.reason})'}" for one in machine.runtimes)
    return f"GPUs: {gpus}\nContainers: {'; '.join(runtimes)}"


def bytes_text(number: int) -> str:
    """``3.4 GB``, or ``120 MB``."""
    return f"{number / 1e9:.3g} GB" if number >= 1e9 else f"{number / 1e6:.3g} MB"


def _title(console: Console, title: str, words: str) -> None:
    console.print(Text.assemble((title, "bold"), (f"  {words}", "dim")))
