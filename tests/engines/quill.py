"""Installs the imaginary engines of docs/adapters.md: their adapters, and the server and a model of Quill."""

import re
import shlex
import sys
from pathlib import Path

from tests.workloads.small_tokenizers import checkpoint

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "adapters.md"


def examples() -> tuple[str, str]:
    """The adapters in the document: Quill's, and Ember's, whose API is its own."""
    quill, ember = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    return quill, ember


def install(folder: Path) -> Path:
    """Put the adapter into ``folder``, for sys.path, and its server into the folder that is returned, for PATH."""
    text = DOCUMENT.read_text(encoding="utf-8")
    ((group, name, place),) = re.findall(r'\[project.entry-points."(.*?)"\]\n(\w+) = "(.*?)"', text)
    ((other_name, other_place),) = re.findall(r'`(\w+) = "(.*?)"` among its entry points', text)
    folder.mkdir(parents=True, exist_ok=True)
    for module, code in zip((place, other_place), examples(), strict=True):
        (folder / f"{module.partition(':')[0]}.py").write_text(code, encoding="utf-8")
    info = folder / f"{name}_bakeoff-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-bakeoff\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {place}\n{other_name} = {other_place}\n")
    programs = folder / "programs"
    programs.mkdir()
    server = programs / f"{name}-server"
    call = f"PYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} -m tests.engines.fakes.quill"
    server.write_text(f'#!/bin/sh\n{call} "$@"\n')
    server.chmod(0o755)
    return programs


def model(folder: Path) -> Path:
    """The model that Quill serves: only a tokenizer, since its answers are made up."""
    made = checkpoint(folder)
    (made / "config.json").write_text("{}", encoding="utf-8")
    return made
