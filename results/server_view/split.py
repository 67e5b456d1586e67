"""Where a request's time went, on average: the parts of the mean E2E from send that are known.

Prefill that an engine does not tell is taken as its TTFT minus its queue, decode as its E2E minus its TTFT.
"""

from collections.abc import Mapping

import msgspec

from results.metrics.values import Value, absent

_LEAST_REST = -0.01
"""Of the client's mean. An engine that says more than that beyond what the client saw counts other requests too."""


class Part(msgspec.Struct, frozen=True):
    """One part of the split.

    Attributes:
        name: key in frames and JSON.
        title: what it is called.
        meaning: what it holds.
    """

    name: str
    title: str
    meaning: str


PARTS = (
    Part("split_queue_s", "queue", "in the engine, before it was scheduled first"),
    Part("split_prefill_s", "prefill", "from there to its first token"),
    Part("split_decode_s", "decode", "from there to its last token"),
    Part("split_other_s", "rest of the server", "the engine's E2E without these: its front end, what it does not tell"),
    Part("split_outside_s", "client and network", "the client's E2E from send without the engine's: HTTP, sockets"),
    Part("split_rest_s", "not told apart", "the rest of the client's E2E, where the engine tells no E2E"),
)  # fmt: skip


def split(means: Mapping[str, Value]) -> dict[str, Value]:
    """The parts of the client's mean E2E from send; they sum to it where all are known.

    Args:
        means: ``server_…_mean_s`` and ``client_e2e_mean_s``.
    """
    queue, prefill, decode = (means[f"server_{name}_mean_s"] for name in ("queue", "prefill", "decode"))
    ttft, e2e, client = means["server_ttft_mean_s"], means["server_e2e_mean_s"], means["client_e2e_mean_s"]
    prefill = _or_between(prefill, queue, ttft)
    decode = _or_between(decode, ttft, e2e)
    phases = sum(part.value or 0.0 for part in (queue, prefill, decode))
    if all(part.value is None for part in (queue, prefill, decode, e2e)):
        nothing = absent(e2e.reason or "")
        return dict.fromkeys((part.name for part in PARTS), nothing)
    known = {"split_queue_s": queue, "split_prefill_s": prefill, "split_decode_s": decode}
    if e2e.value is None:
        rest = _beyond(client, phases)
        return {**known, "split_other_s": e2e, "split_outside_s": e2e, "split_rest_s": rest}
    other = Value(max(0.0, e2e.value - phases))
    told = absent("all of it is told apart")
    return {**known, "split_other_s": other, "split_outside_s": _beyond(client, e2e.value), "split_rest_s": told}


def _or_between(told: Value, start: Value, end: Value) -> Value:
    """What the engine tells, or the time between two means that it does tell."""
    if told.value is not None or start.value is None or end.value is None:
        return told
    return Value(max(0.0, end.value - start.value))


def _beyond(client: Value, server_s: float) -> Value:
    if client.value is None:
        return client
    rest_s = client.value - server_s
    if rest_s < _LEAST_REST * client.value:
        return absent("the engine's mean is longer than the client's: it counts other requests too")
    return Value(max(0.0, rest_s))
