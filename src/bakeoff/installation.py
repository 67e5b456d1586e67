"""How to install a part of Bakeoff that is missing: from the same place as the part that is here."""

import json
import urllib.parse
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

NAME = "bakeoff"
"""Of the distribution."""


def how_to_install(*extras: str) -> str:
    """The command that adds extras: ``pip install 'bakeoff[engine]'``, or of the checkout or repository in use."""
    return f"pip install {_place(_origin(), ','.join(extras))}"


def _origin() -> dict[str, Any]:
    """Where the distribution was installed from (PEP 610); empty for a package index."""
    try:
        found = json.loads(distribution(NAME).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _place(origin: dict[str, Any], extras: str) -> str:
    url = str(origin.get("url", ""))
    if "dir_info" in origin:
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return f"{editable}'{urllib.parse.unquote(urllib.parse.urlsplit(url).path)}[{extras}]'"
    if "vcs_info" in origin:
        return f"'{NAME}[{extras}] @ {origin['vcs_info'].get('vcs', 'git')}+{url}'"
    return f"'{NAME}[{extras}] @ {url}'" if url else f"'{NAME}[{extras}]'"
