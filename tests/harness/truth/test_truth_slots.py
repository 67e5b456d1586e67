"""A truth server of known capacity: so many answers at a time, the rest in order."""

import math
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bakeoff.harness.errors import BadSchedule
from bakeoff.harness.truth import Ending, Schedule
from bakeoff.harness.truth.record import in_flight, lateness_s, ttft_s
from tests.harness.queueing import simulated_ttfts_s
from tests.harness.truth_client import ask, connect, request, serving

SCHEDULE = Schedule(0.02, 0.005, slots=2)
TOTAL_S = 0.02 + 3 * 0.005


def test_a_crowd_is_answered_two_by_two_as_a_queue_would():
    with serving(SCHEDULE) as server:
        with ThreadPoolExecutor(7) as crowd:
            list(crowd.map(lambda _: ask(server.port, request(4)), range(7)))
        answers = server.answered
    first_ns = answers[0].start_ns
    arrivals_s = [(answer.start_ns - first_ns) / 1e9 for answer in answers]
    true_s = simulated_ttfts_s(arrivals_s, cap=2, ttft_s=0.02, total_s=TOTAL_S, stall=(math.inf, math.inf))
    late = max(lateness_s(answers, SCHEDULE))
    assert min(lateness_s(answers, SCHEDULE)) >= 0
    assert [answer.begun_ns is None for answer in answers] == [True, True, *[False] * 5]
    for measured, simulated in zip(ttft_s(answers), true_s, strict=True):
        assert simulated - 1e-6 <= measured <= simulated + 8 * late + 0.05, "later by what the machine was late"
    end_ns = max(answer.ended_ns or 0 for answer in answers)
    begun = [answer for answer in answers if answer.begun_ns]
    for answer in begun:
        answer.start_ns = answer.begun_ns or 0
    assert in_flight(answers, first_ns, end_ns) <= 2


def test_who_hangs_up_while_waiting_takes_no_turn_and_who_hangs_up_in_service_gives_it_on():
    with serving(Schedule(5.0, 0.0, slots=1)) as server:
        held, waits, last = (connect(server.port) for _ in range(3))
        for number, line in enumerate((held, waits, last), start=1):
            line.sendall(request(1))
            until(lambda number=number: len(server.answered) == number)
        hang_up(waits)
        until(lambda: server.answered[1].ending is Ending.HANGUP)
        hang_up(held)
        until(lambda: server.answered[2].begun_ns is not None)
        hang_up(last)
        until(lambda: server.answered[2].ending is Ending.HANGUP)
        assert server.answered[1].begun_ns is None
        again = connect(server.port)
        again.sendall(request(1))
        until(lambda: len(server.answered) == 4)
        assert server.answered[3].begun_ns is None, "the slot is free again"
        hang_up(again)


def test_slots_are_at_least_one():
    with pytest.raises(BadSchedule, match="slots must be at least 1"):
        Schedule(slots=0)


def hang_up(line: socket.socket) -> None:
    line.close()


def until(happened) -> None:
    deadline_s = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
