"""How well the clocks of client and server agree, by stamps whose order is certain.

A request is sent before the server receives it, and a token is written before the client reads it. Each exchange bounds
the offset of the server's clock from above and below (Cristian, 1989); on one host it is 0 by design.
"""

from collections.abc import Sequence

import msgspec

from bakeoff.results.attribution.parts import ServerTrace
from bakeoff.results.log.spans import RequestSpan
from bakeoff.results.records import RequestRecord


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


class _Stamps(msgspec.Struct, frozen=True):
    """What the server stamped of a request.

    Attributes:
        received_ns: when it arrived.
        written_ns: when the first and the last token left; None if they are not known.
        inside_ns: delays within the server that cannot be below 0.
    """

    received_ns: int
    written_ns: tuple[int, int] | None
    inside_ns: list[int]


def clock_check(pairs: Sequence[tuple[RequestRecord, ServerTrace | RequestSpan]]) -> ClockCheck | None:
    """Check the order of stamps; None without requests.

    Args:
        pairs: requests with the server's record of them.
    """
    stamped = [(request, _of_span(t) if isinstance(t, RequestSpan) else _of_trace(t)) for request, t in pairs]
    there = [stamps.received_ns - request.sent_ns for request, stamps in stamped if request.sent_ns is not None]
    back = [
        request.chunk_ns[end] - stamps.written_ns[end]
        for request, stamps in stamped
        if stamps.written_ns
        for end in (0, -1)
    ]
    delays = [*there, *back, *(delay for _, stamps in stamped for delay in stamps.inside_ns)]
    if not there or not back:
        return None
    return ClockCheck(max(0, -min(delays)), -min(back), min(there), len(delays))


def _of_span(span: RequestSpan) -> _Stamps:
    to_first_ns = span.arrival_ns + span.queue_ns + span.prefill_ns
    inside_ns = [span.first_ns - to_first_ns, span.last_ns - to_first_ns - span.decode_ns]
    return _Stamps(span.arrival_ns, (span.first_ns, span.last_ns), inside_ns)


def _of_trace(trace: ServerTrace) -> _Stamps:
    writes, added_ns = trace.http.writes, trace.own.queued.added_ns
    inside_ns = [] if added_ns is None else [added_ns - trace.http.parsed_ns]  # from one process to the other
    if writes and trace.own.output_steps:
        ends_ns = trace.steps.end_ns
        inside_ns += [writes[end].reported_ns - int(ends_ns[trace.own.output_steps[end]]) for end in (0, -1)]
    written_ns = (writes[0].written_ns, writes[-1].written_ns) if writes else None
    return _Stamps(trace.http.received_ns, written_ns, inside_ns)
