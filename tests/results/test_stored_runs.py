"""Runs stored by earlier commits are read, and their figures are those of then."""

import json
import tarfile
from pathlib import Path

import pytest

from bakeoff.harness.cli.stored import read
from bakeoff.results.metrics.throughput import RATES
from bakeoff.results.records import Verdict
from tests.results.stored.figures import figures_of

STORED = Path(__file__).with_name("stored")
COMMITS = ("480d7594", "84d47128")
"""Runs of these commits; the figures are those that 84d47128 read from them. Since then the rates of closed loops are
those of the long run, within the noise of a few dozen requests, and searches have another estimator."""


def unpack(name: str, folder: Path) -> Path:
    with tarfile.open(STORED / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


@pytest.fixture
def miscounted(tmp_path: Path) -> Path:
    """A run of 84d47128: 20 visible tokens in 20 events 10 ms apart, a first one after 100 ms, and a usage of 1."""
    return unpack("usage-of-one", tmp_path)


def test_tokens_of_an_earlier_version_are_counted_again_beside_what_it_stored(miscounted: Path):
    stored = {path: path.read_bytes() for path in miscounted.rglob("*") if path.is_file()}
    for _ in range(2):  # decoded, and as stored then
        (trial,) = read(miscounted).finished
        assert trial.record.verdict is Verdict.INVALID  # it was VALID with 3.33 tok/s
        assert trial.metrics["output_tokens_per_s"].value == pytest.approx(69, rel=0.02)
        assert trial.metrics["tpot_p50_s"].value == pytest.approx(0.010, rel=0.02)
    assert {path: path.read_bytes() for path in stored} == stored


def test_damaged_recounts_are_made_again(miscounted: Path):
    read(miscounted)
    (recount,) = miscounted.rglob("recount.json")
    recount.write_text("{", encoding="utf-8")
    (trial,) = read(miscounted).finished
    assert trial.record.verdict is Verdict.INVALID
    (requests,) = miscounted.rglob("requests-*.jsonl")
    requests.unlink()
    (trial,) = read(miscounted).finished
    assert trial.metrics["output_tokens_per_s"].value == pytest.approx(69, rel=0.02)


def test_trials_without_their_raw_log_keep_the_counts_of_their_version(
    miscounted: Path, capsys: pytest.CaptureFixture[str]
):
    (streams,) = miscounted.rglob("streams-*.frames")
    streams.unlink()
    (trial,) = read(miscounted).finished
    assert trial.metrics["output_tokens_per_s"].value == pytest.approx(3.42, rel=0.01)
    assert "keep the counts of the version that measured them" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("commit", COMMITS)
def test_stored_runs_keep_their_figures(commit: str, tmp_path: Path):
    unpack(commit, tmp_path)
    expected = json.loads((tmp_path / commit / "figures.json").read_text(encoding="utf-8"))
    (tmp_path / commit / "figures.json").unlink()
    found = figures_of(tmp_path / commit)
    assert found.keys() == expected.keys()
    for place, values in expected.items():
        if place == "search-search":  # few trials have an interval now: 5 of 75 are late at 41.5, all at 42.4
            (low, level, high), (_, then, open_end) = found[place]["a"], values["a"]
            assert (low, level) == (None, pytest.approx(41.5 if commit == "84d47128" else then, rel=0.1))
            assert level <= high <= open_end
            continue
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
