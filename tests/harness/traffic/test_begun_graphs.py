"""Sessions in progress whose calls form graphs, against a timeline that is written out by hand."""

import random
from collections import Counter

import pytest

from bakeoff.harness.traffic.beginning import answered, cached, rest_of
from bakeoff.harness.traffic.session_law import Begun, BegunCall, SessionLaw
from bakeoff.results.records import Pace
from bakeoff.workloads import Message, Session, SessionShape, Turn

PACE = Pace(ttft_s=1.0, token_s=1.0)
"""An answer takes as many seconds as it has tokens."""


def turn(tokens: int, parents: tuple[int, ...] | None, pause_s: float = 0.0, *lags_s: float, agent: str = "") -> Turn:
    return Turn(3, tokens, prompt="a", think_s=pause_s, parents=parents, lags_s=lags_s, agent=agent)


FANNED = (
    turn(2, ()),
    turn(3, (0,), 1.0, agent="a"),
    turn(6, (0,), 1.0, agent="b"),
    turn(1, (1, 2), 2.0, 0.0, 1.0),
)
"""From 0 to 2 s; 3 to 6; 3 to 9; then 12 to 13, a second and a pause of two after the longer one."""


def test_a_graph_lasts_as_long_as_its_longest_path():
    law = SessionLaw([SessionShape.of(FANNED), SessionShape.of((turn(7, None),))])
    assert law.session_s(PACE) == pytest.approx((13 + 7) / 2)
    assert law.turnover_s(2.0) == pytest.approx((2 + 1 + 2 + 1 + 2 + 2 + 2) / 2 / 2.5)
    assert law.turns == 2.5


def test_each_moment_of_a_graph_is_met_in_proportion_to_its_length():
    begun = SessionLaw([SessionShape.of(FANNED)]).in_progress(13_000, PACE, random.Random(1).random)
    met = Counter((entry.ended, tuple((call.turn, call.delay_s > 0) for call in entry.calls)) for entry in begun)
    expected = {
        ((), ((0, False),)): 2,
        ((0,), ((1, True), (2, True))): 1,
        ((0,), ((1, False), (2, False))): 3,
        ((0, 1), ((2, False),)): 3,
        ((0, 1, 2), ((3, True),)): 3,
        ((0, 1, 2), ((3, False),)): 1,
    }
    assert met.keys() == expected.keys()
    assert all(met[state] == pytest.approx(1000 * seconds, abs=5) for state, seconds in expected.items())


def test_what_is_left_of_a_graph_goes_on_where_it_was():
    begun = Begun(0, (BegunCall(1, 0.5), BegunCall(2, 0.0, 0.5)), ended=(0,))
    planned = rest_of(Session("s", FANNED), begun, 10.0)
    assert (planned.offset_s, planned.numbers, planned.parts) == (10.0, (1, 2, 3), (1.0, 0.5, 1.0))
    assert [(t.parents, t.think_s, t.output_tokens) for t in planned.session.turns] == [
        ((), 0.5, 3), ((), 0.0, 3), ((0, 1), 2.0, 1)
    ]  # fmt: skip
    assert planned.session.turns[2].lags_s == (0.0, 1.0)


def test_a_join_keeps_only_the_calls_that_have_not_ended():
    begun = Begun(0, (BegunCall(2, 0.0, 0.5),), ended=(0, 1))
    planned = rest_of(Session("s", FANNED), begun, 0.0)
    assert [(t.parents, t.lags_s) for t in planned.session.turns] == [((), ()), ((0,), (1.0,))]


def test_the_cache_holds_the_latest_prompts_of_agents_that_go_on_and_one_opening_of_every_kind():
    """Main agent and tester go on; both seekers have ended since the main agent's last answer, the helper before it."""

    def call(agent: str, opening: str, text: str) -> Turn:
        return Turn(3, 1, messages=(Message("system", opening), Message("user", text)), parents=(), agent=agent)

    session = Session("s", (
        call("", "main", "m0"), call("a", "help", "a0"), call("a", "help", "a1"), call("", "main", "m1"),
        call("b", "seek", "b0"), call("c", "test", "c0"), call("d", "seek", "d0"), call("c", "test", "c1"),
        call("", "main", "m2"),
    ))  # fmt: skip
    ages_s = (19.0, 18.0, 17.0, 14.0, 12.5, 8.0, 10.0)
    found = cached(answered(session, Begun(0, (), tuple(range(7)), ages_s)))
    assert [planned.session.turns[0].messages[1].content for planned in found if planned.session.turns[0].messages] == [
        "a0", "m1", "b0", "d0", "c0",
    ]  # fmt: skip
    assert {planned.session.turns[0].output_tokens for planned in found} == {1}


def test_ended_agents_that_nothing_has_outlived_leave_their_openings_alone():
    last = Begun(0, (BegunCall(1, 5.0),), (0,), (1.0,))
    assert [planned.session.turns[0].prompt for planned in cached(answered(Session("s", FANNED), last))] == ["a"]
    assert cached([]) == ()


def test_the_age_of_an_answer_is_the_time_since_its_end():
    for entry in SessionLaw([SessionShape.of(FANNED)]).in_progress(200, PACE, random.Random(2).random):
        ends_s = {0: 2.0, 1: 6.0, 2: 9.0}
        instants = {round(ends_s[number] + age_s, 6) for number, age_s in zip(entry.ended, entry.ages_s, strict=True)}
        assert len(instants) <= 1
        assert all(age_s >= 0 for age_s in entry.ages_s)
