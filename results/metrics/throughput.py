"""Rates over the window, and goodput under an SLO.

Rates of a closed loop are those of its long run (:mod:`bakeoff.results.metrics.closed_loop`). In an open loop, whose
arrivals do not wait for answers, requests count by the fraction of [planned, ended] within the window, tokens by their
arrival. Both are unbiased for a steady load whatever the service times: over a long load every request contributes
exactly one. While a backlog grows, the fraction would count time in the queue as work, so requests count by their last
token instead.
"""

import numpy as np

from bakeoff.results.columns import UNKNOWN, Ints
from bakeoff.results.metric import Better, Role, Unit
from bakeoff.results.metrics import latency
from bakeoff.results.metrics.closed_loop import Cycles, cycles, is_in_long_run, long_run_rate
from bakeoff.results.metrics.declaration import Needs, ShareOf, TrialData, TrialMetric
from bakeoff.results.metrics.prefix_cache import prompt_tokens
from bakeoff.results.metrics.values import Value, absent
from bakeoff.results.records import Slo, Window
from bakeoff.results.requests import Flags, Floats, Requests, inside

_EMPTY = "the window is empty"
NO_SLO = "the experiment sets no SLO"
"""Why a metric of the SLO is absent."""


def ended_inside(requests: Requests, window: Window) -> Floats:
    """1 for each successful request whose last token arrived within the window, else 0."""
    return (requests.is_ok & inside(requests.chunks.last_ns, window)).astype(np.float64)


def share_inside(requests: Requests, window: Window) -> Floats:
    """Fraction of each successful request's time from plan to last token within the window, 0 to 1."""
    start_ns, end_ns = requests.ints("planned_ns"), requests.chunks.last_ns
    answered = requests.is_ok & (end_ns != UNKNOWN)
    lasted = answered & (end_ns > start_ns)
    length_ns = np.where(lasted, end_ns - start_ns, 1)
    shares = np.maximum(0, np.minimum(end_ns, window.end_ns) - np.maximum(start_ns, window.start_ns)) / length_ns
    return np.where(lasted, shares, answered & inside(start_ns, window))


def output_tokens_per_s(requests: Requests, window: Window) -> Value:
    """Tokens that arrived within the window, over its length; tokens of failed requests count too.

    Args:
        requests: all under load, those planned outside the window included.
        window: of the trial.
    """
    if not _has_tokens(requests):
        return absent("the answers have no tokens")
    return per_second(tokens_inside(requests, window), window)


def generated_tokens_per_s(requests: Requests, window: Window, share_of: ShareOf = share_inside) -> Value:
    """Tokens that are billed: those of :func:`output_tokens_per_s`, and hidden ones by their request's share within."""
    streamed = output_tokens_per_s(requests, window)
    hidden = requests.ints("hidden_tokens")
    if streamed.value is None or not (hidden > 0).any():
        return streamed
    unseen = float((hidden * share_of(requests, window))[hidden > 0].sum())
    return per_second(streamed.value * window.length_s + unseen, window)


def prompt_tokens_per_s(requests: Requests, window: Window, share_of: ShareOf = share_inside) -> Value:
    """Prompt tokens of successful requests, weighted by their share within the window, over its length."""
    return _weighted_prompts(requests, window, share_of)


def uncached_prompt_tokens_per_s(requests: Requests, window: Window, share_of: ShareOf = share_inside) -> Value:
    """Like :func:`prompt_tokens_per_s`, without tokens from the prefix cache: what the engine had to compute."""
    if prompt_tokens(requests) is None:
        return absent("no answer reports cached prompt tokens")
    return _weighted_prompts(requests, window, share_of, np.maximum(requests.ints("cached_tokens"), 0))


def requests_per_s(requests: Requests, window: Window, share_of: ShareOf = share_inside) -> Value:
    """Successful requests, weighted by their share within the window, over its length."""
    return per_second(float(share_of(requests, window).sum()), window)


def requests_in_flight(requests: Requests, window: Window) -> Value:
    """Mean number of requests that were sent and had not ended, over the window."""
    return per_second(int(in_flight_ns(requests, window).sum()) / 1e9, window)


def in_flight_ns(requests: Requests, window: Window) -> Ints:
    """Nanoseconds of the window in which each request was sent and had not ended."""
    sent_ns, ended_ns = requests.ints("sent_ns"), requests.ints("ended_ns")
    spans_ns = np.minimum(ended_ns, window.end_ns) - np.maximum(sent_ns, window.start_ns)
    return np.where(sent_ns == UNKNOWN, 0, np.maximum(0, spans_ns))


def meets(requests: Requests, slo: Slo) -> Flags:
    """Whether each request succeeded and met every bound of the SLO; a one-token answer meets any TPOT bound."""
    met = requests.is_ok
    for of_requests, bound_s in (
        (latency.ttft_s, slo.ttft_s),
        (latency.tpot_s, slo.tpot_s),
        (latency.e2e_s, slo.e2e_s),
        (latency.first_visible_s, slo.first_visible_s),
    ):
        if bound_s is not None:
            values_s = of_requests(requests)
            met = met & ~(values_s > bound_s)
            if of_requests is latency.first_visible_s:
                met = met & ~np.isnan(values_s)  # a user saw nothing of it
    return met


def goodput_per_s(requests: Requests, window: Window, slo: Slo) -> Value:
    """Requests planned within the window that met the SLO, over its length."""
    if slo == Slo():
        return absent(NO_SLO)
    return per_second(int(meets(requests.planned_inside(window), slo).sum()), window)


def attainment(planned: Requests, slo: Slo) -> Value:
    """Fraction of requests that met the SLO; failures violate it."""
    if slo == Slo():
        return absent(NO_SLO)
    if not len(planned):
        return absent("no request was planned")
    return Value(int(meets(planned, slo).sum()) / len(planned))


def tokens_inside(requests: Requests, window: Window) -> int:
    """Number of tokens that arrived within the window."""
    chunks = requests.chunks
    return int(chunks.tokens[inside(chunks.ns, window)].sum())


def _weighted_prompts(requests: Requests, window: Window, share_of: ShareOf, cached: Ints | int = 0) -> Value:
    shares, tokens = share_of(requests, window), requests.ints("prompt_tokens")
    if (tokens[shares > 0] == UNKNOWN).any():
        return absent("the engine did not report its prompt tokens")
    return per_second(float(((tokens - cached) * shares)[shares > 0].sum()), window)


def per_second(count: float, window: Window) -> Value:
    """A count of a window over its length."""
    return Value(count / window.length_s) if window.length_s > 0 else absent(_EMPTY)


def tokens_per_chunk(requests: Requests) -> Value:
    """Tokens over the reads that brought any."""
    reads = requests.chunks.reads
    return Value(int(reads.tokens.sum()) / len(reads.ns)) if len(reads.ns) else absent("no token arrived")


def output_rate(data: TrialData) -> Value:
    """Output tokens per second of a trial; those of failed requests count too."""
    if is_in_long_run(data) and _has_tokens(data.load):
        return Value(long_run_rate(data, _ended(data).chunks.total_tokens))
    return output_tokens_per_s(data.load, data.window)


def request_rate(data: TrialData) -> Value:
    """Requests per second of a trial."""
    if is_in_long_run(data):
        return Value(long_run_rate(data, _ended(data).is_ok))
    return requests_per_s(data.load, data.window, data.share_of)


def _generated_rate(data: TrialData) -> Value:
    if is_in_long_run(data) and _has_tokens(data.load):
        ended = _ended(data)
        return Value(long_run_rate(data, ended.chunks.total_tokens + np.maximum(ended.ints("hidden_tokens"), 0)))
    return generated_tokens_per_s(data.load, data.window, data.share_of)


def _prompt_rate(data: TrialData, *, uncached: bool = False) -> Value:
    of_window = uncached_prompt_tokens_per_s if uncached else prompt_tokens_per_s
    if not is_in_long_run(data):
        return of_window(data.load, data.window, data.share_of)
    ended = _ended(data)
    if (why := of_window(ended, data.window, _whole)).value is None:
        return why
    cached = np.maximum(ended.ints("cached_tokens"), 0) if uncached else 0
    return Value(long_run_rate(data, np.where(ended.is_ok, ended.ints("prompt_tokens") - cached, 0)))


def _goodput(data: TrialData) -> Value:
    if data.slo != Slo() and is_in_long_run(data):
        return Value(long_run_rate(data, meets(_ended(data), data.slo)))
    return goodput_per_s(data.load, data.window, data.slo)


def _ended(data: TrialData) -> Requests:
    known = data.once(cycles)
    assert isinstance(known, Cycles)
    return known.requests


def _whole(requests: Requests, _: Window) -> Floats:
    return requests.is_ok.astype(np.float64)


def _has_tokens(requests: Requests) -> bool:
    is_streamed = requests.equal("is_streamed", True)
    return not len(requests) or bool((is_streamed | (requests.chunks.total_tokens > 0)).any())


def _num_planned(data: TrialData) -> int:
    return len(data.inside)


def _num_counted(data: TrialData) -> int:
    return int((data.shares > 0).sum())


_PLANNED = "a request planned in the window"
_SHARE = "a successful request, as its share inside"
METRICS = (
    TrialMetric(
        name="output_tokens_per_s",
        title="output",
        in_full="output of the server",
        unit=Unit.TOKENS_PER_SECOND,
        better=Better.HIGHER,
        definition=(
            "tokens of an answer over a slot's time for it, times the slots; open loop: those inside the window, over "
            "its length"
        ),
        observation="a token that arrived",
        roles=frozenset({Role.HEADLINE, Role.GUARDRAIL, Role.PER_TOKEN, Role.FOLLOWS_PACE}),
        of=lambda data: data.once(output_rate),
        count=lambda data: tokens_inside(data.load, data.window),
    ),
    TrialMetric(
        name="generated_tokens_per_s",
        title="generated",
        unit=Unit.TOKENS_PER_SECOND,
        better=Better.HIGHER,
        definition=("the same with tokens that were counted and not streamed (hidden reasoning): what is billed"),
        observation="a token that arrived, or was hidden",
        roles=frozenset({Role.PER_TOKEN}),
        of=_generated_rate,
        count=lambda data: tokens_inside(data.load, data.window),
    ),
    TrialMetric(
        name="prompt_tokens_per_s",
        title="prompt",
        unit=Unit.TOKENS_PER_SECOND,
        better=Better.HIGHER,
        definition="the same for the prompt tokens of successful requests",
        observation=_SHARE,
        of=_prompt_rate,
        count=_num_counted,
    ),
    TrialMetric(
        name="uncached_prompt_tokens_per_s",
        title="prompt, uncached",
        unit=Unit.TOKENS_PER_SECOND,
        better=Better.HIGHER,
        definition="the same without the tokens that came from the prefix cache",
        observation=_SHARE,
        of=lambda data: _prompt_rate(data, uncached=True),
        count=_num_counted,
    ),
    TrialMetric(
        name="requests_per_s",
        title="requests",
        unit=Unit.PER_SECOND,
        better=Better.HIGHER,
        definition=(
            "successful requests, likewise; open loop: each as its share of [planned, last token] inside the window"
        ),
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
        definition="requests planned inside the window that met every bound of the SLO, likewise",
        observation=_PLANNED,
        roles=frozenset({Role.OF_SLO, Role.GUARDRAIL, Role.COUNTS_AT_A_BOUND, Role.NEEDS_CAPACITY}),
        of=_goodput,
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
        count=lambda data: int((in_flight_ns(data.load, data.window) > 0).sum()),
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
        of=lambda data: Value(float(data.inside.has_failed.sum())),
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
        count=lambda data: len(data.inside.chunks.reads.ns),
    ),
)
RATES = frozenset({
    "output_tokens_per_s", "generated_tokens_per_s", "prompt_tokens_per_s", "uncached_prompt_tokens_per_s",
    "requests_per_s", "goodput_per_s",
})  # fmt: skip
"""Those of a closed loop are of its long run."""
