"""The client's own error: the arithmetic on made-up records, then small calibrations against a real truth server."""

import asyncio
import json
import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from bakeoff.harness.calibration.client_error import (
    LENGTHS,
    MAX_SENT_BYTES,
    Shape,
    calibrate,
    client_error,
    median_of,
    metric_error_s,
    planned_sessions,
    spread_of,
)
from bakeoff.harness.calibration.grid import calibrate_grid, calibration_path
from bakeoff.harness.cli import make_app
from bakeoff.harness.cli.guarded import guarded
from bakeoff.harness.client import Issue, LoadResult, local_fleet
from bakeoff.harness.conduct.client_errors import shape_of
from bakeoff.harness.errors import BadGrid, ClientFailed
from bakeoff.harness.truth import Answered
from bakeoff.results.errors import NotCalibrated, RunUnreadable
from bakeoff.results.machine.calibration import Calibration, read_calibration
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.records import ClientError, ClientRecord, Load, Outcome, Phase, RequestRecord
from tests.harness.samples import request

MS = 1_000_000
PACE = Shape(gap_s=0.01, chunks=3, ttft_s=0.05, concurrency=2)


def received(
    sent: float, chunks: list[float], *, planned: float | None = None, ended: float | None = None, words: int = 1
) -> RequestRecord:
    """A request as the client recorded it; times in ms."""
    return request(
        planned_ns=round((sent if planned is None else planned) * MS),
        sent_ns=round(sent * MS),
        chunk_ns=[round(t * MS) for t in chunks],
        chunk_tokens=[1] * len(chunks),
        ended_ns=round((chunks[-1] if ended is None else ended) * MS),
        requested_input_tokens=words,
    )


def done(start: float, chunks: list[float], words: int = 1) -> Answered:
    """An answer as the server wrote it; times in ms."""
    written_ns = [round(t * MS) for t in chunks]
    return Answered(tokens=len(chunks), prompt_tokens=words, start_ns=round(start * MS), written_ns=written_ns)


def cost(*cpu_s: float) -> LoadResult:
    return LoadResult(0, Issue(0, 1), None, [ClientRecord("h", 1, cpu, 1) for cpu in cpu_s])


def error_of(requests: list[RequestRecord], answers: list[Answered]) -> ClientError:
    return client_error(PACE, requests, answers, cost(0.25, 0.5))


def test_the_error_of_a_metric_is_the_difference_between_the_clients_and_the_servers():
    """TTFT: 51 measured, 50 true. Gaps: 10.4 and 9.7 measured, 10 and 10 true. TPOT: 20.1 / 2 measured, 10 true."""
    error = error_of([received(1, [51, 61.4, 71.1], planned=0)], [done(1.2, [51.2, 61.2, 71.2])])
    expected_ms = {
        "ttft_p50_s": 51 - 50,
        "ttft_from_send_p50_s": 50 - 50,
        "chunk_gap_p50_s": 10.05 - 10,
        "itl_p99_s": 10.4 - 10 - 0.01 * 0.7,
        "tpot_p99_s": 10.05 - 10,
        "e2e_p90_s": 71.1 - 70,
        "normalized_latency_p95_s": (71.1 - 70) / 3,
    }
    assert {name: error.by_metric[name] for name in expected_ms} == pytest.approx(
        {name: ms / 1e3 for name, ms in expected_ms.items()}, abs=1e-9
    )
    assert error.send_lag_s == pytest.approx(0.001)
    assert error.cpu_s == 0.75
    assert error.requests == 1


def test_every_latency_with_a_truth_has_an_error():
    error = error_of([received(0, [50, 60, 70])], [done(0, [50, 60, 70])])
    latencies = {name for name, metric in CATALOGUE.items() if metric.latency}
    assert latencies - set(error.by_metric) == {f"send_lag_{label}_s" for label in ("p50", "p90", "p95", "p99")}


def test_a_late_read_moves_gaps_and_leaves_the_pace_alone():
    """Reads are late by about 0.15 ms, as they happen to be: p99 of a gap is off by much more than that of TPOT."""
    late = random.Random(5)
    answers = [done(i * 1000.0, [i * 1000 + 50 + 10 * t for t in range(128)]) for i in range(40)]
    requests = [
        received(answer.start_ns / MS, [t_ns / MS + late.expovariate(1 / 0.15) for t_ns in answer.written_ns])
        for answer in answers
    ]
    error = error_of(requests, answers).by_metric
    assert 0.0005 < error["chunk_gap_p99_s"] < 0.001
    assert error["tpot_p99_s"] < error["chunk_gap_p99_s"] / 50
    assert 0 < error["tpot_p50_s"] < 0.000_005


def test_the_error_is_not_nothing_by_luck():
    """The median of five is measured without error; resamples of the five have other medians."""
    true_s = [[0.1], [0.2], [0.3], [0.4], [0.5]]
    seen_s = [[0.11], [0.21], [0.3], [0.4], [0.5]]
    assert metric_error_s(seen_s, true_s)[0] == pytest.approx(0.01)


def test_a_perfect_client_has_no_error_and_reaches_the_requested_rate():
    error = error_of([received(0, [50, 60, 70])], [done(0, [50, 60, 70])])
    assert set(error.by_metric.values()) == {0}
    assert error.send_lag_s == 0
    assert error.chunks_per_s == pytest.approx(2 * 3 / 0.07)


def test_answers_that_take_twice_as_long_are_half_the_rate():
    error = error_of([received(0, [50, 60, 70], ended=140)], [done(0, [50, 60, 70])])
    assert error.chunks_per_s == pytest.approx(3 / 0.07)


def test_requests_find_their_answers_whatever_the_order_in_which_they_ended():
    late, early = received(100, [150, 160, 170]), received(0, [50, 70, 90])
    error = error_of([late, early], [done(0, [50, 70, 90]), done(100, [150, 160, 170])])
    assert set(error.by_metric.values()) == {0}


def test_a_burst_that_was_read_in_another_order_is_told_apart_by_its_prompts():
    first, second = received(0, [50, 60, 70], words=1), received(0.1, [53, 63, 73], words=2)
    error = error_of([first, second], [done(0.4, [50.4, 60.4, 70.4]), done(0.3, [53.2, 63.2, 73.2], words=2)])
    assert error.by_metric["ttft_from_send_p99_s"] == pytest.approx(0, abs=1e-9)


def test_one_chunk_has_no_gap_to_be_wrong_about():
    errors = error_of([received(0, [50])], [done(0, [50])]).by_metric
    assert not any(name.startswith(("itl", "chunk_gap", "tpot")) for name in errors)
    assert errors["ttft_p50_s"] == 0


@pytest.mark.parametrize(
    ("requests", "answers", "words"),
    [
        ([received(0, [50])], [], "0 answers to 1 requests"),
        ([], [], "0 answers to 0 requests"),
        ([received(0, [50])], [done(0, [50, 60])], "the server wrote 2 chunks of an answer, the client read 1"),
        ([request(outcome=Outcome.REFUSED, error="nobody")], [done(0, [1, 2], 3)], "ended as refused: nobody"),
    ],
)
def test_what_does_not_belong_together_is_no_calibration(
    requests: list[RequestRecord], answers: list[Answered], words: str
):
    with pytest.raises(ClientFailed, match=words):
        error_of(requests, answers)


def test_the_median_of_three_leaves_a_hiccup_out():
    pairs = ((1.0, 9.0), (2.0, 0.1), (70.0, 0.2))
    errors = [ClientError(4, 100, 0.1, 1, {"ttft_p50_s": ttft, "itl_p99_s": gap}) for ttft, gap in pairs]
    median = median_of(errors)
    assert (median.by_metric, median.requests) == ({"ttft_p50_s": 2.0, "itl_p99_s": 0.2}, 12)


def test_long_answers_are_cut_and_an_open_loop_sends_as_many_more():
    fitted = Shape(gap_s=0.02, chunks=200, ttft_s=3.0, rate_per_s=5).fitted()
    assert fitted == Shape(gap_s=0.02, chunks=11, ttft_s=0.05, rate_per_s=5 * 200 / 11)
    assert fitted.chunks_per_s == pytest.approx(5 * 200)
    assert fitted.answer_s == pytest.approx(0.25)


def test_a_shape_that_cannot_be_driven_is_brought_to_one_that_can():
    assert Shape(gap_s=0.0, chunks=1, rate_per_s=0.1).fitted() == Shape(gap_s=0.001, chunks=1, rate_per_s=10)
    assert Shape(gap_s=9.0, chunks=64, concurrency=8).fitted() == Shape(gap_s=0.1, chunks=4, concurrency=8)


def test_bodies_are_as_large_as_the_trials_and_still_tell_requests_apart():
    sizes = (180, 5_000, 200_000)
    sessions = list(planned_sessions(Shape(chunks=4, concurrency=8, body_bytes=sizes, tokens_per_chunk=2)))
    turns = [session.turns[0] for session in sessions]
    assert [turn.body.size for turn in turns[:6]] == [*sizes, *sizes]
    assert len({turn.requested_input_tokens for turn in turns[:LENGTHS]}) == min(LENGTHS, len(turns))
    assert {turn.requested_output_tokens for turn in turns} == {8}


def test_a_closed_loop_of_huge_bodies_is_cut():
    huge = Shape(concurrency=2, body_bytes=(MAX_SENT_BYTES // 4,), gap_s=0.001, chunks=4, ttft_s=0.01)
    assert sum(1 for _ in planned_sessions(huge)) == 4


def test_sixteen_sizes_stand_for_all():
    assert spread_of([]) == ()
    assert spread_of([7]) == (7,)
    assert spread_of([3, 1, 2]) == (1, 2, 3)
    spread = spread_of(range(1001))
    assert (len(spread), spread[0], spread[-1]) == (16, 0, 1000)


def test_a_trial_lends_its_pace():
    answers = [received(i * 100, [i * 100 + t for t in (20, 20, 50)]) for i in range(3)]  # one read of two, one of one
    warm = request(phase=Phase.WARMUP)
    assert shape_of(Load(concurrency=3), [warm, *answers]) == Shape(0.03, 2, 0.02, concurrency=3, tokens_per_chunk=2)
    large = [replace(answer, sent_bytes=1000 + i, chunk_tokens=[4] * 3) for i, answer in enumerate(answers)]
    assert shape_of(Load(concurrency=3), large) == Shape(
        0.03, 2, 0.02, concurrency=3, tokens_per_chunk=6, body_bytes=(1000, 1001, 1002)
    )
    for load in (Load(rate_per_s=99, arrival="poisson"), Load(arrival="workload")):
        assert shape_of(load, answers).rate_per_s == pytest.approx(10), "as sent: later turns are requests too"
    assert shape_of(Load(rate_per_s=2, arrival="poisson"), answers[:1]).rate_per_s == 2, "one request has no rate"
    assert shape_of(Load(concurrency=3), [warm]) == Shape(concurrency=3)
    embedded = [replace(answer, chunk_tokens=[0] * 3) for answer in answers]
    assert shape_of(Load(concurrency=3), embedded).tokens_per_chunk == 1, "an answer without tokens has chunks too"


def measured(shape: Shape, workers: int = 1, transport: str = "http") -> ClientError:
    async def scene() -> ClientError:
        async with local_fleet(workers) as fleet:
            return await calibrate(fleet, shape, transport)

    return asyncio.run(scene())


@pytest.mark.parametrize(
    ("shape", "workers", "transport", "requests"),
    [
        (Shape(gap_s=0.02, concurrency=4), 1, "http", range(4, 25)),
        (Shape(gap_s=0.02, concurrency=3), 2, "aiohttp", range(3, 25)),
        (Shape(gap_s=0.02, chunks=5, rate_per_s=20), 1, "http", range(20, 21)),
        (Shape(0.02, 5, concurrency=4, tokens_per_chunk=3, body_bytes=(900, 200_000)), 1, "http", range(4, 60)),
    ],
    ids=["closed", "two workers, aiohttp", "open", "large bodies, several tokens a chunk"],
)
def test_a_client_is_calibrated(shape: Shape, workers: int, transport: str, requests: range):
    error = measured(shape, workers, transport)
    assert error.requests in requests
    assert len(error.by_metric) == 11 * 4
    assert all(0 < error_s < 1 for error_s in error.by_metric.values())
    assert 0 <= error.send_lag_s < 1
    assert 0 < error.cpu_s < 10
    assert 0.1 * shape.fitted().chunks_per_s < error.chunks_per_s <= shape.fitted().chunks_per_s


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"streams": []}, "at least one"),
        ({"streams": [0]}, "streams must be between 1 and 4096"),
        ({"gaps_s": [0.2]}, "gaps must be between 1 and 100 ms"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"cores": [0, 0]}, "one core for each worker"),
        ({"cores": [100_000]}, "cores must be among"),
        ({"repeats": 0}, "repeats must be at least 1"),
    ],
)
def test_an_impossible_grid_is_refused_before_anything_starts(changes: dict[str, object], words: str):
    with pytest.raises(BadGrid, match=words):
        asyncio.run(calibrate_grid(**changes))  # type: ignore[arg-type]


def bakeoff(*arguments: str) -> int:
    return guarded(make_app(), ["lab", "calibrate", *arguments])


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without a calibration."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return calibration_path()


def test_the_command_measures_stores_and_shows(data: Path, capsys: pytest.CaptureFixture[str]):
    assert bakeoff("--streams", "2", "--gaps-ms", "20", "--repeats", "1", "--json") == 0
    printed: Calibration = read_calibration(data)
    assert json.loads(capsys.readouterr().out)["cells"][0]["streams"] == 2
    (cell,) = printed.cells
    assert (cell.streams, cell.gap_s, printed.repeats, printed.workers) == (2, 0.02, 1, 1)
    assert cell.asked_chunks_per_s == pytest.approx(2 * 11 / 0.25)
    assert 0 < cell.cpu_per_chunk_s < 1
    assert printed.environment["cores"] >= 1
    assert bakeoff("--show") == 0
    shown = capsys.readouterr()
    assert shown.err == f"stored: {data}\n"
    for words in ("streams", "median of 1", "transport http"):
        assert words in shown.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--show",), "has not been calibrated; run: bakeoff lab calibrate"),
        (("--streams", "0"), "streams must be between"),
        (("--gaps-ms", "soon"), "unable to convert"),
        (("--transport", "pigeon"), "pigeon"),
    ],
)
def test_mistakes_are_one_line(data: Path, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]):
    assert bakeoff(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert words in printed.err
    assert not data.exists()


def test_a_damaged_or_newer_calibration_says_what_to_do(data: Path):
    with pytest.raises(NotCalibrated):
        read_calibration(data)
    data.parent.mkdir(parents=True)
    data.write_text("{", encoding="utf-8")
    with pytest.raises(RunUnreadable, match="run bakeoff lab calibrate again"):
        read_calibration(data)
