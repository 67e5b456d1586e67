"""What a message tells to install is installable: from where the rest came."""

import json
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from bakeoff import installation
from bakeoff.installation import REPOSITORY, how_to_install


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'bakeoff[engine]'"),
        ({"url": "file:///deleted", "dir_info": {"editable": True}}, "pip install 'bakeoff[engine]'"),
        ({"url": "file:///deleted/bakeoff-1-py3-none-any.whl", "archive_info": {}}, "pip install 'bakeoff[engine]'"),
        (
            {"url": "https://h/o/bakeoff", "vcs_info": {"vcs": "git", "commit_id": "c"}},
            "pip install 'bakeoff[engine] @ git+https://h/o/bakeoff'",
        ),
        (
            {"url": "https://h/o/bakeoff", "vcs_info": {"vcs": "git", "requested_revision": "v1", "commit_id": "c"}},
            "pip install 'bakeoff[engine] @ git+https://h/o/bakeoff@v1'",
        ),
        (
            {"url": "https://h/bakeoff-1-py3-none-any.whl", "archive_info": {}},
            "pip install 'bakeoff[engine] @ https://h/bakeoff-1-py3-none-any.whl'",
        ),
    ],
)
def test_it_names_the_place(monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None, command: str) -> None:
    class Installed:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if origin is None else json.dumps(origin)

    monkeypatch.setattr(installation, "distribution", lambda name: Installed())
    assert how_to_install("engine") == command


@pytest.mark.parametrize("editable", [True, False])
def test_it_names_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, editable: bool) -> None:
    checkout = tmp_path / "a b"
    checkout.mkdir()
    origin = {"url": checkout.as_uri(), "dir_info": {"editable": True} if editable else {}}
    monkeypatch.setattr(installation, "_origin", lambda: origin)
    assert how_to_install("engine", "hf") == f"pip install {'-e ' if editable else ''}'{checkout}[engine,hf]'"


def test_without_an_installation_it_names_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(installation, "distribution", missing)
    assert how_to_install("engine") == f"pip install 'bakeoff[engine] @ git+{REPOSITORY}'"


@pytest.mark.parametrize(
    ("file", "command"),
    [("uv-receipt.toml", "uv tool install --force"), ("pipx_metadata.json", "pipx install --force")],
)
def test_in_the_environment_of_a_tool_it_is_a_command_of_that_tool(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str, command: str
) -> None:
    (tmp_path / file).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(installation, "_origin", lambda: {"url": "https://h/o/bakeoff", "vcs_info": {"vcs": "git"}})
    assert how_to_install("engine") == f"{command} 'bakeoff[engine] @ git+https://h/o/bakeoff'"
    monkeypatch.setattr(installation, "_origin", lambda: {"url": "file:///deleted", "dir_info": {"editable": True}})
    assert how_to_install("engine") == f"{command} 'bakeoff[engine] @ git+{REPOSITORY}'"


def test_extras_that_uv_has_installed_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = '[{ name = "s3fs" }, { name = "bakeoff", extras = ["hf", "engine"] }]'
    (tmp_path / "uv-receipt.toml").write_text(f"[tool]\nrequirements = {asked}\n")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(installation, "_origin", dict)
    assert how_to_install("engine", "ray") == "uv tool install --force 'bakeoff[hf,engine,ray]'"
