"""Bakeoff's version."""

import tomllib
from importlib import metadata
from pathlib import Path

_NAME = "bakeoff"


def version() -> str:
    """The version in this checkout's ``pyproject.toml``, which may not be the installed one; else the installed one."""
    pyproject = Path(__file__).resolve().parents[1] / "pyproject.toml"
    if pyproject.is_file():
        project = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == _NAME:
            return project["version"]
    return metadata.version(_NAME)
