"""Checks whether another package hides one of Bakeoff's: their names are common, and the first on ``sys.path`` wins.

Imports only the standard library, because any other import may be the hidden package.
"""

import importlib.util
import sys
from pathlib import Path

PACKAGES = ("engines", "results", "workloads", "reference_engine")
_ROOT = Path(__file__).parents[1]


def shadowed() -> str | None:
    """One line that names the hidden package and the remedy; None if none is hidden."""
    for name in PACKAGES:
        module = sys.modules.get(name)
        spec = module.__spec__ if module else importlib.util.find_spec(name)
        folders = list(spec.submodule_search_locations or ()) if spec else []
        folder = Path(folders[0]) if folders else Path(spec.origin) if spec and spec.origin else None
        if folder is not None and folder.resolve() != (_ROOT / name).resolve():
            return f"{folder} hides Bakeoff's package '{name}'; rename it, or take its folder off sys.path"
    return None
