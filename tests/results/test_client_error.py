"""What the client's own error means for each metric, each cell and each comparison."""

from dataclasses import replace
from pathlib import Path

import pytest

import results
from results.client_error import error_s, largest, largest_error_s
from results.comparing import compare_sides, select
from results.metrics import CATALOGUE
from results.records import ClientError, Load
from results.report.verdict import verdict
from results.statistics import Judgement
from tests.results.builders import FAST, LOADS, Sheet, build_run

ERROR = ClientError(requests=10, chunks_per_s=500.0, ttft_s=0.003, itl_s=0.001, send_lag_s=0.002, cpu_s=1.0)
ONE = Sheet(engines={"only": FAST}, loads=LOADS[:1], requests=8, invalid=())


@pytest.mark.parametrize(
    ("key", "tokens_per_chunk", "expected"),
    [
        ("ttft", None, 0.003),
        ("ttft_from_send", 4.0, 0.003),
        ("e2e", 4.0, 0.003),
        ("chunk_gap", 4.0, 0.001),
        ("itl", 4.0, 0.000_25),
        ("itl", None, 0.001),
        ("tpot", 4.0, 0.000_25),
        ("send_lag", 1.0, None),
    ],
)
def test_each_latency_has_the_error_of_what_it_is_made_of(
    key: str, tokens_per_chunk: float | None, expected: float | None
) -> None:
    for label in ("p50", "p99"):
        assert error_s(f"{key}_{label}_s", ERROR, tokens_per_chunk) == expected


def test_only_latencies_have_one() -> None:
    known = {name for name in CATALOGUE if error_s(name, ERROR, 1.0) is not None}
    assert known == {n for n in CATALOGUE if n.startswith(("ttft", "e2e", "itl", "tpot", "chunk_gap"))}
    assert not any(error_s(name, None, 1.0) for name in CATALOGUE)
    one_chunk = replace_itl(None)
    assert error_s("itl_p50_s", one_chunk, 1.0) is None
    assert error_s("ttft_p50_s", one_chunk, 1.0) == 0.003


def replace_itl(itl_s: float | None) -> ClientError:
    return ClientError(8, 600.0, 0.003, itl_s, 0.001, 2.0)


def test_the_largest_is_the_worst_of_each_field() -> None:
    assert largest([]) is None
    assert largest([ERROR, replace_itl(0.004)]) == ClientError(8, 500.0, 0.003, 0.004, 0.002, 2.0)
    found = largest([ERROR, replace_itl(None)])
    assert found is not None
    assert found.itl_s == 0.001


def test_a_cell_has_the_largest_error_of_its_trials(tmp_path: Path) -> None:
    (cell,) = results.load(build_run(tmp_path, ONE)).cells
    assert cell.client_error is not None
    assert cell.client_error.itl_s == pytest.approx(0.000_12 * (1 + 1 / 16) * 1.03)  # of the third repeat
    assert cell.error_s("ttft_p99_s") == pytest.approx(3 * 0.000_12 * (1 + 1 / 16) * 1.03)
    assert cell.error_s("output_tokens_per_s") is None
    assert cell.uncalibrated is None


def test_a_cell_of_chunks_of_several_tokens_spreads_the_error(tmp_path: Path) -> None:
    sheet = replace(ONE, engines={"only": replace(FAST, tokens_per_chunk=4)})
    (cell,) = results.load(build_run(tmp_path, sheet)).cells
    gap_s, itl_s = cell.error_s("chunk_gap_p50_s"), cell.error_s("itl_p50_s")
    assert gap_s is not None
    assert itl_s == pytest.approx(gap_s / 4)


@pytest.mark.parametrize(
    ("changes", "reason"), [({"error_s": None}, "client.calibrate is off"), ({"finished": 0}, "no trial ended")]
)
def test_a_cell_without_one_says_why(tmp_path: Path, changes: dict[str, object], reason: str) -> None:
    run = results.load(build_run(tmp_path, replace(ONE, **changes)))  # type: ignore[arg-type]
    assert [(cell.client_error, cell.uncalibrated) for cell in run.cells] == [(None, reason)]


def test_frames_carry_it(tmp_path: Path) -> None:
    known = results.load(build_run(tmp_path / "1", ONE)).trials
    assert known.client_ttft_error_s.tolist() == pytest.approx((known.client_gap_error_s * 3).tolist())
    assert results.load(build_run(tmp_path / "2", replace(ONE, error_s=None))).trials.client_gap_error_s.isna().all()


def slower(root: Path, error_s: float | None) -> results.Run:
    """Two engines that differ by 4 %, in an open loop, so that TTFT is the metric of the verdict."""
    speeds = {"a": FAST, "b": replace(FAST, ttft_s=FAST.ttft_s * 1.04, itl_s=FAST.itl_s * 1.04)}
    loads = [Load(rate_per_s=2.0, arrival="constant")]
    sheet = Sheet(engines=speeds, loads=loads, repeats=5, requests=40, invalid=(), error_s=error_s)
    return results.load(build_run(root, sheet))


@pytest.mark.parametrize(
    ("error_s", "told_apart"), [(None, True), (0.000_01, True), (0.002, False)], ids=["unknown", "small", "large"]
)
def test_engines_that_differ_by_less_than_the_error_are_not_told_apart(
    tmp_path: Path, error_s: float | None, told_apart: bool
) -> None:
    run = slower(tmp_path, error_s)
    sides = [select(f"{run.path}@{engine}") for engine in ("a", "b")]
    compared = {one.metric: one for one in compare_sides(*sides).comparisons}
    for name in ("ttft_p50_s", "itl_p50_s", "tpot_p50_s"):
        word = Judgement.WORSE if told_apart else Judgement.UNCLEAR
        assert compared[name].judgement is word, compared[name]
        assert ("within the client's own error of ± " in compared[name].why) is not told_apart
    found = verdict(run)
    assert found.decided is told_apart
    assert ("but the difference of 0." in found.sentence) is not told_apart


def test_throughput_does_not_know_of_it(tmp_path: Path) -> None:
    run = slower(tmp_path, 10.0)
    assert largest_error_s("output_tokens_per_s", run.finished) == 0
    assert largest_error_s("ttft_p50_s", run.finished) > 10
