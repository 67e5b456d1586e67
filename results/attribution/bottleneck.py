"""What a trial's attribution means: its bottleneck, and what would change without a part."""

import msgspec

from results.attribution.catalogue import Latency, Part
from results.attribution.trial import Attribution

NOTABLE_SHARE = 0.1
"""Share of the mean latency from which a part besides the largest is mentioned."""


class Bottleneck(msgspec.Struct, frozen=True):
    """The largest part of a mean latency.

    Attributes:
        part: which.
        share: of the mean latency.
        seconds: its mean.
        others: other parts of at least :data:`NOTABLE_SHARE`, with their shares.
    """

    part: Part
    share: float
    seconds: float
    others: dict[Part, float]


class WhatIf(msgspec.Struct, frozen=True):
    """The mean latency if one part were shorter and all else stayed.

    Attributes:
        part: which.
        kept: factor on the part: 0 removes it, 0.5 halves it.
        latency_s: the mean that is left.
        share: of the mean latency that is saved.
    """

    part: Part
    kept: float
    latency_s: float
    share: float


_KEPT = {
    Part.CLIENT: 0.0, Part.NETWORK_IN: 0.0, Part.FRONT_END: 0.0, Part.QUEUE: 0.0, Part.PREFILL: 0.5, Part.STALL: 0.0,
    Part.DECODE: 0.5, Part.INTERFERENCE: 0.0, Part.BUBBLES: 0.0, Part.DETOKENISE: 0.0, Part.NETWORK_OUT: 0.0,
    Part.ARRIVAL: 0.0, Part.HANDOVER: 0.0, Part.PREFILL_PHASE: 0.5, Part.DECODE_PHASE: 0.5, Part.DELIVERY: 0.0,
}  # fmt: skip
"""Waits can vanish; the model's own work can be twice as fast."""


def bottleneck(attribution: Attribution, latency: Latency = Latency.E2E) -> Bottleneck | None:
    """The largest part; None without requests, or without the server's record."""
    if not attribution.requests or attribution.missing:
        return None
    shares = attribution.shares(latency)
    first, *others = shares
    notable = {part: shares[part] for part in others if shares[part] >= NOTABLE_SHARE}
    return Bottleneck(first, shares[first], attribution.means[latency][first], notable)


def what_if(attribution: Attribution, latency: Latency = Latency.E2E) -> list[WhatIf]:
    """One entry per part, the largest saving first; empty without requests.

    The part is taken away and all else stays. In an engine, less of one part changes the others: a shorter queue lets
    more requests run at a time.
    """
    if not attribution.requests:
        return []
    whole = attribution.mean_s(latency)
    means = attribution.means[latency]
    saved = {part: means[part] * (1 - kept) for part, kept in _KEPT.items() if part in means}
    ordered = sorted(saved, key=lambda part: -saved[part])
    return [WhatIf(part, _KEPT[part], whole - saved[part], saved[part] / whole) for part in ordered]
