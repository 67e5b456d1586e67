"""Sessions of several turns in virtual time: what is still planned when the load ends, and what is not."""

import asyncio
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.harness.client import Driver, Issue
from bakeoff.harness.client.wire.fake import ScriptedTransport
from bakeoff.results.records import StreamRecord
from bakeoff.workloads import PlannedSession, Replay, Seed, Tokenizer, plan_recorded
from tests.harness.driving import ANSWER, S, drive, wire
from tests.harness.samples import FINISH, TOKEN, closed, session
from tests.workloads.small_tokenizers import checkpoint


def talks(count: int, turns: int, think_s: float, gap_s: float | None = None) -> list[PlannedSession]:
    return [
        PlannedSession(session(f"s{i}", turns=turns, think_s=think_s), None if gap_s is None else i * gap_s)
        for i in range(count)
    ]


def turns_of(records: Sequence[StreamRecord]) -> list[tuple[str, int, float]]:
    return [(record.session, record.turn, record.planned_ns / S) for record in records]


def test_turns_after_the_end_of_an_open_loop_are_not_planned():
    issue, records, _, driver = drive(
        lambda: ScriptedTransport(ANSWER),
        lambda d: d.open_loop(wire(talks(2, turns=5, think_s=2.0, gap_s=1.0)), duration_s=6.0),
    )
    assert turns_of(records) == [
        ("s0", 0, 0.0), ("s1", 0, 1.0), ("s0", 1, 2.2), ("s1", 1, 3.2), ("s0", 2, 4.4), ("s1", 2, 5.4),
    ]  # fmt: skip
    assert issue == Issue(0, 6 * S)
    assert driver.planned == len(records)


def test_a_turn_that_would_come_at_the_very_end_is_too_late():
    _, records, _, _ = drive(
        lambda: ScriptedTransport(ANSWER),
        lambda d: d.open_loop(wire(talks(1, turns=9, think_s=0.8, gap_s=1.0)), duration_s=3.0),
    )
    assert [planned_s for _, _, planned_s in turns_of(records)] == [0.0, 1.0, 2.0]


def test_an_answer_that_is_under_way_at_the_end_is_waited_for_and_nothing_follows_it():
    issue, records, _, _ = drive(
        lambda: ScriptedTransport([(5.0, TOKEN + FINISH)]),
        lambda d: d.open_loop(wire(talks(1, turns=3, think_s=0.0, gap_s=1.0)), duration_s=6.0),
    )
    assert [(record.turn, record.planned_ns, record.ended_ns) for record in records] == [
        (0, 0, 5 * S),
        (1, 5 * S, 10 * S),
    ]
    assert issue.end_ns == 6 * S


def test_a_slot_whose_user_thinks_beyond_the_end_stays_idle_until_then():
    """Taking the next session instead would change the load."""

    async def load(driver: Driver) -> tuple[Issue, float]:
        sessions = wire(talks(50, turns=2, think_s=60.0))
        issue = await driver.closed_loop(sessions, 2, duration_s=10.0)
        return issue, asyncio.get_running_loop().time()

    (issue, ended_s), records, _, _ = drive(lambda: ScriptedTransport(ANSWER), load)
    assert turns_of(records) == [("s0", 0, 0.0), ("s1", 0, 0.0)]
    assert issue == Issue(0, 10 * S)
    assert ended_s == 10.0, "what watches the load must see all of it"


def test_a_slot_is_free_for_the_next_session_when_the_last_turn_has_been_answered():
    issue, records, _, _ = drive(
        lambda: ScriptedTransport(ANSWER),
        lambda d: d.closed_loop(wire(talks(50, turns=2, think_s=1.0)), 1, duration_s=3.0),
    )
    assert turns_of(records) == [("s0", 0, 0.0), ("s0", 1, 1.2), ("s1", 0, 1.4), ("s1", 1, 2.6), ("s2", 0, 2.8)]
    assert issue.end_ns == 3 * S, "s2 has been answered, and its user would think beyond the end"


def test_a_minimum_keeps_users_talking_beyond_the_end():
    """It counts requests, not sessions."""
    issue, records, _, driver = drive(
        lambda: ScriptedTransport(ANSWER),
        lambda d: d.closed_loop(wire(talks(50, turns=3, think_s=1.0)), 1, duration_s=0.5, minimum=4),
    )
    assert turns_of(records) == [("s0", 0, 0.0), ("s0", 1, 1.2), ("s0", 2, 2.4), ("s1", 0, 2.6)]
    assert driver.planned == 4
    assert issue.end_ns == round(2.8 * S)


def test_a_closed_loop_ends_when_its_first_slot_finds_nothing_more():
    issue, records, _, _ = drive(
        lambda: ScriptedTransport(ANSWER),
        lambda d: d.closed_loop(wire([*closed(3), *talks(1, turns=3, think_s=1.0)]), 2, duration_s=60.0),
    )
    assert len(records) == 6
    assert records[-1].ended_ns == round(2.8 * S)
    assert issue.end_ns == round(0.4 * S), "then one slot had no session left"


def test_users_in_a_pause_take_no_place_under_a_cap():
    """A cap holds requests, as of an account, not users; a turn that becomes due meanwhile waits like any other."""
    talk = talks(1, turns=2, think_s=0.1, gap_s=1.0)
    waiting = [PlannedSession(session("next"), 0.0), PlannedSession(session("last"), 0.0)]
    issue, records, transport, _ = drive(
        lambda: ScriptedTransport(ANSWER),
        lambda d: d.open_loop(wire([*talk, *waiting]), duration_s=5.0, max_in_flight=1),
    )
    assert transport.max_in_flight == 1
    tenth = S // 10
    assert [(r.session, r.planned_ns, r.due_ns, r.sent_ns) for r in records] == [
        ("s0", 0, None, 0),
        ("next", 0, 2 * tenth, 2 * tenth),
        ("last", 0, 4 * tenth, 4 * tenth),
        ("s0", 3 * tenth, 6 * tenth, 6 * tenth),
    ]
    assert issue.end_ns == 5 * S


@given(
    sessions=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 30), st.integers(0, 20)), min_size=1, max_size=12),
    duration_ds=st.integers(1, 60),
)
def test_no_turn_is_planned_before_its_answer_and_pause_or_after_the_end(
    sessions: list[tuple[int, int, int]], duration_ds: int
):
    """Times in tenths of a second, so that ties happen."""
    starts = sorted(start for _, _, start in sessions)
    plan = [
        PlannedSession(session(f"s{i}", turns=turns, think_s=think / 10), start / 10)
        for i, ((turns, think, _), start) in enumerate(zip(sessions, starts, strict=True))
    ]
    duration_s = max(duration_ds, starts[-1] + 1) / 10
    issue, records, _, driver = drive(
        lambda: ScriptedTransport(ANSWER), lambda d: d.open_loop(wire(plan), duration_s=duration_s)
    )
    assert driver.planned == len(records)
    assert issue.end_ns == round(duration_s * S)
    by_session = {
        planned.session.id: [record for record in records if record.session == planned.session.id] for planned in plan
    }
    for planned in plan:
        own_records = by_session[planned.session.id]
        assert [record.turn for record in own_records] == list(range(len(own_records)))
        due_ns = round((planned.offset_s or 0.0) * S)
        for turn, record in zip(planned.session.turns, own_records, strict=False):
            due_ns += round(turn.think_s * S)
            assert record.planned_ns == record.sent_ns == due_ns
            assert due_ns < issue.end_ns
            due_ns = record.ended_ns
        left = planned.session.turns[len(own_records) :]
        assert not left or due_ns + round(left[0].think_s * S) >= issue.end_ns


AGENTS = """at_s,input_tokens,output_tokens,session,think_s
100,120,20,agent-a,
103,60,10,agent-b,
110,180,20,agent-a,4.5
130,260,5,agent-a,12.25
131,140,30,agent-b,20.5
140,90,3,,
900,300,10,agent-a,700.125
901,200,10,agent-b,700.0
"""
"""A trace of two agents and a bystander: calls, with the pauses of tools and people between them."""


@pytest.mark.parametrize("time_warp", [1.0, 10.0, 100.0])
def test_a_trace_of_agents_is_replayed_in_its_order_with_its_pauses_and_its_growing_prompts(
    tmp_path: Path, time_warp: float
):
    """Bar 4, at its own pace, ten times and a hundred times faster."""
    (tmp_path / "agents.csv").write_text(AGENTS, encoding="utf-8")
    tokenizer = Tokenizer(checkpoint(tmp_path / "tokenizer"))
    replay = Replay(str(tmp_path / "agents.csv"), format="csv")
    plan = list(
        plan_recorded(replay, tokenizer, Seed.of("1"), duration_s=2000 / time_warp, count=100, time_warp=time_warp)
    )
    _, records, transport, _ = drive(
        lambda: ScriptedTransport(ANSWER), lambda d: d.open_loop(wire(plan), duration_s=2000 / time_warp)
    )
    prompts: dict[str, list[str]] = {}
    order = sorted(records, key=lambda record: record.sent_ns or 0)
    for record, sent in zip(order, transport.sent, strict=True):
        prompts.setdefault(record.session, []).append(json.loads(sent.body)["prompt"])

    starts_s = {"agent-a": 0.0, "agent-b": 3.0, "trace-2": 40.0}
    pauses_s = {"agent-a": [4.5, 12.25, 700.125], "agent-b": [20.5, 700.0], "trace-2": []}
    lengths = {"agent-a": [120, 180, 260, 300], "agent-b": [60, 140, 200], "trace-2": [90]}
    assert set(prompts) == set(starts_s)
    for name, start_s in starts_s.items():
        turns = [record for record in order if record.session == name]
        assert [record.turn for record in turns] == list(range(len(lengths[name])))
        assert [record.requested_input_tokens for record in turns] == lengths[name]
        assert turns[0].planned_ns == round(start_s / time_warp * S)
        pauses_ns = [after.planned_ns - before.ended_ns for before, after in itertools.pairwise(turns)]
        assert pauses_ns == [round(pause_s / time_warp * S) for pause_s in pauses_s[name]]
        assert all(record.sent_ns == record.planned_ns for record in turns)
        for before, after in itertools.pairwise(prompts[name]):
            assert after.startswith(before), "the context grows"
            assert len(after) > len(before)
    assert len({texts[0] for texts in prompts.values()}) == 3
