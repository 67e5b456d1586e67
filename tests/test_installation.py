"""What a message tells to install is installable: from where the rest came."""

import json
from typing import Any

import pytest

from bakeoff import installation
from bakeoff.installation import how_to_install


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'bakeoff[engine]'"),
        ({"url": "file:///a%20b/repo", "dir_info": {"editable": True}}, "pip install -e '/a b/repo[engine]'"),
        ({"url": "file:///repo", "dir_info": {}}, "pip install '/repo[engine]'"),
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
