"""What the truth server's record says: true latencies, true load, and the record as the streams that were sent.

Functions over what :attr:`TruthServer.answered` or :meth:`Truth.answered` give.
"""

from collections.abc import Iterator, Sequence

import httptools

from harness.truth.answered import Answered, Ending
from harness.truth.schedule import Fault, Schedule
from harness.truth.script import FINISH, ROLE, Script
from results.records import Phase, StreamEnd, StreamRecord
from results.units import NS_PER_S

_ENDS = {
    Ending.COMPLETE: (StreamEnd.COMPLETE, None),
    Ending.HANGUP: (StreamEnd.CANCELLED, "the client closed the connection"),
    Ending.RESTART: (StreamEnd.RESET, "the server went down"),
    Ending.STOPPED: (StreamEnd.RESET, "the server was stopped"),
    None: (StreamEnd.CANCELLED, "the answer was under way when the record was taken"),
}
_FAULT_ENDS = {
    Fault.RESET: (StreamEnd.RESET, "the connection was reset"),
    Fault.TRUNCATED: (StreamEnd.RESET, "the connection closed before the answer was whole"),
    Fault.STALL: (StreamEnd.TIMEOUT, "the answer stopped"),
}


def ttft_s(answers: Sequence[Answered]) -> list[float]:
    """From the request to the first tokens, of each answer that had some."""
    return [(answer.written_ns[0] - answer.start_ns) / NS_PER_S for answer in answers if answer.written_ns]


def gaps_s(answers: Sequence[Answered]) -> list[float]:
    """Every gap between two neighbouring chunks of tokens of one answer."""
    return [
        (after - before) / NS_PER_S
        for answer in answers
        for before, after in zip(answer.written_ns, answer.written_ns[1:], strict=False)
    ]


def lateness_s(answers: Sequence[Answered], schedule: Schedule) -> list[float]:
    """How long after its due time each chunk of tokens was written.

    What a stall holds back is late too; what waited for a slot is not, since its timetable begins with its turn.
    """
    return [
        (written_ns - due_ns) / NS_PER_S
        for answer in answers
        for written_ns, due_ns in zip(answer.written_ns, _dues_ns(answer, schedule), strict=True)
    ]


def in_flight(answers: Sequence[Answered], start_ns: int, end_ns: int) -> float:
    """Mean number of requests under way between two instants, weighted by time.

    Args:
        answers: the record.
        start_ns: first instant.
        end_ns: second, later one; an answer that has not ended is under way up to here.
    """
    under_way_ns = 0
    for answer in answers:
        ended_ns = end_ns if answer.ended_ns is None else answer.ended_ns
        under_way_ns += max(0, min(ended_ns, end_ns) - max(answer.start_ns, start_ns))
    return under_way_ns / (end_ns - start_ns)


def connections_used(answers: Sequence[Answered]) -> int:
    """Over how many connections the requests came."""
    return len({answer.connection for answer in answers})


def stream_records(answers: Sequence[Answered], schedule: Schedule) -> list[StreamRecord]:
    """The record as a client without any error of its own would have logged it.

    A request is planned and sent when it arrived, and each read holds the body bytes of one ``send``, HTTP framing
    removed, at the time of that ``send``. So a run of any client can be analysed with the house's own metrics.

    Args:
        answers: the record.
        schedule: by which they were given.
    """
    script = Script(schedule)
    return [_stream_record(answer, script) for answer in answers]


def _dues_ns(answer: Answered, schedule: Schedule) -> list[int]:
    """When each chunk that was written was due: when the last one of its write was."""
    per_write = schedule.events_per_write
    chunks = Script(schedule).chunks(answer) if answer.stream else -(-answer.tokens // schedule.tokens_per_chunk)
    dues_ns = schedule.dues_ns(answer.begun_ns or answer.start_ns, answer.number, chunks)
    if not answer.stream:
        return dues_ns[-1:] if answer.written_ns else []
    return [dues_ns[min(chunk - chunk % per_write + per_write, chunks) - 1] for chunk in range(len(answer.written_ns))]


def _stream_record(answer: Answered, script: Script) -> StreamRecord:
    reads = _Reads()
    for t_ns, data in _cut(answer, script) if answer.sends else _timed(answer, script):
        reads.feed(t_ns, data)
    end, detail = _end(answer)
    return StreamRecord(
        index=answer.number,
        phase=Phase.MEASURED,
        session=str(answer.number),
        turn=0,
        planned_ns=answer.start_ns,
        sent_ns=answer.start_ns,
        ended_ns=max([answer.start_ns, *reads.read_ns[-1:]]) if answer.ended_ns is None else answer.ended_ns,
        wanted_input_tokens=answer.prompt_tokens,
        wanted_output_tokens=answer.tokens,
        status=reads.status,
        end=end,
        read_ns=reads.read_ns,
        reads=reads.reads,
        detail=detail,
    )


def _end(answer: Answered) -> tuple[StreamEnd, str | None]:
    """How a client would have seen it end, and why."""
    if answer.ending is Ending.FAULT and answer.fault is not None:
        return _FAULT_ENDS.get(answer.fault, _ENDS[Ending.COMPLETE])
    return _ENDS[answer.ending]


def _timed(answer: Answered, script: Script) -> Iterator[tuple[int, bytes]]:
    """Each write that went out, with its time: one ``send`` each."""
    written = iter(answer.written_ns)
    closing_ns = answer.finish_ns or (answer.ended_ns if answer.ending is Ending.COMPLETE else None)
    for write in script.writes(answer):
        kinds = [kind for _, kind in write.marks if kind != FINISH]
        times_ns = [answer.role_ns if kind == ROLE else next(written, None) for kind in kinds]
        t_ns = times_ns[0] if times_ns else closing_ns
        if t_ns is None:
            return
        yield t_ns, write.data


def _cut(answer: Answered, script: Script) -> Iterator[tuple[int, bytes]]:
    """The bytes of all writes, cut as they were sent."""
    writes = script.writes(answer)
    pending = bytearray()
    for t_ns, count in answer.sends:
        while len(pending) < count:
            pending += next(writes).data
        yield t_ns, bytes(pending[:count])
        del pending[:count]


class _Reads:
    """Takes HTTP's framing off, as a client does."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.read_ns: list[int] = []
        self.reads: list[bytes] = []
        self._t_ns = 0
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, t_ns: int, data: bytes) -> None:
        self._t_ns = t_ns
        self._parser.feed_data(data)

    # httptools callbacks

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.read_ns.append(self._t_ns)
        self.reads.append(body)
