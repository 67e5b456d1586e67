"""Runs stored by earlier commits are read, and their figures are those of then."""

import json
import tarfile
from pathlib import Path

import pytest

from tests.results.stored.figures import figures_of

STORED = Path(__file__).with_name("stored")
COMMITS = ("480d7594", "84d47128")
"""Runs of these commits; the figures are those that 84d47128 read from them."""


@pytest.mark.parametrize("commit", COMMITS)
def test_stored_runs_keep_their_figures(commit: str, tmp_path: Path):
    with tarfile.open(STORED / f"{commit}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    expected = json.loads((tmp_path / commit / "figures.json").read_text(encoding="utf-8"))
    (tmp_path / commit / "figures.json").unlink()
    found = figures_of(tmp_path / commit)
    assert found.keys() == expected.keys()
    for place, values in expected.items():
        assert {name: found[place].get(name) for name in values} == values, place
