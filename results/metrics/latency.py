"""Latencies of requests, as defined in docs/definitions.md, in seconds; NaN if absent.

For a request planned at p and sent at s, whose token-bearing chunks arrived at a_1…a_k carrying n_1…n_k tokens:
TTFT = a_1 - p; chunk gap = a_i - a_(i-1); ITL = that gap / n_i, counted n_i times; TPOT = (a_k - a_1) / (N - n_1);
E2E = a_k - p. Chunks of one read share a timestamp and count as one chunk: how an engine or proxy packs events into
segments is not a pause between tokens.
"""

from typing import NamedTuple

import numpy as np

from bakeoff.results.columns import UNKNOWN, Ints
from bakeoff.results.metric import Role
from bakeoff.results.metrics.declaration import Latency, TrialData
from bakeoff.results.metrics.kinds import first_visible_ns, why_no_reasoning
from bakeoff.results.records import Window
from bakeoff.results.requests import Chunks, Floats, Narrow, Places, Requests, inside
from bakeoff.results.units import NS_PER_S


def ttft_s(requests: Requests) -> Floats:
    """Time to first token, from the planned start; NaN for an answer that is not streamed."""
    return _if_streamed(requests, requests.seconds_from("planned_ns", requests.chunks.first_ns))


def first_visible_s(requests: Requests) -> Floats:
    """Time to the first chunk of text or of a tool call, from the planned start; NaN if none came."""
    return _if_streamed(requests, requests.seconds_from("planned_ns", first_visible_ns(requests)))


def ttft_from_send_s(requests: Requests) -> Floats:
    """Time to first token from the first byte sent, which excludes the client's own delay."""
    return _if_streamed(requests, requests.seconds_from("sent_ns", requests.chunks.first_ns))


def e2e_s(requests: Requests) -> Floats:
    """End-to-end latency: planned start to last token, not to the usage chunk or the end of the stream."""
    return requests.seconds_from("planned_ns", requests.chunks.last_ns)


def normalized_latency_s(requests: Requests) -> Floats:
    """End-to-end latency per output token (Yu et al., Orca, OSDI 2022)."""
    return per_token(e2e_s(requests), requests.chunks.total_tokens)


def pooled_tpot_s(requests: Requests) -> float | None:
    """Σ (a_k − a₁) / Σ (N − n₁): mean pace over requests; None if none has a second chunk."""
    chunks = requests.take(requests.placed & (requests.chunks.counts > 0)).chunks
    later = int((chunks.total_tokens - chunks.first_tokens).sum())
    return int((chunks.last_ns - chunks.first_ns).sum()) / NS_PER_S / later if later else None


def tpot_s(requests: Requests) -> Floats:
    """Time per output token after the first chunk; NaN if no token arrived after its read."""
    chunks = requests.chunks
    is_later = chunks.ns > np.repeat(chunks.first_ns, chunks.counts)
    spans_s = (chunks.last_ns - chunks.first_ns) / NS_PER_S
    return np.where(requests.placed, per_token(spans_s, chunks.sums(np.where(is_later, chunks.tokens, 0))), np.nan)


def send_lag_s(requests: Requests) -> Floats:
    """Delay of the send by the client: first byte minus planned time, or minus the end of a wait for ``max_in_flight``.

    The time to open a connection is excluded: it is due to the distance of the server.
    """
    due_ns = requests.ints("due_ns")
    waited_s = requests.seconds_from("due_ns", requests.ints("sent_ns"))
    at_once_s = requests.seconds_from("planned_ns", requests.ints("sent_ns"))
    return np.where(due_ns == UNKNOWN, at_once_s, waited_s) - dial_s(requests)


def dial_s(requests: Requests) -> Floats:
    """Time to open a connection for each request; 0 if one was reused."""
    return np.nan_to_num(requests.seconds_from("dial_start_ns", requests.ints("dial_end_ns")))


class Gaps(NamedTuple):
    """Gaps between consecutive reads with tokens of one answer.

    Attributes:
        seconds: length of each.
        tokens: of the read that ended it.
        end_ns: when that arrived.
        owners: position of the request.
    """

    seconds: Floats
    tokens: Narrow
    end_ns: Ints
    owners: Places

    @property
    def token_s(self) -> Floats:
        """One value for each token: its gap, divided over the tokens that the gap delivered."""
        return np.repeat(self.seconds / np.maximum(1, self.tokens), self.tokens)


def chunk_gaps_s(requests: Requests, window: Window | None = None) -> tuple[Floats, Places]:
    """Gaps between consecutive token-bearing chunks that end within ``window``, and the position of their request."""
    gaps = gaps_of(requests, window)
    return gaps.seconds, gaps.owners


def itl_s(requests: Requests, window: Window | None = None) -> tuple[Floats, Places]:
    """Inter-token latencies: each gap that ends within ``window``, divided over the tokens it delivered.

    A read in which no token begins adds its gap to that of the next token, or of the last one.

    Returns:
        one value for each token, and the position of its request.
    """
    gaps = gaps_of(requests, window, requests.chunks.token_reads)
    gaps = gaps._replace(tokens=np.where(requests.placed[gaps.owners], gaps.tokens, 0))
    return gaps.token_s, np.repeat(gaps.owners, gaps.tokens)


def per_token(spans_s: Floats, tokens: Ints) -> Floats:
    """Spans of time over numbers of tokens; NaN without a token."""
    return np.where(tokens > 0, spans_s / np.maximum(1, tokens), np.nan)


def _if_streamed(requests: Requests, values_s: Floats) -> Floats:
    return np.where(requests.equal("is_streamed", True), values_s, np.nan)


def gaps_of(requests: Requests, window: Window | None = None, reads: Chunks | None = None) -> Gaps:
    """The gaps between reads that end within ``window``; of all reads with chunks, unless others are given."""
    reads = requests.chunks.reads if reads is None else reads
    is_gap = np.diff(reads.request) == 0
    if window is not None:
        is_gap &= inside(reads.ns[1:], window)
    lengths_s = np.diff(reads.ns)[is_gap] / NS_PER_S
    return Gaps(lengths_s, reads.tokens[1:][is_gap], reads.ns[1:][is_gap], reads.request[1:][is_gap])


def why_not_streamed(data: TrialData) -> str | None:
    """Why a trial has no times of tokens; None if its answers are streamed."""
    return None if data.load.equal("is_streamed", True).all() else "the answers are not streamed"


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
        in_full="time to first token (TTFT)",
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
        in_full="time to first visible token",
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
        in_full="time between tokens (ITL)",
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
        in_full="time per output token (TPOT)",
    ),
    Latency(
        key="e2e",
        title="E2E",
        definition="a_k − p: planned start to last token",
        observation=_PLANNED,
        of_request=e2e_s,
        median_roles=(Role.FOLLOWS_PACE,),
        in_full="time to the end of the answer (E2E)",
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
