"""Steps in a folder of runs."""

import io
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from results.errors import NoEvidence, NotComparable, RunNotFound
from results.history import history
from results.records import RunStatus, Source
from results.report import print_history
from results.store import RunFolder
from tests.results.builders import FAST, LOADS, Sheet, build_run

TINY = Sheet(engines={"only": FAST}, loads=LOADS[:1], repeats=2, requests=5, invalid=(), regret=None)


def run_of(root: Path, number: int, **changes: object) -> None:
    """One run; from number 5 on slower by a half."""
    slower = 1.5 if number >= 5 else 1.0
    speed = replace(FAST, ttft_s=FAST.ttft_s * slower, itl_s=FAST.itl_s * slower)
    status = changes.pop("status", RunStatus.COMPLETE)
    sheet = replace(TINY, engines={"only": speed}, run_id=f"run-{number:02}", seed=number, status=status)
    path = build_run(root, sheet)
    folder = RunFolder.open(path)
    source = Source(f"{number:09x}abc", "side" if number == 3 else "main")
    folder.write_manifest(msgspec.structs.replace(folder.read_manifest(), source=source, **changes))


@pytest.fixture(name="runs", scope="module")
def runs_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for number in range(10):
        run_of(root, number)
    return root


def test_a_folder_of_runs(runs: Path) -> None:
    series = history(runs, metrics=("itl_p50_s", "output_tokens_per_s", "failures"))
    assert [(one.engine, one.level, one.metric, len(one.points)) for one in series] == [
        ("only", "c=1", "itl_p50_s", 10), ("only", "c=1", "output_tokens_per_s", 10),
    ]  # fmt: skip
    for one, ratio in zip(series, (1.5, 1 / 1.5), strict=True):
        (change,) = one.changes
        assert (change.last_before.run, change.first_after.run) == ("run-04", "run-05")
        assert change.step.ratio == pytest.approx(ratio, rel=0.03)
        assert change.is_worse
    out = io.StringIO()
    print_history(series, Console(file=out, width=180))
    assert "000000004..000000005" in out.getvalue()
    assert "▼ worse" in out.getvalue()
    assert "2 steps in 2 series of up to 10 runs; 0 series never changed" in out.getvalue()


def test_only_runs_that_belong_together(runs: Path, tmp_path: Path) -> None:
    (one,) = history(runs, branch="main", metrics=("itl_p50_s",))
    assert "run-03" not in {point.run for point in one.points}
    for number in range(7):
        run_of(tmp_path, number, **({"environment": {"cpu": "other", "cores": 64}} if number > 5 else {}))
    run_of(tmp_path, 8, status=RunStatus.INTERRUPTED)
    series = history(tmp_path, metrics=("itl_p50_s",))
    assert [(one.machine, len(one.points)) for one in series] == [("Xeon 8468, 2 cores", 6), ("other, 64 cores", 1)]


def test_what_is_no_history(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match=r"there is no complete run of 'x' in "):
        history(runs, "x")
    with pytest.raises(RunNotFound, match=r"there is no complete run on branch 'y' in "):
        history(runs, branch="y")
    with pytest.raises(NotComparable, match="unknown metric 'z'"):
        history(runs, metrics=("z",))
    run_of(tmp_path, 0)
    with pytest.raises(NoEvidence, match="the longest series has 1 runs; a step needs 3 before it and as many after"):
        history(tmp_path)
    run_of(tmp_path, 1, name="other")
    with pytest.raises(NotComparable, match="several experiments; give --name: demo, other"):
        history(tmp_path)
