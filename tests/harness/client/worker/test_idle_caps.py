"""Caps on idle time shorten pauses in which nothing is in flight, and keep order and distances of the rest."""

from bakeoff.harness.client.worker.idle_caps import IdleCaps, excess_ns
from bakeoff.results.records import StreamRecord
from bakeoff.workloads import PlannedSession, Session, Turn
from tests.harness.client.test_graphs import TimedTransport, call
from tests.harness.driving import S, drive, wire


def run(
    sessions: dict[str, tuple[Turn, ...]],
    caps: IdleCaps | None,
    *,
    duration_s: float = 1000.0,
    grace_s: float | None = None,
    offsets_s: dict[str, float] | None = None,
) -> list[StreamRecord]:
    planned = [PlannedSession(Session(name, turns), (offsets_s or {}).get(name)) for name, turns in sessions.items()]
    _, records, _, _ = drive(
        TimedTransport,
        lambda driver: driver.closed_loop(
            wire(planned), len(planned), duration_s=duration_s, grace_s=grace_s, caps=caps
        ),
        timeout_s=2000.0,
    )
    return records


def sent_s(records: list[StreamRecord]) -> dict[str, list[float]]:
    sent: dict[str, list[float]] = {}
    for record in sorted(records, key=lambda record: record.sent_ns or 0):
        sent.setdefault(record.session, []).append(round((record.sent_ns or 0) / S, 6))
    return sent


def chain(*pauses_s: float) -> tuple[Turn, ...]:
    return tuple(call(1.0, None, pause_s) for pause_s in pauses_s)


def test_the_excess_is_what_exceeds_the_cap():
    assert excess_ns(10, 100, 150) == 40
    assert excess_ns(10, 100, 110) == excess_ns(None, 100, 999) == excess_ns(10, 100, None) == 0


def test_while_nothing_is_in_flight_all_pauses_shrink_alike():
    """The first calls end at 1 s; their successors are due at 51 and 81 s, and so at 11 and 41 s."""
    sessions = {"a": chain(0, 50), "b": chain(0, 80)}
    assert sent_s(run(sessions, IdleCaps(load_ns=10 * S))) == {"a": [0.0, 11.0], "b": [0.0, 22.0]}
    assert sent_s(run(sessions, None)) == {"a": [0.0, 51.0], "b": [0.0, 81.0]}


def test_a_pause_beside_a_request_in_flight_is_not_shortened():
    sessions = {"a": (call(40.0, None), call(1.0, None, 5.0)), "b": chain(0, 50)}
    assert sent_s(run(sessions, IdleCaps(load_ns=10 * S))) == {"a": [0.0, 45.0], "b": [0.0, 51.0]}


def test_each_session_has_a_cap_of_its_own():
    busy = tuple(call(30.0, None) for _ in range(4))
    sessions = {"a": chain(0, 100, 5), "b": busy}
    assert sent_s(run(sessions, IdleCaps(session_ns=20 * S)))["a"] == [0.0, 21.0, 27.0]


def test_a_sub_agent_in_flight_keeps_its_session_busy():
    turns = (call(1.0, ()), call(1.0, (0,), 60.0), call(50.0, (0,), 1.0, agent="a"))
    assert sent_s(run({"a": turns}, IdleCaps(session_ns=5 * S)))["a"] == [0.0, 2.0, 57.0]


def test_sessions_in_progress_wait_for_their_rests_and_caps_count_these():
    sessions = {"a": chain(0, 1), "b": chain(0, 1)}
    begun = run(sessions, IdleCaps(load_ns=10 * S), offsets_s={"a": 4.0, "b": 40.0})
    assert sent_s(begun) == {"a": [4.0, 6.0], "b": [17.0, 19.0]}


def test_calls_due_after_the_load_are_not_sent_though_a_cap_may_bring_others_forward():
    sessions = {"a": chain(0, 90, 90)}
    assert sent_s(run(sessions, IdleCaps(load_ns=30 * S), duration_s=50.0)) == {"a": [0.0, 31.0]}


def test_after_the_grace_requests_in_flight_are_cancelled():
    sessions = {"a": (call(1.0, None), call(100.0, None)), "b": (call(12.0, None),)}
    records = {(record.session, record.turn): record for record in run(sessions, None, duration_s=10.0, grace_s=5.0)}
    assert records["b", 0].ended_ns == 12 * S
    assert records["a", 1].ended_ns == 15 * S
