"""Single requests chunk by chunk: the script gets the log, within a stated budget."""

import base64
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff import results
from bakeoff.results.records import Outcome, Phase
from bakeoff.results.report import render_html
from bakeoff.results.report.charts.waterfall import longest_gap_s, waterfall
from bakeoff.results.report.sections import waterfalls
from bakeoff.results.report.sections.waterfalls import packed, slowest_of
from tests.results.builders import FAST, LOADS, SLOW, Sheet, Texts, build_run
from tests.results.handmade import request

SHEET = Sheet(engines={"only": FAST}, loads=LOADS[:1], repeats=1, requests=30, invalid=())


def unpacked(text: str) -> list[int]:
    """As the script decodes: LEB128, summed up."""
    times, at, number, shift = list[int](), 0, 0, 0
    for byte in base64.b64decode(text):
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            at += number
            times.append(at)
            number = shift = 0
    return times


@given(st.lists(st.integers(0, 10**13), max_size=40))
def test_what_is_packed_is_read_back_within_five_microseconds(times: list[int]) -> None:
    ordered = sorted(times)
    assert [10_000 * unit for unit in unpacked(packed(ordered, 0))] == pytest.approx(ordered, abs=5_000)


def test_worked_by_hand() -> None:
    """1 ms is 100 units, one byte; 2 ms more is 200, two bytes."""
    assert packed([1_000_000, 3_000_000], 0) == base64.b64encode(bytes([100, 200 & 127 | 128, 1])).decode()
    assert packed([], 0) == ""


def falls(run: results.Run) -> list[waterfalls.Waterfalls]:
    return waterfalls.waterfalls(run, ["e0"] * len(run.finished))


def test_every_request_of_a_small_run_is_there(demo: results.Run) -> None:
    for trial, fall in zip(demo.finished, falls(demo), strict=True):
        assert fall.trial == trial.record.id
        assert [drawn.index for drawn in fall.requests] == [
            r.index for r in sorted(trial.requests, key=lambda r: r.planned_ns)
        ]
        assert fall.note == ""
        by_index = {r.index: r for r in trial.requests}
        for drawn in fall.requests:
            record = by_index[drawn.index]
            times = [(t - record.planned_ns) / 10_000 for t in record.chunk_ns]
            assert unpacked(drawn.chunks) == pytest.approx(times, abs=0.5)
            assert drawn.tokens is None
            assert (drawn.state == "ok") == (record.outcome is Outcome.OK and record.phase is Phase.MEASURED)


def test_tokens_are_told_where_chunks_carry_several(tmp_path: Path) -> None:
    run = results.load(build_run(tmp_path, replace(SHEET, engines={"only": replace(FAST, tokens_per_chunk=3)})))
    assert falls(run)[0].requests[5].tokens == [3] * 8


def test_a_budget_leaves_requests_out_evenly_but_never_the_slowest_or_the_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waterfalls, "CHUNK_BUDGET", 240)  # ten of the 32 requests
    run = results.load(build_run(tmp_path, replace(SHEET, engines={"only": SLOW})))
    (fall,) = falls(run)
    trial = run.finished[0]
    kept = {drawn.index for drawn in fall.requests}
    failed = {r.index for r in trial.requests if r.outcome is not Outcome.OK}
    assert failed
    assert failed | {r.index for r in slowest_of(trial)} <= kept
    assert 10 <= len(kept) <= 10 + len(failed) + waterfalls.SLOWEST
    assert fall.note == f"{len(kept)} of 32 requests are on the page, the slowest among them."
    assert fall.note in render_html(run)


def test_answers_and_errors_are_cut_and_their_length_is_told(tmp_path: Path) -> None:
    texts = Texts(answer="a" * 5_000, error="e" * 5_000)
    run = results.load(build_run(tmp_path, replace(SHEET, engines={"only": SLOW}, texts=texts)))
    (fall,) = falls(run)
    assert {len(drawn.text) for drawn in fall.requests if drawn.characters} == {waterfalls.MAX_TEXT}
    assert {drawn.characters for drawn in fall.requests} == {0, 5_000}
    assert {len(drawn.error) for drawn in fall.requests if drawn.error} == {waterfalls.MAX_ERROR}


def test_the_slowest_are_measured_and_ended_ok(demo: results.Run) -> None:
    for trial in demo.finished:
        slowest = slowest_of(trial)
        done = [r for r in trial.requests if r.phase is Phase.MEASURED and r.outcome is Outcome.OK]
        assert len(slowest) == waterfalls.SLOWEST
        assert slowest[0].chunk_ns[-1] - slowest[0].planned_ns == max(r.chunk_ns[-1] - r.planned_ns for r in done)


def test_a_stroke_for_each_chunk_and_the_longest_gap_by_name() -> None:
    svg = waterfall("t", [request(0, [10, 50, 60], [1, 4, 2], sent=3, index=5)], "e2", 100)
    (strokes,) = re.findall(r'<path d="([^"]+)" class="chunks"', svg)
    assert strokes.count("h1") == 3
    assert ">longest gap 40.0 ms</text>" in svg
    assert "Request 5: first token 10.0 ms, last 60.0 ms, 3 chunks, longest gap 40.0 ms before chunk 2." in svg


def test_too_many_strokes_are_thinned_and_said() -> None:
    svg = waterfall("t", [request(0, [float(i) for i in range(1, 101)])], "e0", 30)
    (strokes,) = re.findall(r'<path d="([^"]+)" class="chunks"', svg)
    assert strokes.count("h1") == 25
    assert "100 chunks, one in 4 drawn" in svg


def test_nothing_is_no_drawing() -> None:
    assert waterfall("t", [], "e0", 30) == ""
    assert longest_gap_s(request(0, [10])) is None
    assert ">longest gap" not in waterfall("t", [request(0, [10])], "e0", 30)
