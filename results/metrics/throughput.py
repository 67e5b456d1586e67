"""Rates over the window, and goodput under an SLO.

Requests count by the fraction of [planned, ended] within the window, tokens by their arrival. Both are unbiased for a
steady load whatever the service times: over a long load every request contributes exactly one. While a backlog grows,
the fraction would count time in the queue as work, so requests count by their last token instead.
"""

from collections.abc import Callable, Sequence

from bakeoff.results.metrics import latency
from bakeoff.results.metrics.prefix_cache import prompt_tokens
from bakeoff.results.metrics.values import Value, absent
from bakeoff.results.records import Outcome, RequestRecord, Slo, Window

_EMPTY = "the window is empty"
NO_SLO = "the experiment sets no SLO"
"""Why a metric of the SLO is absent."""
ShareOf = Callable[[RequestRecord, Window], float]
"""How much of a request counts in a window, 0 to 1."""


def ended_inside(request: RequestRecord, window: Window) -> float:
    """1 for a successful request whose last token arrived within the window, else 0."""
    return float(request.outcome is Outcome.OK and bool(request.chunk_ns) and window.holds(request.chunk_ns[-1]))


def share_inside(request: RequestRecord, window: Window) -> float:
    """Fraction of a successful request's time from plan to last token within the window, 0 to 1."""
    if request.outcome is not Outcome.OK or not request.chunk_ns:
        return 0.0
    start_ns, end_ns = request.planned_ns, request.chunk_ns[-1]
    if end_ns <= start_ns:
        return float(window.holds(start_ns))
    return max(0, min(end_ns, window.end_ns) - max(start_ns, window.start_ns)) / (end_ns - start_ns)


def output_tokens_per_s(requests: Sequence[RequestRecord], window: Window) -> Value:
    """Tokens that arrived within the window, over its length; tokens of failed requests count too.

    Args:
        requests: all under load, those planned outside the window included.
        window: of the trial.
    """
    return _per_second(tokens_inside(requests, window), window)


def prompt_tokens_per_s(requests: Sequence[RequestRecord], window: Window, share_of: ShareOf = share_inside) -> Value:
    """Prompt tokens of successful requests, weighted by their share within the window, over its length."""
    return _weighted_prompts(requests, window, share_of, lambda request: request.prompt_tokens or 0)


def uncached_prompt_tokens_per_s(
    requests: Sequence[RequestRecord], window: Window, share_of: ShareOf = share_inside
) -> Value:
    """Like :func:`prompt_tokens_per_s`, without tokens from the prefix cache: what the engine had to compute."""
    if prompt_tokens(requests) is None:
        return absent("no answer reports cached prompt tokens")
    return _weighted_prompts(
        requests, window, share_of, lambda request: (request.prompt_tokens or 0) - (request.cached_tokens or 0)
    )


def requests_per_s(requests: Sequence[RequestRecord], window: Window, share_of: ShareOf = share_inside) -> Value:
    """Successful requests, weighted by their share within the window, over its length."""
    return _per_second(sum(share_of(request, window) for request in requests), window)


def requests_in_flight(requests: Sequence[RequestRecord], window: Window) -> Value:
    """Mean number of requests that were sent and had not ended, over the window."""
    return _per_second(sum(in_flight_ns(request, window) for request in requests) / 1e9, window)


def in_flight_ns(request: RequestRecord, window: Window) -> int:
    """Nanoseconds of the window in which a request was sent and had not ended."""
    if request.sent_ns is None:
        return 0
    return max(0, min(request.ended_ns, window.end_ns) - max(request.sent_ns, window.start_ns))


def meets(request: RequestRecord, slo: Slo) -> bool:
    """Whether a request succeeded and met every bound of the SLO; a one-token answer meets any TPOT bound."""
    if request.outcome is not Outcome.OK:
        return False
    pairs = (
        (latency.ttft_s(request), slo.ttft_s),
        (latency.tpot_s(request), slo.tpot_s),
        (latency.e2e_s(request), slo.e2e_s),
    )
    return all(bound is None or value is None or value <= bound for value, bound in pairs)


def goodput_per_s(requests: Sequence[RequestRecord], window: Window, slo: Slo) -> Value:
    """Requests planned within the window that met the SLO, over its length."""
    if slo == Slo():
        return absent(NO_SLO)
    return _per_second(sum(meets(request, slo) for request in planned_inside(requests, window)), window)


def attainment(planned: Sequence[RequestRecord], slo: Slo) -> Value:
    """Fraction of requests that met the SLO; failures violate it."""
    if slo == Slo():
        return absent(NO_SLO)
    if not planned:
        return absent("no request was planned")
    return Value(sum(meets(request, slo) for request in planned) / len(planned))


def tokens_inside(requests: Sequence[RequestRecord], window: Window) -> int:
    """Number of tokens that arrived within the window."""
    return sum(
        n for request in requests for t_ns, n in zip(request.chunk_ns, request.chunk_tokens, strict=True)
        if window.holds(t_ns)
    )  # fmt: skip


def planned_inside(requests: Sequence[RequestRecord], window: Window) -> list[RequestRecord]:
    """Requests planned within the window."""
    return [request for request in requests if window.holds(request.planned_ns)]


def _weighted_prompts(
    requests: Sequence[RequestRecord], window: Window, share_of: ShareOf, tokens_of: Callable[[RequestRecord], int]
) -> Value:
    shares = [(request, share) for request in requests if (share := share_of(request, window)) > 0]
    if any(request.prompt_tokens is None for request, _ in shares):
        return absent("the engine did not report its prompt tokens")
    return _per_second(sum(tokens_of(request) * share for request, share in shares), window)


def _per_second(count: float, window: Window) -> Value:
    return Value(count / window.length_s) if window.length_s > 0 else absent(_EMPTY)
