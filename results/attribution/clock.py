"""How well the clocks of client and server agree, by stamps whose order is certain.

A request is sent before the server receives it, and a token is written before the client reads it. Each exchange bounds
the offset of the server's clock from above and below (Cristian, 1989); on one host it is 0 by design.
"""

from collections.abc import Iterator, Sequence

import msgspec

from results.attribution.parts import ServerTrace
from results.records import RequestRecord


class ClockCheck(msgspec.Struct, frozen=True):
    """The result.

    Attributes:
        residual_ns: largest amount by which two stamps contradict their order; 0 if none does.
        least_ns: the server's clock is ahead of the client's by at least this, where no stamp contradicts another.
        most_ns: and by at most this.
        pairs: number of ordered pairs that were checked.
    """

    residual_ns: int
    least_ns: int
    most_ns: int
    pairs: int


def clock_check(pairs: Sequence[tuple[RequestRecord, ServerTrace]]) -> ClockCheck | None:
    """Check the order of stamps; None without requests.

    Args:
        pairs: requests with the server's record of them.
    """
    there = [trace.http.received_ns - request.sent_ns for request, trace in pairs if request.sent_ns is not None]
    back = [
        read_ns - write.written_ns
        for request, trace in pairs
        if trace.http.writes
        for read_ns, write in (
            (request.chunk_ns[0], trace.http.writes[0]), (request.chunk_ns[-1], trace.http.writes[-1])
        )
    ]  # fmt: skip
    inside = [delay for _, trace in pairs for delay in _inside(trace)]
    delays = [*there, *back, *inside]
    if not there or not back:
        return None
    return ClockCheck(max(0, -min(delays)), -min(back), min(there), len(delays))


def _inside(trace: ServerTrace) -> Iterator[int]:
    """Delays between the two processes of the server."""
    added_ns = trace.own.queued.added_ns
    if added_ns is not None:
        yield added_ns - trace.http.parsed_ns
    if trace.http.writes and trace.own.output_steps:
        for end in (0, -1):
            yield trace.http.writes[end].reported_ns - int(trace.steps.end_ns[trace.own.output_steps[end]])
