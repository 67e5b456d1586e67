"""Injected faults, as a client sees them and as the record shows them."""

import contextlib
import itertools
import socket

import pytest

from bakeoff.harness.truth import Ending, Fault, Schedule
from bakeoff.harness.truth.record import lateness_s
from bakeoff.harness.truth.timetable import Change, Disruptions
from tests.harness.truth_client import Reply, ask, connect, only, read, request, serving


def always(fault: Fault, **fields: float) -> Schedule:
    return Schedule(**{"ttft_s": 0.001, "itl_s": 0.001, **fields}, faults={fault: 1.0})


@pytest.mark.parametrize(("fault", "status"), [(Fault.HTTP_429, 429), (Fault.HTTP_500, 500), (Fault.HTTP_503, 503)])
def test_a_refusal_comes_at_once_and_the_connection_lives(fault: Fault, status: int):
    with serving(always(fault, ttft_s=30)) as server, connect(server.port) as connection:
        for _ in range(2):
            connection.sendall(request(5))
            reply = read(connection)
            assert reply.status == reply.json["error"]["code"] == status
            assert ("retry-after: 1" in reply.head) == (status == 429)
    first, second = server.answered
    assert (first.fault, first.ending, first.written_ns, first.connection) == (fault, Ending.FAULT, [], 0)
    assert first.ended_ns is not None
    assert second.start_ns > first.ended_ns
    assert server.endings[Ending.FAULT] == 2


def test_a_reset_comes_after_half_of_the_tokens_at_the_time_of_the_next():
    with serving(always(Fault.RESET, itl_s=0.01)) as server:
        reply = ask(server.port, request(8))
    answered = only(server)
    assert (reply.end, reply.status) == ("reset", 200)
    assert reply.data.count(b"token_ids") == len(answered.written_ns) == 4
    assert b"length" not in reply.data
    assert answered.ended_ns is not None
    assert answered.ended_ns - answered.start_ns >= 1_000_000 + 4 * 10_000_000
    assert answered.ending is Ending.FAULT


def test_truncation_ends_the_connection_in_the_middle_of_the_chunked_body():
    with serving(always(Fault.TRUNCATED)) as server:
        reply = ask(server.port, request(9, chat=True))
    assert (reply.end, reply.status) == ("fin", 200)
    assert reply.data.count(b"token_ids") == 4
    assert not reply.data.endswith(b"0\r\n\r\n")
    assert len(only(server).written_ns) == 4


def test_a_stall_leaves_the_connection_open_and_silent():
    with serving(always(Fault.STALL)) as server:
        with connect(server.port) as connection:
            connection.sendall(request(8))
            data = b""
            while data.count(b"token_ids") < 4:
                data += connection.recv(1 << 16)
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                connection.recv(1)
        assert ask(server.port, b"GET /health HTTP/1.1\r\n\r\n").status == 200
    answered = only(server)
    assert (answered.ending, len(answered.written_ns)) == (Ending.FAULT, 4)


def test_an_error_event_comes_inside_an_orderly_stream():
    with serving(always(Fault.ERROR_EVENT)) as server, connect(server.port) as connection:
        for _ in range(2):  # the connection lives
            connection.sendall(request(6))
            reply = read(connection)
            assert (reply.end, reply.status) == ("whole", 200)
            *chunks, error = reply.events
            assert [chunk["choices"][0]["token_ids"] for chunk in chunks] == [[0], [1], [2]]
            assert error["error"]["message"]
            assert b'finish_reason":"length' not in reply.body
            assert b"[DONE]" in reply.body
    assert [answered.ending for answered in server.answered] == [Ending.FAULT] * 2


@pytest.mark.parametrize("finish_chunk", [False, True])
def test_an_end_without_finish_has_all_tokens_and_nothing_else(finish_chunk: bool):
    schedule = Schedule(0.001, 0.001, faults={Fault.NO_FINISH: 1.0}, finish_chunk=finish_chunk)
    with serving(schedule) as server:
        reply = ask(server.port, request(4))
    assert (reply.end, reply.ids) == ("whole", [0, 1, 2, 3])
    assert len(reply.events) == 4
    assert b"length" not in reply.body
    assert b"[DONE]" not in reply.body
    assert b"usage" not in reply.body
    assert only(server).finish_ns is None


@pytest.mark.parametrize(
    ("fault", "end"),
    [(Fault.RESET, "reset"), (Fault.TRUNCATED, "fin"), (Fault.ERROR_EVENT, "whole"), (Fault.NO_FINISH, "whole")],
)
def test_faults_of_answers_that_are_no_stream(fault: Fault, end: str):
    with serving(always(fault)) as server:
        reply = ask(server.port, request(6, stream=False))
    assert reply.end == end
    if fault is Fault.ERROR_EVENT:
        assert reply.json["error"]
    if fault is Fault.NO_FINISH:
        assert reply.json["choices"][0]["finish_reason"] is None
        assert "usage" not in reply.json
    assert only(server).ending is Ending.FAULT


def test_faults_fall_on_their_share_of_the_requests_and_leave_the_others_alone():
    schedule = Schedule(0, 0, faults={Fault.HTTP_503: 0.3, Fault.NO_FINISH: 0.2}, seed=1)
    with serving(schedule) as server, connect(server.port) as connection:
        replies: list[Reply] = []
        for _ in range(60):
            connection.sendall(request(2))
            replies.append(read(connection))
    drawn = [schedule.fault(number) for number in range(60)]
    assert [answered.fault for answered in server.answered] == drawn
    assert [reply.status == 503 for reply in replies] == [fault is Fault.HTTP_503 for fault in drawn]
    assert 5 <= drawn.count(None) <= 55


def test_in_a_stall_nothing_is_written_and_all_of_it_at_its_end():
    schedule = Schedule(0.01, 0.005, stalls=((0.05, 0.1), (0.2, 0.05)))
    with serving(schedule) as server, connect(server.port) as probing, connect(server.port) as connection:
        connection.sendall(request(60))
        first = connection.recv(1 << 16)
        probing.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        assert read(connection, first).ids == list(range(60))
        assert read(probing).status == 200
    answered = only(server)
    for at_ns, length_ns in ((50_000_000, 100_000_000), (200_000_000, 50_000_000)):
        begin_ns = answered.start_ns + at_ns
        end_ns = begin_ns + length_ns
        assert [t_ns for t_ns in answered.written_ns if begin_ns <= t_ns < end_ns] == []
        due = sum(begin_ns <= schedule.due_ns(answered.start_ns, chunk) < end_ns for chunk in range(60))
        assert due >= 10
        after_ns = [t_ns for t_ns in answered.written_ns if t_ns >= end_ns]
        assert len(after_ns) >= due
    assert min(lateness_s([answered], schedule)[-10:]) < 0.1  # 0.15 s of stalls have not moved what was due after them


def test_requests_that_come_in_a_stall_wait_for_its_end():
    with serving(Schedule(0.001, 0, stalls=((0.0, 0.15),))) as server:
        early = [connect(server.port) for _ in range(3)]
        for connection in early:
            connection.sendall(request(2))
        assert [read(connection).ids for connection in early] == [[0, 1]] * 3
        for connection in early:
            connection.close()
    first_ns = server.answered[0].start_ns
    assert all(answered.start_ns < first_ns + 150_000_000 for answered in server.answered[:1])
    assert all(t_ns >= first_ns + 150_000_000 for answered in server.answered for t_ns in answered.written_ns)


def test_a_restart_resets_everything_and_comes_back_on_the_same_port():
    with serving(Schedule(0.01, 0.01, restart=(0.1, 0.2))) as server:
        idle, busy = connect(server.port), connect(server.port)
        busy.sendall(request(100_000))
        assert read(busy).end == "reset"
        with pytest.raises(ConnectionResetError):
            idle.recv(1)
        reply = None
        while reply is None:
            with contextlib.suppress(ConnectionRefusedError):
                reply = ask(server.port, request(2))
        assert reply.ids == [0, 1]
        idle.close()
        busy.close()
    cut, after = server.answered
    assert cut.ending is Ending.RESTART
    assert cut.ended_ns is not None
    assert cut.ended_ns >= cut.start_ns + 100_000_000
    assert after.start_ns >= cut.start_ns + 300_000_000
    assert after.ending is Ending.COMPLETE


def test_disruptions_count_from_the_first_request_and_are_not_moved_by_later_ones():
    happened: list[Change] = []
    disruptions = Disruptions(Schedule(stalls=((1, 2), (10, 1)), restart=(5, 2)))
    assert disruptions.hold_ns == disruptions.free_ns == disruptions.next_ns
    second_ns, start_ns = 1_000_000_000, 7
    for after_s in (0, 0.5, 2):
        disruptions.begin(start_ns + round(after_s * second_ns))
        assert (disruptions.hold_ns, disruptions.free_ns) == (start_ns + second_ns, start_ns + 3 * second_ns)
    for at_s, done, hold_s in ((3, [], 10), (5, [Change.DOWN], 10), (7, [Change.DOWN, Change.UP], 10)):
        assert disruptions.next_ns == start_ns + at_s * second_ns
        happened += disruptions.run(disruptions.next_ns)
        assert happened == done
        assert disruptions.hold_ns == start_ns + hold_s * second_ns
    disruptions.clear()
    assert disruptions.hold_ns == disruptions.next_ns


def test_stalls_and_restart_count_from_the_first_request_not_from_the_start():
    with serving(Schedule(0.001, 0.001, restart=(0.05, 0.01))) as server:
        for _ in range(3):
            assert ask(server.port, b"GET /health HTTP/1.1\r\n\r\n").status == 200
        begun = [ask(server.port, request(1)).end for _ in range(1)]
        assert begun == ["whole"]
        with socket.socket() as waiting:
            waiting.connect(("127.0.0.1", server.port))
            with pytest.raises(ConnectionResetError):
                waiting.recv(1)
    assert all(a.start_ns <= b.start_ns for a, b in itertools.pairwise(server.answered))
