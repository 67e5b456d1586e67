"""Rates over the steady window, and goodput against an SLO."""

from collections.abc import Sequence

from results.metrics import latency
from results.metrics.values import Value, absent
from results.metrics.window import Window
from results.records import Outcome, RequestRecord, Slo

_EMPTY = "the steady window is empty"


def output_tokens_per_s(requests: Sequence[RequestRecord], window: Window) -> Value:
    """Tokens whose chunk arrived inside the window, over its length; failed requests' tokens count, they were felt."""
    tokens = sum(
        n for request in requests for t_ns, n in zip(request.chunk_ns, request.chunk_tokens, strict=True)
        if window.holds(t_ns)
    )  # fmt: skip
    return _per_second(tokens, window)


def prompt_tokens_per_s(requests: Sequence[RequestRecord], window: Window) -> Value:
    """Prompt tokens of the requests whose first token arrived inside the window, over its length."""
    inside = [request for request in requests if request.chunk_ns and window.holds(request.chunk_ns[0])]
    if any(request.prompt_tokens is None for request in inside):
        return absent("the engine did not report its prompt tokens")
    return _per_second(sum(request.prompt_tokens or 0 for request in inside), window)


def requests_per_s(requests: Sequence[RequestRecord], window: Window) -> Value:
    """Successful requests whose last token arrived inside the window, over its length."""
    done = sum(
        request.outcome is Outcome.OK and bool(request.chunk_ns) and window.holds(request.chunk_ns[-1])
        for request in requests
    )
    return _per_second(done, window)


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
    return _per_second(sum(meets(request, slo) for request in requests if window.holds(request.planned_ns)), window)


def attainment(requests: Sequence[RequestRecord], slo: Slo) -> Value:
    """Share of the requests planned that met the SLO; failures are misses."""
    if slo == Slo():
        return absent("the experiment sets no SLO")
    if not requests:
        return absent("no request was planned")
    return Value(sum(meets(request, slo) for request in requests) / len(requests))


def _per_second(count: float, window: Window) -> Value:
    return Value(count / window.length_s) if window.length_s > 0 else absent(_EMPTY)
