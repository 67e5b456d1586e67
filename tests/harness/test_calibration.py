"""The client's own error: the arithmetic on made-up records, then small calibrations against a real truth server."""

import asyncio
import json
from pathlib import Path

import pytest

from harness.calibration import Shape, calibrate, client_error, median_of
from harness.cli import make_app
from harness.cli.guarded import guarded
from harness.client import Issue, LoadResult, local_fleet
from harness.errors import BadGrid, ClientFailed
from harness.grid import calibrate_grid, calibration_path
from harness.trial import shape_of
from harness.truth import Answered
from results.calibration import Calibration, read_calibration
from results.errors import NotCalibrated, RunUnreadable
from results.records import ClientError, ClientRecord, Load, Outcome, Phase, RequestRecord
from tests.harness.samples import request

MS = 1_000_000
PACE = Shape(gap_s=0.01, chunks=3, ttft_s=0.05, concurrency=2)


def seen(
    sent: float, chunks: list[float], *, planned: float | None = None, ended: float | None = None, words: int = 1
) -> RequestRecord:
    """What the client says, in ms."""
    return request(
        planned_ns=round((sent if planned is None else planned) * MS),
        sent_ns=round(sent * MS),
        chunk_ns=[round(t * MS) for t in chunks],
        chunk_tokens=[1] * len(chunks),
        ended_ns=round((chunks[-1] if ended is None else ended) * MS),
        wanted_input_tokens=words,
    )


def done(start: float, chunks: list[float], words: int = 1) -> Answered:
    """What the server did, in ms."""
    written_ns = [round(t * MS) for t in chunks]
    return Answered(tokens=len(chunks), prompt_tokens=words, start_ns=round(start * MS), written_ns=written_ns)


def cost(*cpu_s: float) -> LoadResult:
    return LoadResult(0, Issue(0, 1), None, [ClientRecord("h", 1, cpu, 1) for cpu in cpu_s])


def error_of(requests: list[RequestRecord], answers: list[Answered]) -> ClientError:
    return client_error(PACE, requests, answers, cost(0.25, 0.5))


def test_the_error_is_what_the_client_says_minus_what_was():
    """TTFT: 51 said, 50 true. Gaps: 10.4 and 9.7 said, 10 and 10 true; their 99 % quantile is 0.3 + 0.99 × 0.1."""
    found = error_of([seen(1, [51, 61.4, 71.1], planned=0)], [done(1.2, [51.2, 61.2, 71.2])])
    assert found.ttft_s == pytest.approx(0.001)
    assert found.itl_s == pytest.approx(0.000_399)
    assert found.send_lag_s == pytest.approx(0.001)
    assert found.cpu_s == 0.75
    assert found.requests == 1


def test_a_perfect_client_errs_by_nothing_and_reaches_what_was_asked():
    found = error_of([seen(0, [50, 60, 70])], [done(0, [50, 60, 70])])
    assert (found.ttft_s, found.itl_s, found.send_lag_s) == (0, 0, 0)
    assert found.chunks_per_s == pytest.approx(2 * 3 / 0.07)


def test_answers_that_take_twice_as_long_are_half_the_rate():
    found = error_of([seen(0, [50, 60, 70], ended=140)], [done(0, [50, 60, 70])])
    assert found.chunks_per_s == pytest.approx(3 / 0.07)


def test_requests_find_their_answers_whatever_the_order_in_which_they_ended():
    late, early = seen(100, [150, 160, 170]), seen(0, [50, 60, 70])
    found = error_of([late, early], [done(0, [50, 60, 70]), done(100, [150, 160, 170])])
    assert found.ttft_s == found.itl_s == 0


def test_a_burst_that_was_read_in_another_order_is_told_apart_by_its_prompts():
    first, second = seen(0, [50, 60, 70], words=1), seen(0.1, [53, 63, 73], words=2)
    found = error_of([first, second], [done(0.4, [50.4, 60.4, 70.4]), done(0.3, [53.2, 63.2, 73.2], words=2)])
    assert found.ttft_s == pytest.approx(0, abs=1e-9)


def test_one_chunk_has_no_gap_to_be_wrong_about():
    assert error_of([seen(0, [50])], [done(0, [50])]).itl_s is None


@pytest.mark.parametrize(
    ("requests", "answers", "words"),
    [
        ([seen(0, [50])], [], "0 answers to 1 requests"),
        ([], [], "0 answers to 0 requests"),
        ([seen(0, [50])], [done(0, [50, 60])], "2 chunks were written where 1 were read"),
        ([request(outcome=Outcome.REFUSED, error="nobody")], [done(0, [1, 2], 3)], "ended as refused: nobody"),
    ],
)
def test_what_does_not_belong_together_is_no_calibration(
    requests: list[RequestRecord], answers: list[Answered], words: str
):
    with pytest.raises(ClientFailed, match=words):
        error_of(requests, answers)


def test_the_median_of_three_leaves_a_hiccup_out():
    errors = [ClientError(4, 100, ttft, gap, 0.1, 1) for ttft, gap in ((1.0, 9.0), (2.0, 0.1), (70.0, 0.2))]
    found = median_of(errors)
    assert (found.ttft_s, found.itl_s, found.requests) == (2.0, 0.2, 12)


def test_long_answers_are_cut_and_an_open_loop_sends_as_many_more():
    fitted = Shape(gap_s=0.02, chunks=200, ttft_s=3.0, rate_per_s=5).fitted()
    assert fitted == Shape(gap_s=0.02, chunks=11, ttft_s=0.05, rate_per_s=5 * 200 / 11)
    assert fitted.chunks_per_s == pytest.approx(5 * 200)
    assert fitted.answer_s == pytest.approx(0.25)


def test_a_shape_that_cannot_be_driven_is_brought_to_one_that_can():
    assert Shape(gap_s=0.0, chunks=1, rate_per_s=0.1).fitted() == Shape(gap_s=0.001, chunks=1, rate_per_s=10)
    assert Shape(gap_s=9.0, chunks=64, concurrency=8).fitted() == Shape(gap_s=0.1, chunks=4, concurrency=8)


def test_a_trial_lends_its_pace():
    answers = [seen(i * 100, [i * 100 + t for t in (20, 20, 50)]) for i in range(3)]  # two at once, then one
    warm = request(phase=Phase.WARMUP)
    assert shape_of(Load(concurrency=3), [warm, *answers]) == Shape(0.015, 3, 0.02, concurrency=3)
    for load in (Load(rate_per_s=99, arrival="poisson"), Load(arrival="workload")):
        assert shape_of(load, answers).rate_per_s == pytest.approx(10), "as sent: later turns are requests too"
    assert shape_of(Load(rate_per_s=2, arrival="poisson"), answers[:1]).rate_per_s == 2, "one request has no rate"
    assert shape_of(Load(concurrency=3), [warm]) == Shape(concurrency=3)


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
    ],
    ids=["closed", "two workers, aiohttp", "open"],
)
def test_a_client_is_calibrated(shape: Shape, workers: int, transport: str, requests: range):
    found = measured(shape, workers, transport)
    assert found.requests in requests
    assert 0 < found.ttft_s < 1
    assert found.itl_s is not None
    assert 0 < found.itl_s < 1
    assert 0 <= found.send_lag_s <= found.ttft_s + 1
    assert 0 < found.cpu_s < 10
    assert 0.1 * shape.fitted().chunks_per_s < found.chunks_per_s <= shape.fitted().chunks_per_s


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
    return guarded(make_app(), ["calibrate", *arguments])


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
    shown = capsys.readouterr().out
    for words in ("streams gap ms TTFT ± ms ITL ± ms", "median of 1", "transport http", str(data)):
        assert words in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--show",), "has not been calibrated; run: bakeoff calibrate"),
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
    with pytest.raises(RunUnreadable, match="run bakeoff calibrate again"):
        read_calibration(data)
