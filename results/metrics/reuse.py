"""Reuse of generated tokens: how much of an answer the next call of its conversation finds in the prefix cache.

An engine keeps the keys and values of the tokens that it generates. The next call of the conversation can use them if
its prompt holds that answer, token by token: a recorded answer in its place, or the same text in other tokens, ends the
common prefix where the answer begins.
"""

from collections.abc import Iterator
from typing import NamedTuple

from bakeoff.results.metric import Better, Role, Unit
from bakeoff.results.metrics.declaration import Needs, TrialData, TrialMetric
from bakeoff.results.metrics.requests import calls_before
from bakeoff.results.metrics.values import Value, absent
from bakeoff.results.records import Outcome
from bakeoff.results.requests import Requests


class Reuse(NamedTuple):
    """An answer that a later call holds.

    Attributes:
        generated: its tokens.
        cached: those of them that the call found in the cache.
    """

    generated: int
    cached: int


def reuses(load: Requests, inside: Requests) -> Iterator[Reuse]:
    """The answers that the calls ``inside`` hold, each of the agent's previous call, as far as both are known.

    Args:
        load: all requests under load.
        inside: the calls that count.
    """
    if not load.ints("turn").any():
        return
    sent = sorted(load, key=lambda each: each.sent_ns or each.planned_ns)
    before_of = zip(sent, calls_before(sent), strict=True)
    previous = {request.index: sent[place] for request, place in before_of if place is not None}
    for request in inside:
        before = previous.get(request.index)
        if request.cached_tokens is None or request.prompt_tokens is None:
            continue
        if before is None or before.outcome is not Outcome.OK or not before.prompt_tokens or not before.output_tokens:
            continue
        if request.prompt_tokens < before.prompt_tokens + before.output_tokens:  # the history was compacted
            continue
        cached = min(before.output_tokens, max(0, request.cached_tokens - before.prompt_tokens))
        yield Reuse(before.output_tokens, cached)


def _all(data: TrialData) -> list[Reuse]:
    return list(reuses(data.load, data.inside))


def _share(data: TrialData) -> Value:
    found = data.once(_all)
    if not found:
        several = data.load.ints("turn").any()
        return absent("the engine does not report cached tokens" if several else "no session has several requests")
    return Value(sum(reuse.cached for reuse in found) / sum(reuse.generated for reuse in found))


METRICS = (
    TrialMetric(
        name="generated_reuse_share",
        title="generated tokens reused",
        unit=Unit.SHARE,
        better=Better.HIGHER,
        definition="share of the tokens of answers that the next call of the conversation found in the prefix cache",
        observation="an answer whose conversation went on with a call planned in the window",
        roles=frozenset({Role.IF_PRESENT}),
        needs=Needs.LOAD,
        of=_share,
        count=lambda data: len(data.once(_all)),
    ),
)
