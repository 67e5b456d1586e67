"""The truth server's record as true latencies, true load, and the stream records of a client without error.

The functions take what :attr:`TruthServer.answered` or :meth:`Truth.answered` return.
"""

from collections.abc import Iterator, Sequence

import httptools

from bakeoff.harness.truth.answered import Answered, Ending
from bakeoff.harness.truth.schedule import Fault, Schedule
from bakeoff.harness.truth.script import FINISH, ROLE, Script
from bakeoff.results.records import Phase, StreamEnd, StreamRecord
from bakeoff.results.units import NS_PER_S

_ENDS = {
    Ending.COMPLETE: (StreamEnd.COMPLETE, None),
    Ending.HANGUP: (StreamEnd.CANCELLED, "the client closed the connection"),
    Ending.RESTART: (StreamEnd.RESET, "the server went down"),
    Ending.STOPPED: (StreamEnd.RESET, "the server was stopped"),
    None: (StreamEnd.CANCELLED, "the answer was in progress when the record was taken"),
}
_FAULT_ENDS = {
    Fault.RESET: (StreamEnd.RESET, "the connection was reset"),
    Fault.TRUNCATED: (StreamEnd.RESET, "the connection closed before the answer was whole"),
    Fault.STALL: (StreamEnd.TIMEOUT, "the answer stopped"),
}


def ttft_s(answers: Sequence[Answered]) -> list[float]:
    """Seconds from the request to the first tokens, for each answer that has some."""
    return [(answer.written_ns[0] - answer.start_ns) / NS_PER_S for answer in answers if answer.written_ns]


def gaps_s(answers: Sequence[Answered]) -> list[float]:
    """Seconds between each two consecutive chunks of tokens of an answer."""
    return [
        (after - before) / NS_PER_S
        for answer in answers
        for before, after in zip(answer.written_ns, answer.written_ns[1:], strict=False)
    ]


def lateness_s(answers: Sequence[Answered], schedule: Schedule) -> list[float]:
    """Seconds from the due time of each chunk of tokens to its write.

    Chunks that a stall holds back count as late. Waiting for a slot does not: the timetable begins after it.
    """
    return [
        (written_ns - due_ns) / NS_PER_S
        for answer in answers
        for written_ns, due_ns in zip(answer.written_ns, _dues_ns(answer, schedule), strict=True)
    ]


def in_flight(answers: Sequence[Answered], start_ns: int, end_ns: int) -> float:
    """Time-weighted mean number of requests in flight between two instants.

    Args:
        answers: the record.
        start_ns: first instant.
        end_ns: second instant; an answer that has not ended is in flight until here.
    """
    in_flight_ns = 0
    for answer in answers:
        ended_ns = end_ns if answer.ended_ns is None else answer.ended_ns
        in_flight_ns += max(0, min(ended_ns, end_ns) - max(answer.start_ns, start_ns))
    return in_flight_ns / (end_ns - start_ns)


def stream_records(answers: Sequence[Answered], schedule: Schedule) -> list[StreamRecord]:
    """The record as a client without any error of its own would have logged it.

    Each request is planned and sent when it arrived, and each read holds the body bytes of one ``send``, HTTP framing
    removed, at the time of that ``send``. This gives any client's run to the metrics of ``results``.

    Args:
        answers: the record.
        schedule: of the server.
    """
    script = Script(schedule)
    return [_stream_record(answer, script) for answer in answers]


def _dues_ns(answer: Answered, schedule: Schedule) -> list[int]:
    """When each chunk that was written was due: with the last chunk of its write."""
    per_write = schedule.events_per_write
    chunks = Script(schedule).chunks(answer) if answer.stream else -(-answer.tokens // schedule.tokens_per_chunk)
    dues_ns = schedule.dues_ns(answer.begun_ns or answer.start_ns, answer.number, chunks, answer.uncached_tokens)
    if not answer.stream:
        return dues_ns[-1:] if answer.written_ns else []
    return [dues_ns[min(chunk - chunk % per_write + per_write, chunks) - 1] for chunk in range(len(answer.written_ns))]


def _stream_record(answer: Answered, script: Script) -> StreamRecord:
    reads = _Reads()
    for t_ns, data in _sends(answer, script) if answer.sends else _whole_writes(answer, script):
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
        requested_input_tokens=answer.prompt_tokens,
        requested_output_tokens=answer.tokens,
        status=reads.status,
        end=end,
        read_ns=reads.read_ns,
        reads=reads.reads,
        detail=detail,
    )


def _end(answer: Answered) -> tuple[StreamEnd, str | None]:
    """How a client sees the answer end, and why."""
    if answer.ending is Ending.FAULT and answer.fault is not None:
        return _FAULT_ENDS.get(answer.fault, _ENDS[Ending.COMPLETE])
    return _ENDS[answer.ending]


def _whole_writes(answer: Answered, script: Script) -> Iterator[tuple[int, bytes]]:
    """Time and bytes of each write; each went out in one ``send``."""
    written = iter(answer.written_ns)
    closing_ns = answer.finish_ns or (answer.ended_ns if answer.ending is Ending.COMPLETE else None)
    for write in script.writes(answer):
        kinds = [kind for _, kind in write.marks if kind != FINISH]
        times_ns = [answer.role_ns if kind == ROLE else next(written, None) for kind in kinds]
        t_ns = times_ns[0] if times_ns else closing_ns
        if t_ns is None:
            return
        yield t_ns, write.data


def _sends(answer: Answered, script: Script) -> Iterator[tuple[int, bytes]]:
    """Time and bytes of each ``send``."""
    writes = script.writes(answer)
    pending = bytearray()
    for t_ns, count in answer.sends:
        while len(pending) < count:
            pending += next(writes).data
        yield t_ns, bytes(pending[:count])
        del pending[:count]


class _Reads:
    """Removes HTTP's framing, as a client does."""

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
