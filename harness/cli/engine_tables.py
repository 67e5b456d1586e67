"""Lists of engines and environments, and which of them can run here, as data and as tables."""

import textwrap
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from bakeoff.engines import EngineSpec
from bakeoff.engines.doctor import Finding, State
from bakeoff.engines.environments import RECIPES, installed
from bakeoff.engines.environments.installation import is_current
from bakeoff.engines.environments.lookup import environments_folder, record
from bakeoff.engines.errors import UnknownEngine
from bakeoff.engines.machine import Machine
from bakeoff.engines.registry import adapter_class, is_server_engine, known_adapters
from bakeoff.engines.spec import Cannot
from bakeoff.results.show.table import Cell, Table, Tone, names, text_table
from bakeoff.results.show.terminal import print_table
from bakeoff.results.text.format import ABSENT, plain, plain_block

_HERE = {
    State.READY: ("yes", Tone.BETTER),
    State.MISSING: ("no", Tone.BAD),
    State.ADDRESS: ("at its url", None),
    State.UNKNOWN: ("not known", Tone.UNCLEAR),
}


def catalogue(names: Sequence[str] = ()) -> dict[str, Any]:
    """The data that ``bakeoff engines list`` prints: the named adapters, or all, and their environments.

    Raises:
        UnknownEngine: no adapter has one of the names.
    """
    adapters = known_adapters(names)
    recipes = [name for name, recipe in RECIPES.items() if not names or recipe.adapter in names]
    return {
        "engines": [_engine(name) for name in adapters],
        "environments_folder": str(environments_folder()),
        "environments": [_environment(name) for name in recipes],
    }


def _engine(name: str) -> dict[str, Any]:
    try:
        kind = adapter_class(name)
    except UnknownEngine as error:  # an adapter of another package must not hide the others
        return {"name": name, "options": [], "spec": [], "problem": str(error)}
    spellings = kind.spellings if is_server_engine(kind) else {}
    supported = [
        field for field in EngineSpec.__struct_fields__ if not isinstance(spellings.get(field, Cannot("")), Cannot)
    ]
    return {"name": name, "options": list(kind.Options.__struct_fields__), "spec": supported, "problem": None}


def _environment(name: str) -> dict[str, Any]:
    recipe = RECIPES[name]
    installation = record(name) if installed(name) else None
    return {
        "name": name,
        "adapter": recipe.adapter or None,
        "requirements": [requirement for group in recipe.requirements for requirement in group],
        "needs_gpu": recipe.needs_gpu,
        "note": recipe.note or None,
        "disk_bytes": recipe.disk_bytes,
        "installed": installation is not None,
        "current": is_current(recipe),
        "version": installation.versions.get(recipe.distribution) if installation else None,
        "size_bytes": installation.size_bytes if installation else None,
    }


def print_catalogue(listing: dict[str, Any], console: Console) -> None:
    """Print engines with their options and settings, then the environments."""
    _title(console, "Engines", "adapter of [[engines]]; spec are shared settings")
    for entry in listing["engines"]:
        options, spec = (", ".join(entry[name]) or ABSENT for name in ("options", "spec"))
        lines = [f"{entry['name']}: options {options}", f"  spec {spec}"]
        for line in [f"{entry['name']}: {entry['problem']}"] if entry["problem"] else lines:
            wrapped = textwrap.fill(plain(line), console.width, subsequent_indent="    ", break_on_hyphens=False)
            console.print(Text(wrapped, style="dim" if line.startswith(" ") else ""))
    if not listing["environments"]:
        return
    _title(console, "\nEnvironments", "bakeoff engines install NAME")
    headings = ("name", "for", "installed", "disk", "")
    rows = [_environment_row(entry) for entry in listing["environments"]]
    print_table(text_table("Environments", headings, rows, named=len(headings)), console)
    console.print(Text(plain(f"in {listing['environments_folder']}"), style="dim"), soft_wrap=True)


def _environment_row(entry: dict[str, Any]) -> tuple[str, ...]:
    state = ABSENT
    if entry["installed"]:
        state = entry["version"] if entry["current"] else f"{entry['version']}, outdated"
    disk = bytes_text(entry["size_bytes"]) if entry["installed"] else f"needs {bytes_text(entry['disk_bytes'])}"
    notes = [*(["needs an NVIDIA GPU"] if entry["needs_gpu"] else []), *([entry["note"]] if entry["note"] else [])]
    return entry["name"], entry["adapter"] or ABSENT, state, disk, "; ".join(notes)


def print_diagnosis(findings: Sequence[Finding], machine: Machine, console: Console) -> None:
    """Print which engines can run here, and how to fix the others."""
    headings = names("engine", "runs here", "in", "version", "missing")
    print_table(Table("Engines here", headings, [_engine_row(entry) for entry in findings]), console)
    console.print(Text(plain_block(_machine_text(machine)), style="dim"), soft_wrap=True)
    fixes = [entry for entry in findings if entry.fix]
    if fixes:
        console.print(Text("\nTo fix:", style="bold"))
    for entry in fixes:
        note = f"   ({'; '.join(entry.notes)})" if entry.notes else ""
        console.print(Text(plain(f"  {entry.adapter}: {entry.fix}{note}")), soft_wrap=True)
    if any(entry.state is State.MISSING for entry in findings):
        console.print(Text("\nAny engine can also be measured at its url, in a container or over ssh: docs/engines.md"))


def _engine_row(entry: Finding) -> list[Cell]:
    state, tone = _HERE[entry.state]
    missing = "; ".join((*entry.missing, *(entry.notes if entry.fix is None else ())))
    texts = (entry.place or ABSENT, entry.version or ABSENT, missing)
    return [Cell(entry.adapter), Cell(state, tone=tone), *map(Cell, texts)]


def _machine_text(machine: Machine) -> str:
    gpus = ", ".join(machine.gpus.names) or f"none ({machine.gpus.reason})"
    runtimes = (f"{entry.name} {entry.version or f'no ({entry.reason})'}" for entry in machine.runtimes)
    return f"GPUs: {gpus}\nContainers: {'; '.join(runtimes)}"


def bytes_text(number: int) -> str:
    """``3.4 GB``, or ``120 MB``."""
    return f"{number / 1e9:.3g} GB" if number >= 1e9 else f"{number / 1e6:.3g} MB"


def _title(console: Console, title: str, caption: str) -> None:
    console.print(Text.assemble((title, "bold"), (f"  {caption}", "dim")))
