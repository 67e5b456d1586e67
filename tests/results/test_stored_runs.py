"""Runs stored by earlier commits are read, and their figures are those of then."""

import json
import tarfile
from pathlib import Path

import pytest

from bakeoff.results.metrics.throughput import RATES
from tests.results.stored.figures import figures_of

STORED = Path(__file__).with_name("stored")
COMMITS = ("480d7594", "84d47128")
"""Runs of these commits; the figures are those that 84d47128 read from them. Since then the rates of closed loops are
those of the long run, within the noise of a few dozen requests."""


@pytest.mark.parametrize("commit", COMMITS)
def test_stored_runs_keep_their_figures(commit: str, tmp_path: Path):
    with tarfile.open(STORED / f"{commit}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    expected = json.loads((tmp_path / commit / "figures.json").read_text(encoding="utf-8"))
    (tmp_path / commit / "figures.json").unlink()
    found = figures_of(tmp_path / commit)
    assert found.keys() == expected.keys()
    for place, values in expected.items():
        changed = {name for name in values if name.partition(" ")[0] in RATES and _is_closed(place, name)}
        assert {name: found[place].get(name) for name in values.keys() - changed} == {
            name: value for name, value in values.items() if name not in changed
        }, place
        for name in changed:
            (*judged, now), (*before, then) = (each if isinstance(each, list) else [each] for each in (
                found[place][name], values[name]))  # fmt: skip
            assert judged == before
            is_noise = place.startswith(("sessions", "reasoning"))  # windows of a few requests of chats
            assert is_noise or now == pytest.approx(then, rel=0.2)


def _is_closed(place: str, name: str) -> bool:
    """Whether a figure is of a closed loop: in runs of two loads, the first of each engine."""
    return name.endswith("c=2") or (" " not in name and not place.startswith("search/") and not place.endswith("-2"))
