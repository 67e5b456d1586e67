"""A third-party package with the name of one of ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.shadowing import shadowed

ROOT = Path(__file__).parents[2]


def test_nothing_is_hidden_here():
    assert shadowed() is None


@pytest.mark.parametrize("file", ["results/__init__.py", "results.py"])
def test_a_package_that_comes_first_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("")
    monkeypatch.delitem(sys.modules, "results", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    hidden = tmp_path / Path(file).parts[0]
    assert shadowed() == f"{hidden} hides Bakeoff's package 'results'; rename it, or take its folder off sys.path"


def test_every_command_says_so_in_one_line(tmp_path: Path):
    """In a process of its own, which really imports the wrong package."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "__init__.py").write_text("")
    paths = [str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    argv = [sys.executable, "-c", "import harness.entry; harness.entry.main()", "doctor"]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        f"bakeoff: {tmp_path}/results hides Bakeoff's package 'results'; rename it, or take its folder off sys.path\n"
    )
