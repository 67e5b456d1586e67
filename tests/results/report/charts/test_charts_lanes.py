"""Lanes of sessions: rows, bars, failures and names, and which sessions are chosen."""

import re

import msgspec

from bakeoff.results.records import Outcome, RequestRecord
from bakeoff.results.report.charts.lanes import lanes
from tests.results.handmade import MS, request

S = 1000
PART = (10 * S * MS, 20 * S * MS)
"""From 118 to 990 pixels: 87.2 a second."""


def call(
    turn: int, planned_s: float, first_s: float, ended_s: float, agent: str = "", **changes: object
) -> RequestRecord:
    made = request(planned_s * S, [first_s * S, ended_s * S], prompt_tokens=1200, cached_tokens=900)
    return msgspec.structs.replace(made, turn=turn, agent=agent, **changes)  # type: ignore[arg-type]


def drawn(*sessions: list[RequestRecord]) -> str:
    return str(lanes("Sessions of e", sessions, PART, "e0"))


def path(svg: str, kind: str) -> list[str]:
    return re.findall(rf'<path d="([^"]*)" class="{kind}" stroke-width="([^"]*)">', svg)


def test_a_call_waits_then_decodes_and_its_session_goes_on_between_calls() -> None:
    svg = drawn([call(4, 5, 6, 8), call(5, 11, 12, 15), call(6, 19, 21, 30)])
    assert path(svg, "pause") == [("M118 19.5H990", "1")], "from before the part until after it"
    assert path(svg, "wait") == [("M205.2 19.5H292.4M902.8 19.5H990", "9")]
    assert path(svg, "decode") == [("M292.4 19.5H554", "9")]
    assert "turn 6: ok, prompt of 1,200 tokens, 900 from the cache, TTFT 1.00 s, 2 tokens, in all 4.00 s" in svg
    assert "turns 6–7</text>" in svg
    assert "1 session in 10.0 s: 2 calls, 0 of them by sub-agents; 0 failed." in svg


def test_sub_agents_that_work_at_once_have_thinner_rows_of_their_own() -> None:
    """A third one begins after the first has ended, and shares its row."""
    session = [
        call(0, 10, 11, 12),
        call(1, 13, 14, 15, "a"),
        call(2, 13, 14, 16, "b"),
        call(3, 15.5, 16, 17, "c"),
        call(4, 18, 19, 19.5),
    ]
    svg = drawn(session)
    (main, _), (subs, width) = path(svg, "decode")
    assert (main.count("M"), subs.count("M"), width) == (2, 3, "4")
    assert re.findall(r"M[\d.]+ ([\d.]+)H", subs) == ["29", "29", "36"]
    assert "5 calls, 3 of them by sub-agents" in svg
    assert "b, turn 3: ok" in svg


def test_a_lane_without_calls_of_the_main_agent_keeps_room_for_its_name() -> None:
    svg = drawn([call(0, 2, 3, 4), call(1, 13, 14, 15, "a")], [call(0, 10, 11, 12)])
    assert path(svg, "pause")[0][0].startswith("M118 19.5H554M379.6 29H554M118 44.5"), "the main agent waits"


def test_sub_agents_outside_the_part_take_no_room() -> None:
    first = [call(0, 0, 1, 2), call(1, 2, 3, 4, "a"), call(2, 12, 13, 14)]
    svg = drawn(first, [call(0, 10, 11, 12)])
    assert path(svg, "wait")[0][0].endswith("M118 37.5H205.2")


def test_failures_are_crossed() -> None:
    failed = call(0, 12, 13, 14, outcome=Outcome.HTTP_ERROR, chunk_ns=[], chunk_tokens=[])
    svg = drawn([failed, call(1, 15, 16, 17)])
    assert path(svg, "failed") == [("M292.4 19.5H466.8", "4.5")]
    assert len(path(svg, "cross")) == 1
    assert path(svg, "decode")[0][0].count("M") == 1
    assert "turn 1: http error, prompt of 1,200 tokens, 900 from the cache, in all 2.00 s" in svg
    assert "; 1 failed." in svg


def test_names_are_short_and_harmless() -> None:
    svg = drawn([call(0, 12, 13, 14, session="<b>0123456789abcdefghij")])
    assert "&lt;b&gt;0123…defghij</text>" in svg
    assert "<b>" not in svg
    assert lanes("t", [], PART, "e0") == ""
