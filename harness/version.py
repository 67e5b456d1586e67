"""Bakeoff's version."""

import tomllib
from importlib import metadata
from pathlib import Path

_NAME = "bakeoff"


def version() -> str:
    """In a checkout the release that it prepares, whatever is installed beside it; else the installed version."""
    pyproject = Path(__file__).resolve().parents[1] / "pyproject.toml"
    if pyproject.is_file():
        tree = tomllib.loads(pyproject.read_text(encoding="utf-8"))
        if tree.get("project", {}).get("name") == _NAME:
            return tree["tool"]["hatch"]["version"]["fallback-version"]
    return metadata.version(_NAME)
