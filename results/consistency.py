"""What no trial can have recorded: the reason to refuse files of damaged or foreign runs, in one line.

Readers need not be prepared for it: chunks out of order, counts of tokens for other chunks, times before the request or
outside the range of a clock, numbers that are not finite.
"""

from collections.abc import Sequence

from results.records import RequestRecord, TelemetryRecord

_MAX_NS = 1 << 62
"""146 years."""
_MAX_SPAN_NS = 30 * 24 * 3600 * 1_000_000_000
"""Longest trial: 30 days."""
_MAX_NUMBER = float(1 << 63)


def requests_problem(requests: Sequence[RequestRecord]) -> str | None:
    """Why these cannot be the requests of one trial; None if they can."""
    for request in requests:
        if problem := _request_problem(request):
            return f"request {request.index} has {problem}"
    if requests and max(r.ended_ns for r in requests) - min(r.planned_ns for r in requests) > _MAX_SPAN_NS:
        return "its requests span more than 30 days"
    return None


def telemetry_problem(records: Sequence[TelemetryRecord]) -> str | None:
    """Why these cannot be the samples of one trial; None if they can."""
    for record in records:
        if not 0 <= record.t_ns < _MAX_NS:
            return f"a sample of {record.source} has an impossible time"
        for name, value in record.values.items():
            if isinstance(value, float | int) and not abs(value) <= _MAX_NUMBER:
                return f"a sample of {record.source} has {name} out of range"
    return None


def _request_problem(request: RequestRecord) -> str | None:
    chunks, tokens, textless = request.chunk_ns, request.chunk_tokens, request.textless_chunks
    if not 0 <= request.planned_ns <= request.ended_ns < _MAX_NS:
        return "impossible times"
    if len(chunks) != len(tokens):
        return f"{len(chunks)} chunks and {len(tokens)} counts of tokens"
    if textless and not 0 <= min(textless) <= max(textless) < len(chunks):
        return "a chunk without text that it does not have"
    if chunks and (chunks[0] < request.planned_ns or chunks[-1] > request.ended_ns or chunks != sorted(chunks)):
        return "chunks out of order"
    if tokens and (min(tokens) < 0 or max(tokens) > _MAX_NUMBER):
        return "an impossible number of tokens"
    return None
