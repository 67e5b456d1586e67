"""The record in numbers, and as the streams that a client without error would have logged."""

from typing import Any

import pytest

from bakeoff.engines.dialects import Finish, ReferenceDialect, SseParser, TokenDelta, Usage
from bakeoff.harness.truth import Answered, Ending, Fault, Schedule
from bakeoff.harness.truth.record import gaps_s, in_flight, lateness_s, stream_records, ttft_s
from bakeoff.results.records import StreamEnd, StreamRecord
from tests.harness.truth_client import Reply, ask, connect, connect_narrow, only, read, request, serving

MS = 1_000_000


def answered(start_ms: int, written_ms: list[int], ended_ms: int | None, connection: int = 0) -> Answered:
    ended_ns = None if ended_ms is None else ended_ms * MS
    return Answered(
        tokens=3,
        start_ns=start_ms * MS,
        written_ns=[t * MS for t in written_ms],
        ended_ns=ended_ns,
        connection=connection,
    )


RECORD = [answered(0, [10, 30, 35], 40), answered(20, [60], 60, 1), answered(50, [], None, 1)]


def test_times_are_those_of_the_record():
    assert ttft_s(RECORD) == [0.010, 0.040]
    assert gaps_s(RECORD) == [0.020, 0.005]


def test_requests_in_flight_are_weighted_by_time():
    # One from 0 to 20, two to 40, one to 50, two to 60, one until the end.
    assert in_flight(RECORD, 0, 100 * MS) == pytest.approx((20 + 2 * 20 + 10 + 2 * 10 + 40) / 100)
    assert in_flight(RECORD, 20 * MS, 40 * MS) == pytest.approx(2)
    assert in_flight(RECORD, 200 * MS, 300 * MS) == pytest.approx(1)


def test_lateness_is_against_the_write_in_which_a_chunk_goes():
    schedule = Schedule(0.010, 0.010, events_per_write=2)
    late = Answered(tokens=3, start_ns=0, written_ns=[21 * MS, 21 * MS, 30 * MS])
    assert lateness_s([late], schedule) == pytest.approx([0.001, 0.001, 0])
    whole = Answered(tokens=3, start_ns=0, written_ns=[32 * MS], stream=False)
    assert lateness_s([whole], schedule) == pytest.approx([0.002])


def decoded(record: StreamRecord) -> dict[str, Any]:
    """Decode a record with the harness's own parsers."""
    parser, dialect = SseParser(), ReferenceDialect()
    parts: dict[str, Any] = {"tokens_ns": [], "tokens": [], "finish": None, "usage": None}
    for t_ns, data in zip(record.read_ns, record.reads, strict=True):
        for event in [event for payload in parser.feed(data) for event in dialect.events(payload)]:
            match event:
                case TokenDelta():
                    parts["tokens_ns"].append(t_ns)
                    parts["tokens"].append(len(event.token_ids or ()))
                case Finish():
                    parts["finish"] = event.reason
                case Usage():
                    parts["usage"] = event.output_tokens
                case _:
                    pass
    return parts


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(0.001, 0.001, tokens_per_chunk=2),
        Schedule(0.001, 0.001, role_chunk="early", events_per_write=3, jitter="exponential"),
        Schedule(0.001, 0.001, comments=True, crlf=True, finish_chunk=False),
        Schedule(0.001, 0, write_bytes=3, multibyte=True, role_chunk="with_first", events_per_write=2),
    ],
    ids=["plain", "grouped", "comments", "pieces"],
)
def test_the_streams_are_the_bytes_that_were_sent_at_the_times_at_which_they_were(schedule: Schedule, chat: bool):
    with serving(schedule) as server:
        reply = ask(server.port, request(7, chat=chat))
    truth = only(server)
    (record,) = stream_records(server.answered, schedule)
    assert b"".join(record.reads) == reply.body
    assert (record.status, record.end, record.sent_ns, record.planned_ns) == (
        200,
        StreamEnd.COMPLETE,
        truth.start_ns,
        truth.start_ns,
    )
    assert (record.ended_ns, record.requested_output_tokens) == (truth.ended_ns, 7)
    assert record.read_ns == sorted(record.read_ns)
    parts = decoded(record)
    assert sum(parts["tokens"]) == 7
    assert (parts["finish"], parts["usage"]) == ("length", 7)
    if schedule.write_bytes is None:
        assert parts["tokens_ns"] == truth.written_ns
    else:  # an event is complete with its last byte, which is a send of its own
        assert [a <= b for a, b in zip(truth.written_ns, parts["tokens_ns"], strict=True)] == [True] * 7


@pytest.mark.parametrize(
    ("fault", "status", "end", "tokens"),
    [
        (Fault.HTTP_429, 429, StreamEnd.COMPLETE, 0),
        (Fault.RESET, 200, StreamEnd.RESET, 4),
        (Fault.TRUNCATED, 200, StreamEnd.RESET, 4),
        (Fault.ERROR_EVENT, 200, StreamEnd.COMPLETE, 4),
        (Fault.NO_FINISH, 200, StreamEnd.COMPLETE, 8),
    ],
)
def test_faults_are_in_the_streams(fault: Fault, status: int, end: str, tokens: int):
    schedule = Schedule(0.001, 0.001, faults={fault: 1.0})
    with serving(schedule) as server:
        reply = ask(server.port, request(8))
    (record,) = stream_records(server.answered, schedule)
    assert (record.status, record.end) == (status, end)
    assert (record.detail is None) == (end == StreamEnd.COMPLETE)
    if end == StreamEnd.COMPLETE:
        assert b"".join(record.reads) == reply.body
    assert sum(decoded(record)["tokens"]) == tokens if status == 200 else reply.status == 429


def test_a_stalled_and_an_abandoned_answer_hold_what_was_sent():
    schedules = (Schedule(0.001, 0.002, faults={Fault.STALL: 0.5}, seed=seed) for seed in range(100))
    schedule = next(schedule for schedule in schedules if [schedule.fault(0), schedule.fault(1)] == [None, Fault.STALL])
    with serving(schedule) as server:
        received = []
        for _ in range(2):
            with connect(server.port) as connection:
                connection.sendall(request(6))
                data = b""
                while data.count(b"token_ids") < 3:
                    data += connection.recv(1 << 16)
                received.append(data)
                while len(received) == 2 and not server.endings[Ending.FAULT]:
                    pass  # the moment of the fault comes after its last token
    records = stream_records(server.answered, schedule)
    assert [record.end for record in records] == [StreamEnd.CANCELLED, StreamEnd.TIMEOUT]
    for record, answer, data in zip(records, server.answered, received, strict=True):
        assert len(decoded(record)["tokens"]) == len(answer.written_ns) >= 3
        assert b"".join(record.reads).startswith(Reply(data, "").body[:300])
        assert record.ended_ns == answer.ended_ns
    assert server.answered[0].ending is Ending.HANGUP


def test_an_answer_that_was_sent_in_parts_keeps_their_times():
    schedule = Schedule(0, 0, events_per_write=4_000)
    with serving(schedule) as server, connect_narrow(server) as connection:
        connection.sendall(request(4_000))
        while not (server.answered and only(server).sends):
            pass  # until the kernel has taken a part of a write that is larger than its buffers
        body = read(connection).body
    truth = only(server)
    (record,) = stream_records([truth], schedule)
    assert truth.sends
    assert b"".join(record.reads) == body
    assert sum(decoded(record)["tokens"]) == 4_000


def test_an_unfinished_answer_is_recorded_as_far_as_it_went():
    schedule = Schedule(0.001, 0.001)
    with serving(schedule) as server, connect(server.port) as connection:
        connection.sendall(request(1_000_000))
        assert connection.recv(10)
        under_way = only(server)
    assert under_way.ending is None
    (record,) = stream_records([under_way], schedule)
    assert record.end is StreamEnd.CANCELLED
    assert len(decoded(record)["tokens"]) == len(under_way.written_ns)
