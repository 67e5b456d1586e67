"""The driver carries out sessions whose calls form graphs; an independent simulation says when each call is due."""

import asyncio
import json
import random
from functools import lru_cache

import pytest

from bakeoff.engines.dialects import HttpRequest
from bakeoff.harness.client.wire.fake import ScriptedTransport
from bakeoff.harness.client.wire.transport import Ended, StreamLog
from bakeoff.harness.host.clock import LoopClock
from bakeoff.results.records import StreamEnd, StreamRecord
from bakeoff.workloads import PlannedSession, Session, Turn
from tests.harness.driving import S, drive, wire
from tests.harness.samples import DONE, FINISH, TOKEN

FAILURE_PAUSE_S = 0.1


class TimedTransport(ScriptedTransport):
    """Answers each request after the seconds that its prompt states, with an error where the prompt says so."""

    def __init__(self) -> None:
        super().__init__([])

    def start(self, prepared: HttpRequest, log: StreamLog, ended: Ended) -> None:
        self.sent.append(prepared)
        log.sent_ns = LoopClock().now_ns()
        text = prepared.body.decode().split('"')
        answer_s, fails = next(part for part in text if part.endswith(("ok", "fail"))).split()
        log.status = 200 if fails == "ok" else 500
        log.ended_ns = log.sent_ns + round(float(answer_s) * S)
        log.reads, log.read_ns, log.end = [TOKEN + FINISH + DONE], [log.ended_ns], StreamEnd.COMPLETE
        asyncio.get_running_loop().call_at(log.ended_ns / S, ended, log)


def call(
    answer_s: float,
    parents: tuple[int, ...] | None,
    pause_s: float = 0.0,
    lags_s: tuple[float, ...] = (),
    *,
    fails: bool = False,
    agent: str = "",
) -> Turn:
    text = f"{answer_s:.9f} {'fail' if fails else 'ok'}"
    return Turn(3, 2, prompt=text, think_s=pause_s, parents=parents, lags_s=lags_s, agent=agent)


def random_session(name: str, rng: random.Random) -> Session:
    turns: list[Turn] = []
    for number in range(rng.randint(1, 12)):
        parents = tuple(sorted(rng.sample(range(number), min(number, rng.randint(0, 3)))))
        lags_s = tuple(rng.choice([0.0, rng.uniform(0, 2)]) for _ in parents)
        pause_s = rng.uniform(0.001, 3) if number else 0.0
        turns.append(call(rng.uniform(0.01, 5), parents, pause_s, lags_s, fails=rng.random() < 0.1))
    return Session(name, tuple(turns))


def simulated(session: Session, start_s: float) -> dict[int, float]:
    """Start of each call in seconds, by recursion from the definition."""

    def answer(number: int) -> tuple[float, bool]:
        seconds, outcome = (session.turns[number].prompt or "").split()
        return float(seconds), outcome == "fail"

    @lru_cache
    def start(number: int) -> float:
        turn = session.turns[number]
        if not turn.parents:
            return start_s + turn.think_s
        lags_s = turn.lags_s or (0.0,) * len(turn.parents)
        ends_s = {parent: start(parent) + answer(parent)[0] for parent in turn.parents}
        ready_s = max(ends_s[parent] + lag_s for parent, lag_s in zip(turn.parents, lags_s, strict=True))
        last = max(ends_s, key=lambda parent: ends_s[parent])
        return max(ready_s + turn.think_s, ends_s[last] + FAILURE_PAUSE_S * answer(last)[1])

    return {number: start(number) for number in range(len(session.turns))}


def run(planned: list[PlannedSession], duration_s: float = 10_000.0) -> list[StreamRecord]:
    _, records, _, _ = drive(
        TimedTransport, lambda driver: driver.open_loop(wire(planned), duration_s=duration_s), timeout_s=60.0
    )
    return records


def test_order_joins_gaps_and_failures_of_random_graphs_are_those_of_a_simulation():
    rng = random.Random(1)
    planned = [PlannedSession(random_session(f"s{i}", rng), i * 0.5) for i in range(200)]
    sent_s = {(record.session, record.turn): (record.sent_ns or 0) / S for record in run(planned)}
    due_s = {
        (entry.session.id, number): start_s
        for entry in planned
        for number, start_s in simulated(entry.session, entry.offset_s or 0.0).items()
    }
    assert sent_s.keys() == due_s.keys()
    assert all(sent_s[key] == pytest.approx(due_s[key], abs=1e-6) for key in due_s)


def test_a_join_waits_for_the_last_of_its_calls_and_a_background_call_for_nobody():
    turns = (
        call(1.0, None),
        call(2.0, (0,), 0.5, agent="a"),
        call(4.0, (0,), 0.5, agent="b"),
        call(9.0, (0,), agent="background"),
        call(1.0, (0, 1, 2), 0.25, (0.0, 0.0, 1.0)),
    )
    records = {record.turn: record for record in run([PlannedSession(Session("s", turns), 0.0)])}
    assert [(records[k].sent_ns or 0) / S for k in range(5)] == [0.0, 1.5, 1.5, 1.0, 6.75]
    assert [records[k].agent for k in range(5)] == ["", "a", "b", "background", ""]
    assert [records[k].parents for k in range(5)] == [(), (0,), (0,), (0,), (0, 1, 2)]


def test_a_session_may_begin_with_a_pause():
    turns = (call(1.0, (), 2.0), call(1.0, (), 5.0), call(1.0, (0,)))
    records = {record.turn: record for record in run([PlannedSession(Session("s", turns), 1.0)])}
    assert [(records[k].sent_ns or 0) / S for k in range(3)] == [3.0, 6.0, 4.0]


def test_calls_due_after_the_load_are_not_sent_and_what_waits_for_them_neither():
    turns = (call(1.0, None), call(1.0, (0,), 1.0), call(1.0, (0,), 5.0), call(1.0, (1, 2)))
    records = run([PlannedSession(Session("s", turns), 0.0)], duration_s=5.0)
    assert sorted(record.turn for record in records) == [0, 1]


def test_a_cap_holds_requests_in_the_order_in_which_they_were_due():
    """Each waits for the one before; latencies count from the plan."""
    alone, two = (call(3.0, None),), (call(1.0, ()), call(1.0, (), 2.0))
    planned = [PlannedSession(Session(name, turns), 0.5) for name, turns in (("s", alone), ("t", two))]
    _, records, _, _ = drive(
        TimedTransport, lambda driver: driver.open_loop(wire(planned), duration_s=20.0, max_in_flight=1)
    )
    late = {record.turn: record for record in records if record.session == "t"}
    assert [(late[k].planned_ns / S, (late[k].sent_ns or 0) / S) for k in (0, 1)] == [(0.5, 3.5), (2.5, 4.5)]


def test_long_prompts_of_a_conversation_arrive_whole():
    """Their bodies are built while the request before them is answered."""
    prompts = ["x" * 5000 * number for number in (1, 2, 3)]
    turns = tuple(Turn(3, 2, prompt=f'{prompt}"0.5 ok') for prompt in prompts)
    _, records, transport, _ = drive(
        TimedTransport,
        lambda driver: driver.closed_loop(wire([PlannedSession(Session("s", turns), None)]), 1, duration_s=9.0),
    )
    assert [json.loads(request.body)["prompt"] for request in transport.sent] == [turn.prompt for turn in turns]
    assert [record.sent_bytes for record in records] == [len(request.body) for request in transport.sent]


def test_a_slot_is_free_when_the_last_call_of_its_session_has_ended():
    turns = (call(1.0, None), call(5.0, (0,), agent="background"), call(1.0, (0,)))
    planned = [PlannedSession(Session(name, turns), None) for name in ("s", "t")]
    _, records, _, _ = drive(TimedTransport, lambda driver: driver.closed_loop(wire(planned), 1, duration_s=60.0))
    assert [record.planned_ns / S for record in records if record.turn == 0] == [0.0, 6.0]
