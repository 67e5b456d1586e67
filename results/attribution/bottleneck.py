"""What a trial's attribution means: its bottleneck, and what would change without a part."""

from enum import StrEnum

import msgspec

from bakeoff.results.attribution.catalogue import Latency, Part
from bakeoff.results.attribution.roofline import PHASE_OF, Bound, Ceiling, PhaseWork, Roofline, StepPhase
from bakeoff.results.attribution.trial import Attribution

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


class Change(StrEnum):
    """What shortens a part."""

    REMOVED = "removed"
    TWICE_AS_FAST = "twice_as_fast"
    TWICE_THE_BANDWIDTH = "twice_the_bandwidth"


class WhatIf(msgspec.Struct, frozen=True):
    """The mean latency if one part were shorter and all else stayed.

    Attributes:
        part: which.
        change: what shortens it.
        kept: factor on the part: 0 removes it, 0.5 halves it.
        latency_s: the mean that is left.
        share: of the mean latency that is saved.
    """

    part: Part
    change: Change
    kept: float
    latency_s: float
    share: float


_TWICE = 2.0
_OWN_WORK = frozenset({*PHASE_OF, Part.PREFILL_PHASE, Part.DECODE_PHASE})
"""Parts in which the model computes for the request itself; the others are waits."""


class PhaseLimit(msgspec.Struct, frozen=True):
    """A phase beside the limits of the machine."""

    phase: StepPhase
    work: PhaseWork
    ceiling: Ceiling

    @property
    def bound(self) -> Bound:
        """The limit that decides how long the phase takes."""
        return self.work.bound(self.ceiling)


def phase_limit(attribution: Attribution, part: Part) -> PhaseLimit | None:
    """How the phase behind a part stands to the limits; None for other parts, or where work or limits are unknown."""
    roofline, phase = attribution.roofline, PHASE_OF.get(part)
    if phase is None or not isinstance(roofline, Roofline) or isinstance(roofline.ceiling, str):
        return None
    work = roofline.phases.get(phase)
    return None if work is None else PhaseLimit(phase, work, roofline.ceiling)


def bottleneck(attribution: Attribution, latency: Latency = Latency.E2E) -> Bottleneck | str:
    """The largest part, or why none is named."""
    if (reason := attribution.unknown) is not None:
        return reason
    shares = attribution.shares(latency)
    first, *others = shares
    notable = {part: shares[part] for part in others if shares[part] >= NOTABLE_SHARE}
    return Bottleneck(first, shares[first], attribution.means[latency][first], notable)


def what_if(attribution: Attribution, latency: Latency = Latency.E2E) -> list[WhatIf]:
    """One entry per part, the largest saving first; empty where no bottleneck is named.

    The part is taken away and all else stays. In an engine, less of one part changes the others: a shorter queue lets
    more requests run at a time.
    """
    if not attribution.means:
        return []
    whole = attribution.mean_s(latency)
    cases: list[WhatIf] = []
    for part, mean_s in attribution.means[latency].items():
        if part is not Part.UNATTRIBUTED:
            change, kept = _change(attribution, part)
            saved = mean_s * (1 - kept)
            cases.append(WhatIf(part, change, kept, whole - saved, saved / whole))
    return sorted(cases, key=lambda case: -case.share)


def _change(attribution: Attribution, part: Part) -> tuple[Change, float]:
    """What shortens a part, and the share of it that is left: waits vanish, the model's own work takes half the time.

    Of a decode that is bound by memory only the time that its bytes account for is halved.
    """
    if part not in _OWN_WORK:
        return Change.REMOVED, 0.0
    limit = phase_limit(attribution, part)
    if part is Part.DECODE and limit is not None and limit.bound is Bound.MEMORY:
        return Change.TWICE_THE_BANDWIDTH, 1 - limit.work.bandwidth_gain(limit.ceiling, _TWICE)
    return Change.TWICE_AS_FAST, 1 / _TWICE
