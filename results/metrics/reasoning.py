"""How long a model thinks before it shows a word, and how fast either comes.

A streamed token is reasoning, or visible: of text or of a tool call. Reasoning that the engine counts and does not
stream is hidden. All of it is absent unless an answer under load reasons.
"""

from collections.abc import Callable

import numpy as np

from bakeoff.results.columns import UNKNOWN, Ints
from bakeoff.results.metric import Better, Role, Unit
from bakeoff.results.metrics.declaration import Latency, TrialData, TrialMetric
from bakeoff.results.metrics.kinds import why_no_reasoning
from bakeoff.results.metrics.latency import per_token
from bakeoff.results.metrics.throughput import per_second
from bakeoff.results.metrics.values import Value, absent
from bakeoff.results.records import Window
from bakeoff.results.requests import Flags, Floats, Requests, inside
from bakeoff.results.units import NS_PER_S


def thinking_s(requests: Requests) -> Floats:
    """Time from the first to the last chunk of reasoning; NaN unless there are two."""
    chunks, found = requests.chunks, np.full(len(requests), np.nan)
    places = np.flatnonzero(requests.is_reasoning)
    owners, firsts, counts = np.unique(chunks.request[places], return_index=True, return_counts=True)
    first_ns, last_ns = chunks.ns[places[firsts]], chunks.ns[places[firsts + counts - 1]]
    found[owners] = np.where(counts > 1, (last_ns - first_ns) / NS_PER_S, np.nan)
    return found


def reasoning_tpot_s(requests: Requests) -> Floats:
    """Mean time per token of reasoning, over gaps within stretches of it; NaN if there is no such gap."""
    return _pace_s(requests, requests.is_reasoning)


def visible_tpot_s(requests: Requests) -> Floats:
    """Mean time per visible token, over gaps within stretches of them; NaN if there is no such gap."""
    return _pace_s(requests, ~requests.is_reasoning)


def reasoning_tokens(requests: Requests) -> Ints:
    """Tokens of reasoning by the engine's count, else those of the chunks."""
    counted, chunks = requests.ints("reasoning_tokens"), requests.chunks
    return np.where(counted == UNKNOWN, chunks.sums(np.where(requests.is_reasoning, chunks.tokens, 0)), counted)


def visible_tokens_inside(requests: Requests, window: Window) -> int:
    """Number of visible tokens that arrived within the window."""
    chunks = requests.chunks
    return int(chunks.tokens[inside(chunks.ns, window) & ~requests.is_reasoning].sum())


def _pace_s(requests: Requests, is_wanted: Flags) -> Floats:
    """Time per token of one kind of chunks, over the gaps within stretches of them; one read counts once."""
    chunks = requests.chunks
    if not len(chunks.ns):
        return np.full(len(requests), np.nan)
    begins = np.ones(len(chunks.ns), dtype=bool)
    begins[1:] = (np.diff(chunks.request) != 0) | (np.diff(is_wanted.astype(np.int8)) != 0)
    stretch_ns = chunks.ns[begins][np.cumsum(begins) - 1]  # when each chunk's stretch began
    gaps_ns = np.where(begins | ~is_wanted, 0, np.diff(chunks.ns, prepend=0))
    later = np.where(is_wanted & (chunks.ns > stretch_ns), chunks.tokens, 0)
    pace_s = per_token(chunks.sums(gaps_ns) / NS_PER_S, chunks.sums(later))
    return np.where(requests.placed, pace_s, np.nan)


def _if_reasoning(compute: Callable[[TrialData], Value]) -> Callable[[TrialData], Value]:
    """The same metric, absent unless an answer reasons."""

    def of(data: TrialData) -> Value:
        why = why_no_reasoning(data)
        return compute(data) if why is None else absent(why)

    return of


def _answers(data: TrialData) -> Requests:
    """Successful requests planned in the window; none if no answer reasons."""
    return Requests() if why_no_reasoning(data) else data.inside.ok


def _hidden_tokens(requests: Requests) -> Ints:
    return np.maximum(requests.ints("hidden_tokens"), 0)


def _mean(tokens_of: Callable[[Requests], Ints]) -> Callable[[TrialData], Value]:
    def of(data: TrialData) -> Value:
        counts = tokens_of(_answers(data))
        return Value(int(counts.sum()) / len(counts)) if len(counts) else absent("no request succeeded")

    return _if_reasoning(of)


def _visible_rate(data: TrialData) -> Value:
    return per_second(visible_tokens_inside(data.load, data.window), data.window)


def _share(data: TrialData) -> Value:
    answers = _answers(data)
    tokens = int((answers.chunks.total_tokens + _hidden_tokens(answers)).sum())
    return Value(int(reasoning_tokens(answers).sum()) / tokens) if tokens else absent("no token arrived")


_PACED = "a request planned in the window that has such a gap; or a failed one"
_ANSWER = "a successful request planned in the window"
LATENCIES = (
    Latency(
        key="thinking",
        title="thinking",
        definition="time from the first to the last chunk of reasoning",
        observation="a request planned in the window with two chunks of reasoning; or a failed one",
        of_request=thinking_s,
        why_absent=why_no_reasoning,
    ),
    Latency(
        key="reasoning_tpot",
        title="TPOT of reasoning",
        definition="mean time per token of reasoning, over the gaps between two chunks of it",
        observation=_PACED,
        of_request=reasoning_tpot_s,
        why_absent=why_no_reasoning,
        roles=(Role.PER_TOKEN,),
    ),
    Latency(
        key="visible_tpot",
        title="TPOT of visible tokens",
        definition="mean time per token of text or tool call, over the gaps between two chunks of them",
        observation=_PACED,
        of_request=visible_tpot_s,
        why_absent=why_no_reasoning,
        roles=(Role.PER_TOKEN,),
    ),
)
METRICS = (
    TrialMetric(
        name="visible_tokens_per_s",
        title="visible output",
        unit=Unit.TOKENS_PER_SECOND,
        better=Better.HIGHER,
        definition="tokens of text and tool calls that arrived inside the window, over its length",
        observation="a visible token that arrived",
        roles=frozenset({Role.PER_TOKEN}),
        of=_if_reasoning(_visible_rate),
        count=lambda data: 0 if why_no_reasoning(data) else visible_tokens_inside(data.load, data.window),
    ),
    TrialMetric(
        name="reasoning_tokens",
        title="reasoning tokens",
        unit=Unit.COUNT,
        better=Better.LOWER,
        definition="mean tokens of reasoning of an answer, streamed or hidden, by the engine's count where it has one",
        observation=_ANSWER,
        of=_mean(reasoning_tokens),
        count=lambda data: len(_answers(data)),
    ),
    TrialMetric(
        name="hidden_tokens",
        title="hidden tokens",
        unit=Unit.COUNT,
        better=Better.LOWER,
        definition="mean tokens of reasoning of an answer that the engine counted and did not stream",
        observation=_ANSWER,
        of=_mean(_hidden_tokens),
        count=lambda data: len(_answers(data)),
    ),
    TrialMetric(
        name="reasoning_share",
        title="reasoning share",
        unit=Unit.SHARE,
        better=Better.LOWER,
        definition="tokens of reasoning over all tokens of the answers",
        observation=_ANSWER,
        of=_if_reasoning(_share),
        count=lambda data: len(_answers(data)),
    ),
)
