"""Graphs of calls: leaving calls out, and how far pauses alone reach."""

import pytest

from bakeoff.workloads import Turn
from bakeoff.workloads.graph import Links, kept, problem_of


def turn(parents: tuple[int, ...] | None, pause_s: float = 0.0, *lags_s: float) -> Turn:
    return Turn(1, 1, prompt="a", think_s=pause_s, parents=parents, lags_s=lags_s)


def test_a_call_waits_for_the_parents_of_one_that_is_left_out():
    turns = (turn(()), turn((0,), 1.0), turn((0,), 1.0), turn((1, 2), 1.0, 0.5, 2.0), turn((3,), 1.0))
    without_one = kept(turns, {0, 2, 3, 4})
    assert [(t.parents, t.lags_s) for t in without_one] == [((), ()), ((0,), ()), ((0, 1), (0.5, 2.0)), ((2,), ())]
    without_join = kept(turns, {0, 1, 2, 4})
    assert [(t.parents, t.lags_s) for t in without_join][3] == ((1, 2), (0.5, 2.0))


def test_a_chain_stays_a_chain():
    assert [t.parents for t in kept((turn(None), turn(None), turn(None)), {0, 2})] == [None, None]


@pytest.mark.parametrize(
    ("turns", "problem"),
    [
        ((turn(None), turn((0,))), None),
        ((turn(None), turn((1,))), "turn 1 waits for turns [1]; parents must be different earlier turns, from 0"),
        ((turn((-1,)),), "turn 0 waits for turns [-1]; parents must be different earlier turns, from 0"),
        ((turn(()), turn((0, 0))), "turn 1 waits for turns [0, 0]; parents must be different earlier turns, from 0"),
        ((turn(()), turn((0,), 0.0, 1.0, 2.0)), "turn 1 has 2 lags for 1 parents; give one for each, or none"),
    ],
)
def test_a_session_from_outside_is_checked(turns: tuple[Turn, ...], problem: str | None):
    assert problem_of(turns) == problem


def test_a_call_is_within_reach_if_those_before_it_are_due_in_time():
    links = Links.of((turn(None), turn((0,), 5.0), turn((0,), 20.0), turn((1,), 1.0), turn((2,), 1.0)))
    assert links.first_within(4.0) == 3, "calls 1 and 2 keep the session waiting until the end"
    assert links.first_within(5.0) == 4
    assert links.first_within(20.0) == 5
    assert links.first_within(4.0, ended=(0, 1), due_s={2: 3.0, 3: 0.5}) == 5
    assert links.first_within(1.0, ended=(0, 1, 3), due_s={2: 3.0}) == 4, "call 3 has ended before call 2"
