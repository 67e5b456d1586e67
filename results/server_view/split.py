"""Split of the mean E2E from send into queue, prefill, decode and the rest.

Where an engine does not report prefill it is TTFT minus queue; where it does not report decode, E2E minus TTFT.
"""

from collections.abc import Mapping

import msgspec

from bakeoff.results.metrics.values import Value, absent

_MIN_REMAINDER = -0.01
"""As a fraction of the client's mean. Below it the engine's mean exceeds the client's, so it counts other requests."""


_OF_OTHERS = "the engine's mean is longer than the client's: it counts other requests too"


class Part(msgspec.Struct, frozen=True):
    """One component of the split.

    Attributes:
        name: column in data frames, key in JSON.
        title: heading.
        meaning: what it covers.
    """

    name: str
    title: str
    meaning: str


PARTS = (
    Part("split_queue_s", "queue", "in the engine, until first scheduled"),
    Part("split_prefill_s", "prefill", "from then to the first token"),
    Part("split_decode_s", "decode", "from then to the last token"),
    Part("split_other_s", "rest of the server", "the engine's E2E minus these: front end and unreported phases"),
    Part("split_outside_s", "client and network", "the client's E2E from send minus the engine's: HTTP, sockets"),
    Part("split_rest_s", "unattributed", "the rest of the client's E2E if the engine reports no E2E"),
)  # fmt: skip


def split(means: Mapping[str, Value]) -> dict[str, Value]:
    """Split the client's mean E2E from send; the parts sum to it if all are known.

    Args:
        means: ``server_…_mean_s`` and ``client_e2e_mean_s``.
    """
    queue, prefill, decode = (means[f"server_{name}_mean_s"] for name in ("queue", "prefill", "decode"))
    ttft, e2e, client = means["server_ttft_mean_s"], means["server_e2e_mean_s"], means["client_e2e_mean_s"]
    prefill = _or_difference(prefill, queue, ttft)
    decode = _or_difference(decode, ttft, e2e)
    longest = max(part.value or 0.0 for part in (queue, prefill, decode))
    if client.value is not None and longest > client.value * (1 - _MIN_REMAINDER):
        return dict.fromkeys((part.name for part in PARTS), absent(_OF_OTHERS))  # a part is more than the whole
    phases = sum(part.value or 0.0 for part in (queue, prefill, decode))
    if all(part.value is None for part in (queue, prefill, decode, e2e)):
        nothing = absent(e2e.reason or "")
        return dict.fromkeys((part.name for part in PARTS), nothing)
    parts = {"split_queue_s": queue, "split_prefill_s": prefill, "split_decode_s": decode}
    if e2e.value is None:
        rest = _remainder(client, phases)
        return {**parts, "split_other_s": e2e, "split_outside_s": e2e, "split_rest_s": rest}
    other = Value(max(0.0, e2e.value - phases))
    outside = _remainder(client, e2e.value)
    return {**parts, "split_other_s": other, "split_outside_s": outside, "split_rest_s": absent("all is attributed")}


def _or_difference(reported: Value, start: Value, end: Value) -> Value:
    """The reported mean, or the difference of two other reported means."""
    if reported.value is not None or start.value is None or end.value is None:
        return reported
    return Value(max(0.0, end.value - start.value))


def _remainder(client: Value, server_s: float) -> Value:
    if client.value is None:
        return client
    rest_s = client.value - server_s
    if rest_s < _MIN_REMAINDER * client.value:
        return absent(_OF_OTHERS)
    return Value(max(0.0, rest_s))
