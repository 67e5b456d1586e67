"""Steps in a series, and in a folder of runs."""

import io
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

from results.errors import NoEvidence, NotComparable, RunNotFound
from results.history import history
from results.records import RunStatus, Source
from results.report import print_history
from results.statistics.change_points import change_points
from results.store import RunFolder
from tests.results.builders import FAST, LOADS, Sheet, build_run

TINY = Sheet(engines={"only": FAST}, loads=LOADS[:1], repeats=2, requests=5, invalid=(), regret=None)


def noisy(seed: int, *levels: tuple[float, int]) -> list[float]:
    rng = np.random.default_rng(seed)
    return [level * float(np.exp(rng.normal(0, 0.01))) for level, count in levels for _ in range(count)]


def test_a_step_is_found_where_it_is() -> None:
    values = noisy(1, (50.0, 40), (51.5, 20))
    (step,) = change_points(values)
    assert step.index == pytest.approx(40, abs=2)
    assert (step.before, step.after) == pytest.approx((50.0, 51.5), rel=0.005)
    assert step.ratio == pytest.approx(1.03, abs=0.008)
    assert step.p_value < 1e-6
    assert change_points(values) == [step], "the same answer every time"


def test_up_and_back_down_do_not_hide_each_other() -> None:
    steps = change_points(noisy(2, (50.0, 40), (53.0, 6), (50.0, 40)))
    assert [step.index for step in steps] == pytest.approx([40, 46], abs=1)
    assert [step.ratio > 1 for step in steps] == [True, False]


def test_noise_and_single_runs_that_went_wrong_are_no_steps() -> None:
    for seed in range(30):
        values = noisy(seed, (50.0, 100))
        assert change_points(values) == []
        values[30] *= 1.5
        values[99] *= 0.5
        assert change_points(values) == []


def test_a_drift_of_levels_and_constant_series() -> None:
    assert change_points([3.0] * 20) == []
    (step,) = change_points([3.0] * 10 + [4.0] * 10)
    assert (step.index, step.before, step.after) == (10, pytest.approx(3.0), pytest.approx(4.0))
    assert change_points([1.0, 1.0, 5.0, 5.0, 5.0]) == [], "two runs are no level"
    assert change_points([]) == []


def test_the_unit_does_not_matter() -> None:
    values = noisy(5, (1.0, 30), (1.05, 30))
    seen, scaled = change_points(values), change_points([1e6 * value for value in values])
    assert [step.index for step in seen] == [step.index for step in scaled]
    assert scaled[0].ratio == pytest.approx(seen[0].ratio)


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
