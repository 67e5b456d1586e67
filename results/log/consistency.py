"""What no trial can have recorded: the reason to refuse files of damaged or foreign runs, in one line.

Readers need not be prepared for it: chunks out of order, counts of tokens for other chunks, times before the request or
outside the range of a clock.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from bakeoff.results.records import RequestRecord, TelemetryRecord
from bakeoff.results.requests import Requests
from bakeoff.results.units import NS_PER_S

_MAX_NS = 1 << 62
"""146 years."""
_KINDS = "trc"


MAX_SPAN_S = 30 * 24 * 3600
"""Longest trial: 30 days."""
MAX_TOKENS = 10_000_000
"""Most tokens of an answer: ITL has a value for each."""


class ImpossibleError(ValueError):
    """No trial can have recorded this."""


def possible(requests: Iterable[RequestRecord], *, are_judged: bool = False) -> Iterator[RequestRecord]:
    """The same requests, as long as they can be those of a trial.

    Args:
        requests: decoded.
        are_judged: whether they are known to be as the trial's verdict found them. Then impossible times made the trial
            INVALID, and the run remains readable.

    Raises:
        ImpossibleError: one cannot.
    """
    for request in requests:
        if problem := _request_problem(request) or (None if are_judged else _order_problem(request)):
            raise ImpossibleError(f"request {request.index} has {problem}")
        yield request


def span_problem(requests: Requests) -> str | None:
    """Why these cannot be the requests of one trial together; None if they can."""
    if not len(requests):
        return None
    planned_ns = requests.ints("planned_ns")
    last_ns = max(int(requests.ints("ended_ns").max()), int(requests.chunks.ns.max(initial=planned_ns[0])))
    if last_ns - int(planned_ns.min()) > MAX_SPAN_S * NS_PER_S:
        return "its requests span more than 30 days"
    return None


def telemetry_problem(records: Sequence[TelemetryRecord]) -> str | None:
    """Why these cannot be the samples of one trial; None if they can."""
    for record in records:
        if not 0 <= record.t_ns < _MAX_NS:
            return f"a sample of {record.source} has an impossible time"
    return None


def impossible_times(request: RequestRecord) -> bool:
    """Whether something happened before its cause: a token before the plan, the send or an earlier token."""
    arrivals = request.chunk_ns if request.first_byte_ns is None else [request.first_byte_ns, *request.chunk_ns]
    if not arrivals:
        return False
    cause_ns = request.planned_ns if request.sent_ns is None else max(request.planned_ns, request.sent_ns)
    is_sorted = all(before <= after for before, after in pairwise(arrivals))
    return not is_sorted or arrivals[0] < cause_ns or request.ended_ns < arrivals[-1]


def _order_problem(request: RequestRecord) -> str | None:
    return "chunks out of order" if impossible_times(request) else None


def _request_problem(request: RequestRecord) -> str | None:
    chunks, tokens, textless = request.chunk_ns, request.chunk_tokens, request.textless_chunks
    is_stamped = all(abs(t_ns) < _MAX_NS for t_ns in chunks)
    if not (is_stamped and 0 <= request.planned_ns <= request.ended_ns < _MAX_NS):
        return "impossible times"
    if len(chunks) != len(tokens):
        return f"{len(chunks)} chunks and {len(tokens)} counts of tokens"
    if request.chunk_kinds and (len(request.chunk_kinds) != len(chunks) or request.chunk_kinds.strip(_KINDS)):
        return "kinds of chunks that it does not have"
    if textless and not 0 <= min(textless) <= max(textless) < len(chunks):
        return "a chunk without text that it does not have"
    if tokens and (min(tokens) < 0 or sum(tokens) > MAX_TOKENS):
        return "an impossible number of tokens"
    return None
