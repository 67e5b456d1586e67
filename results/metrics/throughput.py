"""Rates over the window, and goodput under an SLO.

Requests count by the fraction of [planned, ended] within the window, tokens by their arrival. Both are unbiased for a
steady load whatever the service times: over a long load every request contributes exactly one. While a backlog grows,
the fraction would count time in the queue as work, so requests count by their last token instead.
"""

from collections.abc import Callable, Sequence

from bakeoff.results.metric import Better, Role, Unit
from bakeoff.results.metrics import latency
from bakeoff.results.metrics.declaration import Needs, ShareOf, TrialData, TrialMetric
from bakeoff.results.metrics.prefix_cache import prompt_tokens
from bakeoff.results.metrics.requests import has_failed, planned_inside
from bakeoff.results.metrics.values import Value, absent
from bakeoff.results.records import Outcome, RequestRecord, Slo, Window

_EMPTY = "the window is empty"
NO_SLO = "the experiment sets no SLO"
"""Why a metric of the SLO is absent."""


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
    if requests and not any(request.is_streamed or request.total_chunk_tokens for request in requests):
        return absent("the answers have no tokens")
    return per_second(tokens_inside(requests, window), window)


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
    return per_second(sum(share_of(request, window) for request in requests), window)


def requests_in_flight(requests: Sequence[RequestRecord], window: Window) -> Value:
    """Mean number of requests that were sent and had not ended, over the window."""
    return per_second(sum(in_flight_ns(request, window) for request in requests) / 1e9, window)


def in_flight_ns(request: RequestRecord, window: Window) -> int:
    """Nanoseconds of the window in which a request was sent and had not ended."""
    if request.sent_ns is None:
        return 0
    return max(0, min(request.ended_ns, window.end_ns) - max(request.sent_ns, window.start_ns))


def meets(request: RequestRecord, slo: Slo) -> bool:
    """Whether a request succeeded and met every bound of the SLO; a one-token answer meets any TPOT bound."""
    if request.outcome is not Outcome.OK:
        return False
    if slo.first_visible_s is not None and latency.first_visible_s(request) is None:
        return False  # a user saw nothing of it
    pairs = (
        (latency.ttft_s(request), slo.ttft_s),
        (latency.tpot_s(request), slo.tpot_s),
        (latency.e2e_s(request), slo.e2e_s),
        (latency.first_visible_s(request), slo.first_visible_s),
    )
    return all(bound is None or value is None or value <= bound for value, bound in pairs)


def goodput_per_s(requests: Sequence[RequestRecord], window: Window, slo: Slo) -> Value:
    """Requests planned within the window that met the SLO, over its length."""
    if slo == Slo():
        return absent(NO_SLO)
    return per_second(sum(meets(request, slo) for request in planned_inside(requests, window)), window)


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


def _weighted_prompts(
    requests: Sequence[RequestRecord], window: Window, share_of: ShareOf, tokens_of: Callable[[RequestRecord], int]
) -> Value:
    shares = [(request, share) for request in requests if (share := share_of(request, window)) > 0]
    if any(request.prompt_tokens is None for request, _ in shares):
        return absent("the engine did not report its prompt tokens")
    return per_second(sum(tokens_of(request) * share for request, share in shares), window)


def per_second(count: float, window: Window) -> Value:
    """A count of a window over its length."""
    return Value(count / window.length_s) if window.length_s > 0 else absent(_EMPTY)


def tokens_per_chunk(requests: Sequence[RequestRecord]) -> Value:
    """Tokens over the reads that brought any."""
    chunks = sum(len(latency.arrivals(request)) for request in requests)
    return Value(sum(r.total_chunk_tokens for r in requests) / chunks) if chunks else absent("no token arrived")


def output_rate(data: TrialData) -> Value:
    """Output tokens per second of a trial."""
    return output_tokens_per_s(data.load, data.window)


def request_rate(data: TrialData) -> Value:
    """Requests per second of a trial."""
    return requests_per_s(data.load, data.window, data.share_of)


def _num_planned(data: TrialData) -> int:
    return len(data.inside)


def _num_counted(data: TrialData) -> int:
    return sum(share > 0 for share in data.shares)


_PLANNED = "a request planned in the window"
_SHARE = "a successful request, as its share inside"
METRICS = (
    TrialMetric(
        name="output_tokens_per_s",
        title="output",
        short_title="tokens out",
        unit=Unit.TOKENS_PER_SECOND,
        better=Better.HIGHER,
        definition="tokens that arrived inside the window, over its length",
        observation="a token that arrived",
        roles=frozenset({Role.HEADLINE, Role.GUARDRAIL, Role.PER_TOKEN, Role.FOLLOWS_PACE}),
        of=lambda data: data.once(output_rate),
        count=lambda data: tokens_inside(data.load, data.window),
    ),
    TrialMetric(
        name="prompt_tokens_per_s",
        title="prompt",
        unit=Unit.TOKENS_PER_SECOND,
        better=Better.HIGHER,
        definition="prompt tokens of successful requests, each times its share inside the window, over its length",
        observation=_SHARE,
        of=lambda data: prompt_tokens_per_s(data.load, data.window, data.share_of),
        count=_num_counted,
    ),
    TrialMetric(
        name="uncached_prompt_tokens_per_s",
        title="prompt, uncached",
        unit=Unit.TOKENS_PER_SECOND,
        better=Better.HIGHER,
        definition="the same without the tokens that came from the prefix cache",
        observation=_SHARE,
        of=lambda data: uncached_prompt_tokens_per_s(data.load, data.window, data.share_of),
        count=_num_counted,
    ),
    TrialMetric(
        name="requests_per_s",
        title="requests",
        unit=Unit.PER_SECOND,
        better=Better.HIGHER,
        definition="successful requests, each as the share of [planned, last token] inside the window, over its length",
        observation=_SHARE,
        roles=frozenset({Role.HEADLINE, Role.FOLLOWS_PACE, Role.COUNTS_AT_A_BOUND}),
        of=lambda data: data.once(request_rate),
        count=_num_counted,
    ),
    TrialMetric(
        name="goodput_per_s",
        title="goodput",
        unit=Unit.PER_SECOND,
        better=Better.HIGHER,
        definition="requests planned inside the window that met every bound of the SLO, over its length",
        observation=_PLANNED,
        roles=frozenset({Role.OF_SLO, Role.GUARDRAIL, Role.COUNTS_AT_A_BOUND, Role.NEEDS_CAPACITY}),
        of=lambda data: goodput_per_s(data.load, data.window, data.slo),
        count=_num_planned,
    ),
    TrialMetric(
        name="attainment",
        title="attainment",
        unit=Unit.SHARE,
        better=Better.HIGHER,
        definition="share of the requests planned inside the window that met the SLO; failures are misses",
        observation=_PLANNED,
        roles=frozenset({Role.OF_SLO, Role.GUARDRAIL, Role.COUNTS_AT_A_BOUND, Role.NEEDS_CAPACITY}),
        needs=Needs.PLANNED,
        of=lambda data: attainment(data.inside, data.slo),
        count=_num_planned,
    ),
    TrialMetric(
        name="requests_in_flight",
        title="in flight",
        unit=Unit.COUNT,
        better=Better.LOWER,
        definition=(
            "mean number of requests that were sent and had not ended, over the window; sessions that pause have none"
        ),
        observation="a request that was sent, as its time inside",
        of=lambda data: requests_in_flight(data.load, data.window),
        count=lambda data: sum(in_flight_ns(request, data.window) > 0 for request in data.load),
    ),
    TrialMetric(
        name="failures",
        title="failures",
        unit=Unit.COUNT,
        better=Better.LOWER,
        definition="requests planned inside the window that failed",
        observation=_PLANNED,
        roles=frozenset({Role.HEADLINE, Role.GUARDRAIL, Role.PER_TOKEN}),
        needs=Needs.PLANNED,
        of=lambda data: Value(float(sum(map(has_failed, data.inside)))),
        count=_num_planned,
    ),
    TrialMetric(
        name="tokens_per_chunk",
        title="tokens/chunk",
        unit=Unit.COUNT,
        better=Better.LOWER,
        definition="tokens over reads that brought any; above 1 the engine groups tokens, or speculates",
        observation="a read that brought tokens, of requests planned in the window",
        roles=frozenset({Role.PER_TOKEN}),
        of=lambda data: tokens_per_chunk(data.inside),
        count=lambda data: sum(len(latency.arrivals(request)) for request in data.inside),
    ),
)
