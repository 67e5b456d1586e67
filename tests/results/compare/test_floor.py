"""The noise floor of a machine: how it is computed, where it is stored, and that a gate finds it."""

import json
import math
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bakeoff.results.compare.aa_runs import floors_of
from bakeoff.results.compare.comparison import compare_sides
from bakeoff.results.compare.floor import FLOOR_FILE, store_floors, stored_floors
from bakeoff.results.compare.gate import judge
from bakeoff.results.compare.sides import Side, select
from bakeoff.results.errors import NoEvidence, NotComparable, RunUnreadable
from bakeoff.results.log.run_log import Source
from bakeoff.results.log.store import RunFolder
from bakeoff.results.statistics.comparison import Evidence
from bakeoff.results.statistics.two_sample import Method
from tests.harness.cli.test_cli import in_process as bakeoff
from tests.results.amending import amend
from tests.results.builders import FAST, LOADS, Sheet, build_run

SHEET = Sheet(engines={"main": FAST}, loads=LOADS[2:3], repeats=3, requests=16, invalid=(), regret=None)


def aa_run(root: Path, number: int, *, hour: int | None = None, **changes: object) -> Path:
    created = f"2026-11-20T{number if hour is None else hour:02}:00:00+00:00"
    sheet = replace(SHEET, run_id=f"aa-{number}", seed=number, created_utc=created, **changes)  # type: ignore[arg-type]
    return build_run(root, sheet)


@pytest.fixture(name="runs", scope="module")
def runs_fixture(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("aa")
    return [aa_run(root, number) for number in range(6)]


def sides(runs: list[Path]) -> list[Side]:
    return [select(str(run)) for run in runs]


def test_the_bound_is_that_of_the_runs_means(runs: list[Path]) -> None:
    """Six runs: χ² of five degrees is below 0.554 in 1 % of cases."""
    (cell,) = floors_of(sides(runs))
    assert (cell.series.level, cell.series.adapter, cell.trials) == ("c=8", "openai", pytest.approx(3))
    assert cell.runs == [run.name for run in runs]
    means = []
    for side in sides(runs):
        values = [trial.metrics["itl_p50_s"].value for trial in side.trials]
        means.append(np.mean(np.log(np.array(values, dtype=float))))
    assert cell.bounds["itl_p50_s"] == pytest.approx(float(np.std(means, ddof=1)) * math.sqrt(5 / 0.5543), rel=1e-3)
    assert cell.bounds["failures"] == 0.0
    assert "ttft_p99_s" not in cell.bounds, "no trial has one"


def test_runs_of_one_hour_are_one(tmp_path: Path, runs: list[Path]) -> None:
    close = [aa_run(tmp_path, number, hour=number // 2) for number in range(6)]
    with pytest.raises(NoEvidence, match="a noise floor needs 5 runs at least an hour apart, there are 3; repeat"):
        floors_of(sides(close))
    with pytest.raises(NoEvidence, match="there are 4"):
        floors_of(sides(runs[:4]))


@pytest.mark.slow
def test_runs_of_other_things_are_no_floor(tmp_path: Path, runs: list[Path]) -> None:
    for number, commit in enumerate("ab"):
        folder = RunFolder(aa_run(tmp_path / commit, number))
        amend(folder.path, source=Source(commit, "main"))
    with pytest.raises(NotComparable, match=r"of different commits \(a, b\)"):
        floors_of(sides([tmp_path / "a" / "aa-0", tmp_path / "b" / "aa-1"]))
    slo = aa_run(tmp_path, 8, slo=msgspec.structs.replace(SHEET.slo, ttft_s=9.0))
    with pytest.raises(NotComparable, match=r"differ in slo.ttft_s \(0.2 and 9.0\); a noise floor needs"):
        floors_of(sides([*runs, slo]))
    label = aa_run(tmp_path, 9, engines={"branch": FAST})
    with pytest.raises(NotComparable, match=r"different engines \(branch, main\)"):
        floors_of(sides([*runs, label]))
    elsewhere = [aa_run(tmp_path / "x", number, reused=dict.fromkeys(range(3), "yesterday")) for number in range(5)]
    with pytest.raises(NoEvidence, match="have no load level at which each has a valid trial"):
        floors_of(sides(elsewhere))


@pytest.mark.slow
def test_it_is_stored_beside_the_runs_and_a_gate_finds_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = [aa_run(tmp_path, number) for number in range(6)]
    slower = replace(FAST, ttft_s=FAST.ttft_s * 1.4, itl_s=FAST.itl_s * 1.4)
    branch = aa_run(tmp_path, 8, engines={"branch": slower})
    gate = ["gate", "--baseline", str(made[0]), "--candidate", str(branch)]
    assert bakeoff(*gate, "--start-noise", "15%") == 2, "one run of main may have had a good day"
    assert "that would stand up to a standard deviation between runs of one server of" in " ".join(
        capsys.readouterr().out.split()
    )
    assert bakeoff("lab", "floor", *map(str, made)) == 0
    captured = capsys.readouterr()
    assert "c=8, 6 runs" in captured.out
    assert "ITL p50" in captured.out
    assert captured.err == f"stored: {tmp_path / FLOOR_FILE}\n"
    assert bakeoff(*gate) == 1
    evidence = compare_sides(select(str(made[0])), select(str(branch))).primary.evidence
    assert evidence is not None
    assert evidence.method is Method.NOISE_FLOOR
    capsys.readouterr()
    assert bakeoff("lab", "floor", *map(str, made), "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["trials"] == pytest.approx(3)
    assert len(stored_floors(tmp_path)) == 1, "measured again, it takes the place of the first"


def test_a_floor_holds_for_its_series_alone(tmp_path: Path, runs: list[Path]) -> None:
    cells = floors_of(sides(runs))
    store_floors(tmp_path, cells)
    a, b = (aa_run(tmp_path, number) for number in (1, 2))
    assert _evidence(a, b).method is Method.NOISE_FLOOR
    moved = [msgspec.structs.replace(cell, series=msgspec.structs.replace(cell.series, level="c=4")) for cell in cells]
    (tmp_path / FLOOR_FILE).unlink()
    store_floors(tmp_path, moved)
    assert _evidence(a, b).unseen is not None


def _evidence(a: Path, b: Path) -> Evidence:
    evidence = judge(select(str(a)), select(str(b))).compared.primary.evidence
    assert evidence is not None
    return evidence


@pytest.mark.parametrize(("text", "message"), [("{", "is damaged"), ('{"version": 9}', "has version 9, not 1")])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / FLOOR_FILE).write_text(text)
    with pytest.raises(RunUnreadable, match=f"{message}.*measure it again: bakeoff lab floor"):
        stored_floors(tmp_path)
    assert bakeoff("lab", "floor") == 2
