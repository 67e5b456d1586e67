"""How to install a part of Bakeoff that is missing: from the same place as the part that is here."""

import json
import sys
import tomllib
import urllib.parse
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

NAME = "bakeoff"
"""Of the distribution."""
REPOSITORY = "https://github.com/OWNER/bakeoff"
"""Where everybody finds Bakeoff; ``make owner`` changes it here and wherever else it stands."""
_RECEIPT = "uv-receipt.toml"
_TOOLS = {_RECEIPT: "uv tool install --force", "pipx_metadata.json": "pipx install --force"}
"""Commands of tools that keep a program in an environment of its own, by the file that each writes into it."""
_FROM_REPOSITORY: dict[str, Any] = {"url": REPOSITORY, "vcs_info": {"vcs": "git"}}


def how_to_install(*extras: str) -> str:
    """The command that adds extras to what is installed: from its checkout, its repository or the package index."""
    environment, origin = Path(sys.prefix), _origin()
    tool = next((command for file, command in _TOOLS.items() if (environment / file).is_file()), None)
    if tool is None:
        return f"pip install {_place(origin, extras)}"
    if _is_gone(origin):  # unlike pip, a tool would not keep what is installed, but ask an index for the name
        origin = _FROM_REPOSITORY
    return f"{tool} {_place(origin, tuple(dict.fromkeys((*_extras_of_receipt(environment), *extras))))}"


def _origin() -> dict[str, Any]:
    """Where the distribution was installed from (PEP 610); empty for a package index, the repository for none."""
    try:
        found = json.loads(distribution(NAME).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return _FROM_REPOSITORY
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_gone(origin: dict[str, Any]) -> bool:
    """Whether the wheel or checkout was deleted."""
    url = str(origin.get("url", ""))
    return url.startswith("file:") and not Path(_path(url)).exists()


def _path(url: str) -> str:
    return urllib.parse.unquote(urllib.parse.urlsplit(url).path)


def _extras_of_receipt(environment: Path) -> list[str]:
    """Extras that uv installed, and would remove if a new command did not name them."""
    try:
        receipt = tomllib.loads((environment / _RECEIPT).read_text(encoding="utf-8"))
        return [name for asked in receipt["tool"]["requirements"] if asked["name"] == NAME for name in asked["extras"]]
    except (OSError, ValueError, LookupError, TypeError):  # no receipt, or of a form that only its version of uv knows
        return []


def _place(origin: dict[str, Any], extras: tuple[str, ...]) -> str:
    url, asked = str(origin.get("url", "")), f"[{','.join(extras)}]"
    if not url or _is_gone(origin):
        return f"'{NAME}{asked}'"  # pip keeps what is installed and adds the rest
    if "dir_info" in origin:
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return f"{editable}'{_path(url)}{asked}'"
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        revision = f"@{vcs['requested_revision']}" if vcs.get("requested_revision") else ""
        return f"'{NAME}{asked} @ {vcs.get('vcs', 'git')}+{url}{revision}'"
    return f"'{NAME}{asked} @ {url}'"
