"""The driver in virtual time, against a scripted transport."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from bakeoff.harness.client import Driver, Issue
from bakeoff.harness.client.wire.fake import ScriptedTransport
from bakeoff.harness.client.wire.orders import Silence
from bakeoff.harness.host.clock import LoopClock, run_virtual
from bakeoff.results.errors import NotWritable
from bakeoff.results.records import Phase, StreamEnd
from bakeoff.workloads import PlannedSession
from tests.harness.driving import ANSWER, S, drive, wire
from tests.harness.samples import FINISH, TOKEN, MemoryRecorder, closed, opened, session


def test_closed_loop_keeps_exactly_the_wanted_number_in_flight():
    issue, records, transport, _ = drive(
        lambda: ScriptedTransport(ANSWER),
        lambda d: d.closed_loop(wire(closed(100)), 4, duration_s=2.0, minimum=0),
    )
    assert transport.max_in_flight == 4
    assert len(records) == 40  # 4 slots, 0.2 s each, 2 s
    assert issue == Issue(0, 2 * S)


def test_closed_loop_plans_the_next_request_at_the_end_of_the_last():
    _, records, _, _ = drive(
        lambda: ScriptedTransport(ANSWER),
        lambda d: d.closed_loop(wire(closed(3)), 1, duration_s=60, minimum=0),
    )
    assert [record.planned_ns for record in records] == [0, round(0.2 * S), round(0.4 * S)]
    assert all(record.sent_ns == record.planned_ns for record in records)


def test_closed_loop_goes_on_until_the_minimum_was_started():
    _, records, _, _ = drive(
        lambda: ScriptedTransport(ANSWER),
        lambda d: d.closed_loop(wire(closed(100)), 2, duration_s=0.1, minimum=7),
    )
    assert len(records) == 7


def test_closed_loop_stops_when_the_sessions_run_out():
    issue, records, _, _ = drive(
        lambda: ScriptedTransport(ANSWER),
        lambda d: d.closed_loop(wire(closed(5)), 2, duration_s=60, minimum=50),
    )
    assert len(records) == 5
    assert issue.end_ns == round(0.4 * S)  # the other slot still had the fifth


def test_open_loop_fires_at_absolute_deadlines_however_slow_the_engine():
    slow = [(10.0, TOKEN), (0.0, FINISH)]
    _, records, transport, _ = drive(
        lambda: ScriptedTransport(slow),
        lambda d: d.open_loop(wire(opened([0.5, 0.5, 1.25])), duration_s=2.0),
    )
    assert sorted(record.planned_ns for record in records) == [S // 2, S // 2, 5 * S // 4]
    assert all(record.sent_ns == record.planned_ns for record in records)
    assert transport.max_in_flight == 3


def test_open_loop_latency_counts_the_queue_of_a_serial_engine():
    """Three arrivals at 0 and 1 s of service each: the last one ends 3 s after its plan, not 1 s."""
    serial = [(1.0, TOKEN), (0.0, FINISH)]
    _, records, _, _ = drive(
        lambda: ScriptedTransport(serial, servers=1),
        lambda d: d.open_loop(wire(opened([0, 0, 0])), duration_s=1.0),
    )
    assert sorted(record.ended_ns - record.planned_ns for record in records) == [S, 2 * S, 3 * S]


def test_a_stall_is_seen_by_every_request_planned_in_it():
    """Coordinated omission: 50 requests a second, one 5 s stall in 60 s; true p99 is above 4.4 s."""
    offsets = [i / 50 for i in range(3000)]
    _, records, _, _ = drive(
        lambda: ScriptedTransport([(0.01, TOKEN + FINISH)], pauses=[(20.0, 25.0)]),
        lambda d: d.open_loop(wire(opened(offsets)), duration_s=60.0),
    )
    latencies = sorted((record.ended_ns - record.planned_ns) / S for record in records)
    assert latencies[int(0.99 * len(latencies))] == pytest.approx(4.4, abs=0.1)
    assert latencies[-1] == pytest.approx(5.0, abs=0.011)


def test_a_later_turn_waits_for_the_answer_and_the_think_time():
    _, records, _, _ = drive(
        lambda: ScriptedTransport(ANSWER),
        lambda d: d.open_loop(wire([PlannedSession(session("talk", turns=2, think_s=5.0), 1.0)]), duration_s=7.0),
    )
    assert [record.planned_ns for record in records] == [S, round(6.2 * S)]
    assert [record.turn for record in records] == [0, 1]


def test_the_phase_is_recorded():
    recorder = MemoryRecorder()

    async def warm_up() -> None:
        transport = ScriptedTransport(ANSWER)
        driver = Driver(transport, clock=LoopClock(), recorder=recorder, timeout_s=9, phase=Phase.WARMUP)
        await driver.closed_loop(wire(closed(2), first_index=5), 2, duration_s=60)

    run_virtual(warm_up())
    assert [(record.phase, record.index) for record in recorder.records] == [(Phase.WARMUP, 5), (Phase.WARMUP, 6)]


def test_slots_start_a_few_at_a_time():
    _, records, _, _ = drive(
        lambda: ScriptedTransport([(9.0, TOKEN)]), lambda d: d.closed_loop(wire(closed(9)), 9, duration_s=9)
    )
    assert [record.planned_ns for record in records] == [0] * 4 + [S // 1000] * 4 + [S // 500]


def test_a_cap_on_what_is_in_flight_does_not_hide_the_wait():
    """Three at once, one place: the last is sent after 2 s and timed from 0."""
    _, records, transport, _ = drive(
        lambda: ScriptedTransport([(1.0, TOKEN + FINISH)]),
        lambda d: d.open_loop(wire(opened([0, 0, 0])), duration_s=1.0, max_in_flight=1),
    )
    assert transport.max_in_flight == 1
    assert [(record.planned_ns, record.sent_ns) for record in records] == [(0, 0), (0, S), (0, 2 * S)]


def test_a_request_that_never_ends_is_recorded_as_a_timeout():
    _, records, _, _ = drive(
        lambda: ScriptedTransport([(99.0, TOKEN)]),
        lambda d: d.closed_loop(wire(closed(1)), 1, duration_s=1, minimum=0),
        timeout_s=2.0,
    )
    assert [(record.end, record.ended_ns) for record in records] == [(StreamEnd.TIMEOUT, 2 * S)]


def test_a_silence_lasts_from_the_last_byte_of_any_answer_and_is_none_before_it_is_long():
    async def asked(driver: Driver) -> list[Silence | None]:
        load = asyncio.create_task(driver.closed_loop(wire(closed(2)), 2, duration_s=1, minimum=0))
        found = [driver.silence(2.0)]
        for _ in range(3):
            await asyncio.sleep(3.0)
            found.append(driver.silence(2.0))
        await load
        return [*found, driver.silence(2.0)]

    found, *_ = drive(lambda: ScriptedTransport([(5.0, TOKEN), (6.0, FINISH)]), asked)
    assert found == [None, Silence(2, 3.0, 30.0), None, Silence(2, 4.0, 30.0), None]


def test_requests_cut_off_by_an_interrupt_are_recorded_as_cancelled():
    async def interrupted(driver: Driver) -> None:
        work = asyncio.create_task(driver.closed_loop(wire(closed(9)), 3, duration_s=60))
        await asyncio.sleep(0.15)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    _, records, _, driver = drive(lambda: ScriptedTransport(ANSWER), interrupted)
    assert [record.end for record in records] == [StreamEnd.CANCELLED] * 3
    assert all(len(record.reads) == 1 for record in records)
    assert driver.planned == len(records)


def test_hours_of_traffic_take_seconds_and_lose_nothing():
    offsets = [i * 0.06 for i in range(20_000)]
    issue, records, _, driver = drive(
        lambda: ScriptedTransport([(0.2, TOKEN + FINISH)]),
        lambda d: d.open_loop(wire(opened(offsets)), duration_s=1200.0),
    )
    assert len(records) == driver.planned == 20_000
    assert issue.end_ns == 1200 * S


class FullRecorder(MemoryRecorder):
    """A disk with room for three records."""

    def flush(self) -> None:
        super().flush()
        if len(self.records) > 3:
            raise NotWritable("cannot write log: No space left on device")


@pytest.mark.parametrize(
    "work",
    [
        lambda d: d.closed_loop(wire(closed(10_000)), 2, duration_s=600),
        lambda d: d.open_loop(wire(opened([0.1 * i for i in range(10_000)])), duration_s=1000, max_in_flight=2),
    ],
    ids=["closed", "open"],
)
def test_a_load_that_leaves_no_record_is_not_kept_on(work: Callable[[Driver], Coroutine[Any, Any, Issue]]):
    async def scene() -> int:
        transport = ScriptedTransport(ANSWER)
        clock = LoopClock()
        driver = Driver(transport, clock=clock, recorder=FullRecorder(), timeout_s=9)
        with pytest.raises(NotWritable, match="No space left"):
            await work(driver)
        return clock.now_ns()

    assert run_virtual(scene()) < 2 * S
