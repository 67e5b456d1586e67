"""Latencies of one request, as defined in docs/definitions.md, in seconds; None if absent.

For a request planned at p and sent at s, whose token-bearing chunks arrived at a_1…a_k carrying n_1…n_k tokens:
TTFT = a_1 - p; chunk gap = a_i - a_(i-1); ITL = that gap / n_i, counted n_i times; TPOT = (a_k - a_1) / (N - n_1);
E2E = a_k - p. Chunks of one read share a timestamp and count as one chunk: how an engine or proxy packs events into
segments is not a pause between tokens.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from bakeoff.results.metric import Role
from bakeoff.results.metrics.declaration import Latency, TrialData
from bakeoff.results.metrics.kinds import first_visible_ns, merged, why_no_reasoning
from bakeoff.results.records import RequestRecord, TokenSource, Window
from bakeoff.results.units import NS_PER_S


def ttft_s(request: RequestRecord) -> float | None:
    """Time to first token, from the planned start; None for an answer that is not streamed."""
    if not request.chunk_ns or not request.is_streamed:
        return None
    return (request.chunk_ns[0] - request.planned_ns) / NS_PER_S


def first_visible_s(request: RequestRecord) -> float | None:
    """Time to the first chunk of text or of a tool call, from the planned start; None if none came."""
    first_ns = first_visible_ns(request) if request.is_streamed else None
    return None if first_ns is None else (first_ns - request.planned_ns) / NS_PER_S


def ttft_from_send_s(request: RequestRecord) -> float | None:
    """Time to first token from the first byte sent, which excludes the client's own delay."""
    if not request.chunk_ns or request.sent_ns is None or not request.is_streamed:
        return None
    return (request.chunk_ns[0] - request.sent_ns) / NS_PER_S


def e2e_s(request: RequestRecord) -> float | None:
    """End-to-end latency: planned start to last token, not to the usage chunk or the end of the stream."""
    return (request.chunk_ns[-1] - request.planned_ns) / NS_PER_S if request.chunk_ns else None


def normalized_latency_s(request: RequestRecord) -> float | None:
    """End-to-end latency per output token (Yu et al., Orca, OSDI 2022)."""
    whole_s, tokens = e2e_s(request), request.total_chunk_tokens
    return whole_s / tokens if whole_s is not None and tokens else None


def pooled_tpot_s(requests: Iterable[RequestRecord]) -> float | None:
    """Σ (a_k − a₁) / Σ (N − n₁): mean pace over requests; None if none has a second chunk."""
    with_chunks = [r for r in requests if r.chunk_ns and r.token_source is not TokenSource.UNPLACED]
    later = sum(request.total_chunk_tokens - request.chunk_tokens[0] for request in with_chunks)
    spans_ns = sum(request.chunk_ns[-1] - request.chunk_ns[0] for request in with_chunks)
    return spans_ns / NS_PER_S / later if later else None


def tpot_s(request: RequestRecord) -> float | None:
    """Time per output token after the first chunk; None if no token arrived after its read."""
    if not request.chunk_ns or request.token_source is TokenSource.UNPLACED:
        return None
    first_ns = request.chunk_ns[0]
    later_tokens = sum(n for t_ns, n in zip(request.chunk_ns, request.chunk_tokens, strict=True) if t_ns > first_ns)
    if later_tokens == 0:
        return None
    return (request.chunk_ns[-1] - request.chunk_ns[0]) / NS_PER_S / later_tokens


def send_lag_s(request: RequestRecord) -> float | None:
    """Delay of the send by the client: first byte minus planned time, or minus the end of a wait for ``max_in_flight``.

    The time to open a connection is excluded: it is due to the distance of the server.
    """
    if request.sent_ns is None:
        return None
    due_ns = request.planned_ns if request.due_ns is None else request.due_ns
    return (request.sent_ns - due_ns) / NS_PER_S - dial_s(request)


def dial_s(request: RequestRecord) -> float:
    """Time to open a connection for the request; 0 if one was reused."""
    if request.dial_start_ns is None or request.dial_end_ns is None:
        return 0.0
    return (request.dial_end_ns - request.dial_start_ns) / NS_PER_S


def chunk_gaps_s(requests: Iterable[RequestRecord], window: Window | None = None) -> list[float]:
    """Gaps between consecutive token-bearing chunks that end within ``window``."""
    return [gap for gap, _ in _gaps(requests, window)]


def itl_s(requests: Iterable[RequestRecord], window: Window | None = None) -> list[float]:
    """Inter-token latencies: each gap that ends within ``window``, divided over the tokens it delivered."""
    placed = (request for request in requests if request.token_source is not TokenSource.UNPLACED)
    return [itl for gap, tokens in _gaps(placed, window) for itl in [gap / max(1, tokens)] * tokens]


def arrivals(request: RequestRecord) -> list[tuple[int, int]]:
    """Timestamp and tokens of each chunk, with the chunks of one read merged."""
    return merged(zip(request.chunk_ns, request.chunk_tokens, strict=True))


def _gaps(requests: Iterable[RequestRecord], window: Window | None) -> Iterator[tuple[float, int]]:
    for request in requests:
        for (before_ns, _), (after_ns, tokens) in pairwise(arrivals(request)):
            if window is None or window.holds(after_ns):
                yield (after_ns - before_ns) / NS_PER_S, tokens


def why_not_streamed(data: TrialData) -> str | None:
    """Why a trial has no times of tokens; None if its answers are streamed."""
    return None if all(request.is_streamed for request in data.load) else "the answers are not streamed"


_PLANNED = "a request planned in the window; a failed one is later than every success"
LATENCIES = (
    Latency(
        key="ttft",
        title="TTFT",
        definition="time to first token, a₁ − p, from the planned start of the request",
        observation=_PLANNED,
        of_request=ttft_s,
        why_absent=why_not_streamed,
        median_roles=(Role.HEADLINE, Role.GUARDRAIL),
    ),
    Latency(
        key="first_visible",
        title="first visible",
        definition="time to the first token of text or of a tool call, from the planned start of the request",
        observation=_PLANNED,
        of_request=first_visible_s,
        why_absent=why_no_reasoning,
        roles=(Role.IF_PRESENT,),
        median_roles=(Role.HEADLINE,),
    ),
    Latency(
        key="ttft_from_send",
        title="TTFT from send",
        definition="a₁ − s: time to first token without the client's own waiting",
        observation=_PLANNED,
        of_request=ttft_from_send_s,
        why_absent=why_not_streamed,
    ),
    Latency(
        key="itl",
        title="ITL",
        definition="gap between two reads spread over the tokens it delivered, one value per token, in the window",
        observation="a token after the first chunk of its answer",
        of_gaps=itl_s,
        roles=(Role.PER_TOKEN,),
        median_roles=(Role.HEADLINE, Role.FOLLOWS_PACE),
    ),
    Latency(
        key="chunk_gap",
        title="chunk gap",
        definition="aᵢ − aᵢ₋₁ between reads that brought tokens, in the window, however many",
        observation="a gap between two chunks",
        of_gaps=chunk_gaps_s,
        roles=(Role.PER_TOKEN,),
    ),
    Latency(
        key="tpot",
        title="TPOT",
        definition="(a_k − a₁) / (N − n₁): mean pace of one request after its first chunk",
        observation="a request planned in the window whose answer has tokens after its first chunk; or a failed one",
        of_request=tpot_s,
        roles=(Role.PER_TOKEN,),
        median_roles=(Role.HEADLINE, Role.GUARDRAIL, Role.FOLLOWS_PACE),
    ),
    Latency(
        key="e2e",
        title="E2E",
        definition="a_k − p: planned start to last token",
        observation=_PLANNED,
        of_request=e2e_s,
        median_roles=(Role.FOLLOWS_PACE,),
    ),
    Latency(
        key="normalized_latency",
        title="normalised latency",
        definition="(a_k − p) / N: for comparing answers of different lengths (Orca, vLLM)",
        observation=_PLANNED,
        of_request=normalized_latency_s,
    ),
    Latency(
        key="send_lag",
        title="send lag",
        definition=(
            "s − p: how late this client sent, its own error; neither a wait under max_in_flight nor the opening of a "
            "connection is counted"
        ),
        observation="a request planned in the window that was sent",
        of_request=send_lag_s,
        counts_failures=False,
    ),
)
"""All latencies, in display order."""
