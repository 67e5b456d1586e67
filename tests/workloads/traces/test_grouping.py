"""Rows become sessions, in the order of their first row, however they are interleaved."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.workloads.errors import BadTrace
from bakeoff.workloads.traces.grouping import IDLE_S, sessions_of
from bakeoff.workloads.traces.row import TraceRow

NAMES = st.sampled_from([None, "a", "b", "c", "d"])
GAPS = st.sampled_from([0.0, 1.0, 600.0, IDLE_S, IDLE_S + 1])


def row(at_s: float | None, session: str | None, number: int = 1) -> TraceRow:
    return TraceRow(at_s, number, 1, session)


@given(steps=st.lists(st.tuples(GAPS, NAMES), max_size=40))
def test_any_interleaving_with_a_clock_is_sorted_out(steps: list[tuple[float, str | None]]) -> None:
    """A row belongs to the last session of its name unless that one has been idle for too long."""
    now_s, rows = 0.0, list[TraceRow]()
    expected: list[list[TraceRow]] = []
    last: dict[str, list[TraceRow]] = {}
    for number, (gap_s, name) in enumerate(steps, start=1):
        now_s += gap_s
        rows.append(row(now_s, name, number))
        open_rows = last.get(name) if name is not None else None
        if open_rows is not None and now_s - (open_rows[-1].at_s or 0.0) <= IDLE_S:
            open_rows.append(rows[-1])
            continue
        expected.append([rows[-1]])
        if name is not None:
            last[name] = expected[-1]
    assert list(sessions_of(rows)) == expected


@given(names=st.lists(NAMES, max_size=30))
def test_without_a_clock_rows_that_stand_together_are_a_session(names: list[str | None]) -> None:
    rows = [row(None, name, number) for number, name in enumerate(names, start=1)]
    expected: list[list[TraceRow]] = []
    for trace_row in rows:
        if expected and trace_row.session is not None and expected[-1][-1].session == trace_row.session:
            expected[-1].append(trace_row)
        else:
            expected.append([trace_row])
    named = [session[0].session for session in expected if session[0].session is not None]
    if len(set(named)) == len(named):
        assert list(sessions_of(rows)) == expected
    else:
        with pytest.raises(BadTrace, match="continues behind rows of others, and its rows have no times"):
            list(sessions_of(rows))


@pytest.mark.parametrize("clock", [True, False])
def test_only_open_sessions_and_those_behind_them_are_held(clock: bool) -> None:
    """A hundred thousand rows of sessions of two, a minute apart: memory does not grow with the trace."""
    taken = given_out = most_held = 0

    def rows() -> Iterator[TraceRow]:
        nonlocal taken
        for number in range(50_000):
            for k in range(2):
                taken += 1
                yield row(60.0 * number + k if clock else None, f"s{number}")

    for session in sessions_of(rows()):
        assert len(session) == 2
        given_out += 2
        most_held = max(most_held, taken - given_out)
    assert given_out == 100_000
    assert most_held <= (2 * (IDLE_S / 60 + 2) if clock else 3)


def test_a_session_that_goes_on_for_hours_does_not_hold_up_others_for_longer_than_that() -> None:
    rows = [row(600.0 * k, "long" if k % 2 == 0 else f"s{k}") for k in range(40)]
    grouped = list(sessions_of(rows))
    assert [session[0].session for session in grouped] == ["long", *[f"s{k}" for k in range(1, 40, 2)]]
    assert len(grouped[0]) == 20


def test_no_rows_are_no_sessions() -> None:
    assert list(sessions_of([])) == []
