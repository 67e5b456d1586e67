"""Bakeoff's version."""

import functools
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

_NAME = "bakeoff"


def version() -> str:
    """In a checkout the release that it prepares, whatever is installed beside it; else the installed version."""
    if (folder := checkout()) is None:
        return metadata.version(_NAME)
    return _project(folder)["tool"]["hatch"]["version"]["fallback-version"]


def checkout() -> Path | None:
    """The folder of the checkout that this package runs from; None for an installed one, wherever that lies."""
    folder = Path(__file__).resolve().parents[1]
    return folder if _project(folder).get("project", {}).get("name") == _NAME else None


@functools.cache
def _project(folder: Path) -> dict[str, Any]:
    file = folder / "pyproject.toml"
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
