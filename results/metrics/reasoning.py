"""How long a model thinks before it shows a word, and how fast either comes.

A streamed token is reasoning, or visible: of text or of a tool call. Reasoning that the engine counts and does not
stream is hidden. All of it is absent unless an answer under load reasons.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise

from bakeoff.results.metric import Better, Role, Unit
from bakeoff.results.metrics.declaration import Latency, TrialData, TrialMetric
from bakeoff.results.metrics.kinds import chunks_of, merged, why_no_reasoning
from bakeoff.results.metrics.throughput import per_second
from bakeoff.results.metrics.values import Value, absent
from bakeoff.results.records import Outcome, RequestRecord, TokenSource, Window
from bakeoff.results.units import NS_PER_S


def thinking_s(request: RequestRecord) -> float | None:
    """Time from the first to the last chunk of reasoning; None unless there are two."""
    times = [t_ns for t_ns, _, is_reasoning in chunks_of(request) if is_reasoning]
    return (times[-1] - times[0]) / NS_PER_S if len(times) > 1 else None


def reasoning_tpot_s(request: RequestRecord) -> float | None:
    """Mean time per token of reasoning, over gaps within stretches of it; None if there is no such gap."""
    return _pace_s(request, is_reasoning=True)


def visible_tpot_s(request: RequestRecord) -> float | None:
    """Mean time per visible token, over gaps within stretches of them; None if there is no such gap."""
    return _pace_s(request, is_reasoning=False)


def reasoning_tokens(request: RequestRecord) -> int:
    """Tokens of reasoning by the engine's count, else those of the chunks."""
    if request.reasoning_tokens is not None:
        return request.reasoning_tokens
    return sum(tokens for _, tokens, is_reasoning in chunks_of(request) if is_reasoning)


def visible_tokens_inside(requests: Sequence[RequestRecord], window: Window) -> int:
    """Number of visible tokens that arrived within the window."""
    return sum(
        tokens
        for request in requests
        for t_ns, tokens, is_reasoning in chunks_of(request)
        if not is_reasoning and window.holds(t_ns)
    )


def _pace_s(request: RequestRecord, *, is_reasoning: bool) -> float | None:
    if request.token_source is TokenSource.UNPLACED:
        return None
    span_ns, later_tokens = 0, 0
    for stretch in _stretches(request, is_reasoning=is_reasoning):
        for (before_ns, _), (after_ns, tokens) in pairwise(stretch):
            span_ns += after_ns - before_ns
            later_tokens += tokens
    return span_ns / NS_PER_S / later_tokens if later_tokens else None


def _stretches(request: RequestRecord, *, is_reasoning: bool) -> Iterator[list[tuple[int, int]]]:
    """Times and tokens of consecutive chunks of one kind, with those of one read merged."""
    for is_wanted, stretch in groupby(chunks_of(request), key=lambda chunk: chunk[2] is is_reasoning):
        if is_wanted:
            yield merged((t_ns, tokens) for t_ns, tokens, _ in stretch)


def _if_reasoning(compute: Callable[[TrialData], Value]) -> Callable[[TrialData], Value]:
    """The same metric, absent unless an answer reasons."""

    def of(data: TrialData) -> Value:
        why = why_no_reasoning(data)
        return compute(data) if why is None else absent(why)

    return of


def _answers(data: TrialData) -> list[RequestRecord]:
    """Successful requests planned in the window; none if no answer reasons."""
    return [] if why_no_reasoning(data) else [r for r in data.inside if r.outcome is Outcome.OK]


def _mean(tokens_of: Callable[[RequestRecord], int]) -> Callable[[TrialData], Value]:
    def of(data: TrialData) -> Value:
        counts = [tokens_of(request) for request in _answers(data)]
        return Value(sum(counts) / len(counts)) if counts else absent("no request succeeded")

    return _if_reasoning(of)


def _visible_rate(data: TrialData) -> Value:
    return per_second(visible_tokens_inside(data.load, data.window), data.window)


def _share(data: TrialData) -> Value:
    answers = _answers(data)
    tokens = sum(request.total_chunk_tokens + (request.hidden_tokens or 0) for request in answers)
    return Value(sum(map(reasoning_tokens, answers)) / tokens) if tokens else absent("no token arrived")


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
        of=_mean(lambda request: request.hidden_tokens or 0),
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
