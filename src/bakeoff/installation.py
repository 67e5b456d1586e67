"""How to install a part of Bakeoff that is missing: from the same place as the part that is here."""

import json
import urllib.parse
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

NAME = "bakeoff"
"""Of the distribution."""
REPOSITORY = "https://github.com/OWNER/bakeoff"
"""Where everybody finds Bakeoff. tests/test_repository.py lists the files that name it, too, and holds them to it."""


def how_to_install(*extras: str) -> str:
    """The command that adds extras to what is installed: from its checkout, its repository or the package index."""
    return f"pip install {_place(_origin(), ','.join(extras))}"


def _origin() -> dict[str, Any]:
    """Where the distribution was installed from (PEP 610); empty for a package index, the repository for none."""
    try:
        found = json.loads(distribution(NAME).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return {"url": REPOSITORY, "vcs_info": {"vcs": "git"}}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _place(origin: dict[str, Any], extras: str) -> str:
    url = str(origin.get("url", ""))
    parts = urllib.parse.urlsplit(url)
    path = urllib.parse.unquote(parts.path)
    if parts.scheme == "file" and not Path(path).exists():
        return (
            f"'{NAME}[{extras}]'"  # a wheel or checkout that was deleted; pip keeps what is installed and adds the rest
        )
    if "dir_info" in origin:
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return f"{editable}'{path}[{extras}]'"
    if "vcs_info" in origin:
        return f"'{NAME}[{extras}] @ {origin['vcs_info'].get('vcs', 'git')}+{url}'"
    return f"'{NAME}[{extras}] @ {url}'" if url else f"'{NAME}[{extras}]'"
