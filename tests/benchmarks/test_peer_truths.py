"""What the truth server's record says of a load, and which reported figures it proves wrong."""

from pathlib import Path

import msgspec
import pytest

from bakeoff.harness.truth import Answered, Fault
from benchmarks.peers.misread import often_wrong, wrong_figures
from benchmarks.peers.protocol import Figures, Load
from benchmarks.peers.running import Trial
from benchmarks.peers.truths import truth_of
from benchmarks.peers.watch import Footprint

MS = 1_000_000


def answer(start_ms: float, writes_ms: list[float], tokens: int | None = None) -> Answered:
    written_ns = [round(at * MS) for at in writes_ms]
    return Answered(
        start_ns=round(start_ms * MS),
        tokens=len(writes_ms) if tokens is None else tokens,
        written_ns=written_ns,
        ended_ns=written_ns[-1],
        fault=None if tokens is None else Fault.ERROR_EVENT,
    )


def test_latencies_are_of_sound_answers_and_rates_of_all() -> None:
    broken = answer(30, [35, 40], tokens=9)
    truth = truth_of([answer(0, [10, 20, 40]), answer(10, [40, 50, 60]), broken], None)
    assert truth.requests == 3
    assert truth.sound == 2
    assert truth.tokens == 6
    assert truth.chunks == 8
    assert truth.latencies.ttft_mean_ms == 20
    assert truth.latencies.itl_mean_ms == pytest.approx((10 + 20 + 10 + 10) / 4)
    assert truth.latencies.tpot_mean_ms == pytest.approx((15 + 10) / 2)
    assert truth.chunks_per_s == pytest.approx(8 / 0.050)
    assert truth.arrivals_per_s == pytest.approx(2 / 0.030)
    assert truth.arrivals_cv == pytest.approx(5 / 15)


def test_one_token_answers_have_no_gap_and_no_pace() -> None:
    latencies = truth_of([answer(0, [5]), answer(5, [12])], 1).latencies
    assert latencies.ttft_mean_ms == 6
    assert latencies.itl_mean_ms is None
    assert latencies.tpot_mean_ms is None


def test_in_flight_leaves_out_the_ramp_and_the_drain() -> None:
    """Two wanted: reached at 10, the last starts at 60; one alone from 40 to 45, so 2 for 45 ms and 1 for 5."""
    answers = [answer(0, [40]), answer(10, [60]), answer(45, [80]), answer(60, [200])]
    assert truth_of(answers, 2).in_flight == pytest.approx((2 * 45 + 1 * 5) / 50)


def test_in_flight_of_a_client_that_never_reaches_the_level_counts_from_its_own_best() -> None:
    answers = [answer(0, [40]), answer(10, [60]), answer(45, [80])]
    assert truth_of(answers, 64).in_flight == pytest.approx((2 * 30 + 1 * 5) / 35)


def figures(**changes: object) -> Figures:
    right = Figures(
        ttft_mean_ms=10.05,
        ttft_p50_ms=10,
        ttft_p99_ms=10,
        itl_mean_ms=5,
        itl_p99_ms=5,
        tpot_mean_ms=5,
        ok=1,
        failed=1,
        duration_s=1,
        output_tokens=3,
    )
    return msgspec.structs.replace(right, **changes)


def trial(said: Figures) -> Trial:
    truth = truth_of([answer(0, [10, 15, 20]), answer(5, [20], tokens=9)], None)
    footprint = Footprint([0, 10 * MS, 30 * MS], [0.0, 1.0, 2.0], 0, 1)
    return Trial(figures=said, truth=truth, footprint=footprint, wall_s=1)


def test_figures_within_a_tenth_of_a_millisecond_are_right() -> None:
    assert wrong_figures(trial(figures())) == {}


def test_what_a_client_does_not_report_is_not_wrong() -> None:
    assert wrong_figures(trial(figures(failed=None, itl_mean_ms=None))) == {}


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("TTFT", {"ttft_mean_ms": 1.5}, "TTFT 1.50 ms (true 10.00)"),
        ("ITL", {"itl_mean_ms": 4.7}, "ITL 4.70 ms (true 5.00)"),
        ("TPOT", {"tpot_mean_ms": float("nan")}, "TPOT nan ms (true 5.00)"),
        ("ok", {"ok": 2}, "ok 2 (true 1)"),
        ("failed", {"failed": 0}, "failed 0 (true 1)"),
        ("output tokens", {"output_tokens": 4}, "output tokens 4 (true 3)"),
    ],
)
def test_a_wrong_figure_is_named_beside_the_true_one(name: str, change: dict[str, object], complaint: str) -> None:
    assert wrong_figures(trial(figures(**change))) == {name: complaint}


def test_what_is_wrong_in_one_round_of_three_is_noise() -> None:
    late, right = trial(figures(ttft_mean_ms=12)), trial(figures())
    assert often_wrong([late, right, right]) == []
    assert often_wrong([late, right, late]) == ["TTFT 12.00 ms (true 10.00)"]
    assert often_wrong([late]) == ["TTFT 12.00 ms (true 10.00)"]


def test_cpu_time_is_that_between_the_first_request_and_the_last_token() -> None:
    """From 0 to 20 ms: one second by 10 ms, half of the second one by 20 ms."""
    assert trial(figures()).cpu_load_s == pytest.approx(1.5)
    assert trial(figures()).cpu_report_s == pytest.approx(0.5)


def test_a_load_is_closed_or_open() -> None:
    with pytest.raises(ValueError, match="either a concurrency or a rate"):
        Load("", Path(), requests=1, output_tokens=1)
