"""The effect of the client's own error on each metric, each cell and each comparison."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from bakeoff import results
from bakeoff.results.compare.comparison import compare_sides
from bakeoff.results.compare.sides import select
from bakeoff.results.compare.text import reason_text
from bakeoff.results.metrics.client_error import error_s, largest, largest_error_s, widest_s
from bakeoff.results.records import ClientError, Load
from bakeoff.results.report.verdict import verdict
from bakeoff.results.statistics import Judgement
from tests.results.builders import FAST, LOADS, Sheet, build_run

ERROR = ClientError(10, 500.0, send_lag_s=0.002, cpu_s=1.0, by_metric={"ttft_p50_s": 0.003, "itl_p99_s": 0.001})
SHEET = Sheet(engines={"only": FAST}, loads=LOADS[:1], requests=8, invalid=())


def test_a_metric_has_the_error_that_was_measured_for_it_and_no_other() -> None:
    assert error_s("ttft_p50_s", ERROR) == 0.003
    assert error_s("ttft_p99_s", ERROR) is None
    assert error_s("tpot_p99_s", ERROR) is None, "the error of a gap says nothing of TPOT"
    assert error_s("ttft_p50_s", None) is None


def test_the_widest_of_a_latency_is_that_of_its_worst_percentile() -> None:
    error = msgspec.structs.replace(ERROR, by_metric={"ttft_p50_s": 0.1, "ttft_p95_s": 0.4, "itl_p99_s": 9.0})
    assert widest_s("ttft", error) == 0.4
    assert widest_s("chunk_gap", error) is None


def test_the_largest_is_the_worst_of_each_field() -> None:
    assert largest([]) is None
    other = ClientError(8, 600.0, send_lag_s=0.001, cpu_s=2.0, by_metric={"ttft_p50_s": 0.001, "tpot_p50_s": 0.1})
    expected = {"ttft_p50_s": 0.003, "itl_p99_s": 0.001, "tpot_p50_s": 0.1}
    assert largest([ERROR, other]) == ClientError(8, 500.0, 0.002, 2.0, expected)


def test_a_cell_has_the_largest_error_of_its_trials(tmp_path: Path) -> None:
    (cell,) = results.load(build_run(tmp_path, SHEET)).cells
    assert cell.client_error is not None
    assert cell.error_s("itl_p50_s") == pytest.approx(0.000_12 * (1 + 1 / 16) * 1.03)  # of the third repeat
    assert cell.error_s("ttft_p99_s") == pytest.approx(3 * 0.000_12 * (1 + 1 / 16) * 1.03)
    assert cell.error_s("output_tokens_per_s") is None
    assert cell.uncalibrated is None


@pytest.mark.parametrize(
    ("changes", "reason"), [({"error_s": None}, "client.calibrate is off"), ({"finished": 0}, "no trial ended")]
)
def test_a_cell_without_a_client_error_says_why(tmp_path: Path, changes: dict[str, object], reason: str) -> None:
    run = results.load(build_run(tmp_path, replace(SHEET, **changes)))  # type: ignore[arg-type]
    assert [(cell.client_error, cell.uncalibrated) for cell in run.cells] == [(None, reason)]


def test_frames_contain_the_client_error(tmp_path: Path) -> None:
    calibrated = results.load(build_run(tmp_path / "1", SHEET)).trials
    gaps_s = calibrated.client_chunk_gap_p99_error_s
    assert calibrated.client_ttft_p99_error_s.tolist() == pytest.approx((gaps_s * 3).tolist())
    uncalibrated = results.load(build_run(tmp_path / "2", replace(SHEET, error_s=None))).trials
    assert uncalibrated.client_chunk_gap_p99_error_s.isna().all()


def slower(root: Path, error_s: float | None) -> results.Run:
    """Two engines that differ by 4 %, in an open loop, so that TTFT is the metric of the verdict."""
    speeds = {"a": FAST, "b": replace(FAST, ttft_s=FAST.ttft_s * 1.04, itl_s=FAST.itl_s * 1.04)}
    loads = [Load(rate_per_s=2.0, arrival="constant")]
    sheet = Sheet(engines=speeds, loads=loads, repeats=5, requests=40, invalid=(), error_s=error_s)
    return results.load(build_run(root, sheet))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error_s", "told_apart"), [(None, True), (0.000_01, True), (0.002, False)], ids=["unknown", "small", "large"]
)
def test_engines_that_differ_by_less_than_the_error_are_not_told_apart(
    tmp_path: Path, error_s: float | None, told_apart: bool
) -> None:
    run = slower(tmp_path, error_s)
    sides = [select(f"{run.path}@{engine}") for engine in ("a", "b")]
    compared = {comparison.metric: comparison for comparison in compare_sides(*sides).comparisons}
    for name in ("ttft_p50_s", "itl_p50_s", "tpot_p50_s"):
        word = Judgement.WORSE if told_apart else Judgement.UNCLEAR
        assert compared[name].judgement is word, compared[name]
        assert ("within the client's own error of ± " in reason_text(compared[name])) is not told_apart
    run_verdict = verdict(run)
    assert run_verdict.decided is told_apart
    assert ("but the difference of 0." in run_verdict.sentence) is not told_apart


def test_throughput_has_no_client_error(tmp_path: Path) -> None:
    run = slower(tmp_path, 10.0)
    assert largest_error_s("output_tokens_per_s", run.finished) == 0
    assert largest_error_s("ttft_p50_s", run.finished) > 10
