"""Rates over the steady window, and goodput against an SLO."""

from collections.abc import Sequence

from results.metrics import latency
from results.metrics.values import Value, absent
from results.metrics.window import Window
from results.records import Outcome, RequestRecord, Slo

_EMPTY = "the steady window is empty"


def output_tokens_per_s(requests: Sequence[RequestRecord], window: Window) -> Value:
    """Tokens whose chunk arrived inside the window, over its length; failed requests' tokens count, they were felt."""
    return _per_second(tokens_inside(requests, window), window)


def prompt_tokens_per_s(requests: Sequence[RequestRecord], window: Window) -> Value:
    """Prompt tokens of the requests whose first token arrived inside the window, over its length."""
    inside = begun_inside(requests, window)
    if any(request.prompt_tokens is None for request in inside):
        return absent("the engine did not report its prompt tokens")
    return _per_second(sum(request.prompt_tokens or 0 for request in inside), window)


def requests_per_s(requests: Sequence[RequestRecord], window: Window) -> Value:
    """Successful requests whose last token arrived inside the window, over its length."""
    return _per_second(len(done_inside(requests, window)), window)


def meets(request: RequestRecord, slo: Slo) -> bool:
    """Whether a request ended well and kept every bound that is set. A TPOT that is undefined keeps its bound."""
    if request.outcome is not Outcome.OK:
        return False
    pairs = (
        (latency.ttft_s(request), slo.ttft_s),
        (latency.tpot_s(request), slo.tpot_s),
        (latency.e2e_s(request), slo.e2e_s),
    )
    return all(bound is None or value is None or value <= bound for value, bound in pairs)


def goodput_per_s(requests: Sequence[RequestRecord], window: Window, slo: Slo) -> Value:
    """Requests planned inside the window that met the SLO, per second of it."""
    if slo == Slo():
        return absent("the experiment sets no SLO")
    return _per_second(sum(meets(request, slo) for request in planned_inside(requests, window)), window)


def attainment(requests: Sequence[RequestRecord], slo: Slo) -> Value:
    """Share of the requests planned that met the SLO; failures are misses."""
    if slo == Slo():
        return absent("the experiment sets no SLO")
    if not requests:
        return absent("no request was planned")
    return Value(sum(meets(request, slo) for request in requests) / len(requests))


def tokens_inside(requests: Sequence[RequestRecord], window: Window) -> int:
    """Tokens whose chunk arrived inside the window."""
    return sum(
        n for request in requests for t_ns, n in zip(request.chunk_ns, request.chunk_tokens, strict=True)
        if window.holds(t_ns)
    )  # fmt: skip


def begun_inside(requests: Sequence[RequestRecord], window: Window) -> list[RequestRecord]:
    """Requests whose first token arrived inside the window."""
    return [request for request in requests if request.chunk_ns and window.holds(request.chunk_ns[0])]


def done_inside(requests: Sequence[RequestRecord], window: Window) -> list[RequestRecord]:
    """Requests that ended ok and whose last token arrived inside the window."""
    ended = [request for request in requests if request.outcome is Outcome.OK and request.chunk_ns]
    return [request for request in ended if window.holds(request.chunk_ns[-1])]


def planned_inside(requests: Sequence[RequestRecord], window: Window) -> list[RequestRecord]:
    """Requests that the plan wanted sent inside the window."""
    return [request for request in requests if window.holds(request.planned_ns)]


def _per_second(count: float, window: Window) -> Value:
    return Value(count / window.length_s) if window.length_s > 0 else absent(_EMPTY)
