"""What a message tells to install is installable: from where the rest came."""

import json
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
