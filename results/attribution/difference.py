"""Which parts a change in latency came from: two profiled trials of the same load, part by part."""

from collections.abc import Mapping, Sequence

import msgspec

from bakeoff.results.attribution.catalogue import Latency, Part
from bakeoff.results.attribution.parts import merge_interference
from bakeoff.results.attribution.trial import Attribution
from bakeoff.results.errors import NoEvidence, NotComparable

_COMPUTING = frozenset({
    Part.PREFILL, Part.STALL, Part.DECODE, Part.INTERFERENCE, Part.BUBBLES, Part.PREFILL_PHASE, Part.DECODE_PHASE,
})  # fmt: skip
_OUTSIDE = frozenset({
    Part.NETWORK_IN, Part.FRONT_END, Part.QUEUE, Part.COLLECT, Part.DETOKENISE, Part.NETWORK_OUT,
    Part.ARRIVAL, Part.HANDOVER, Part.DELIVERY,
})  # fmt: skip
"""With the queue: that of spans begins when the engine takes the request, which is after the step in progress."""


class Difference(msgspec.Struct, frozen=True):
    """B against A at one load.

    Attributes:
        load: label.
        engines: labels of A and B.
        before_s: mean seconds of each part in A, by latency.
        after_s: the same in B.
        merged: whether parts were merged, because one side does not tell them apart.
    """

    load: str
    engines: tuple[str, str]
    before_s: dict[Latency, dict[Part, float]]
    after_s: dict[Latency, dict[Part, float]]
    merged: bool = False

    def total_s(self, latency: Latency) -> tuple[float, float]:
        """The mean latency of A and of B."""
        return sum(self.before_s[latency].values()), sum(self.after_s[latency].values())

    def changes_s(self, latency: Latency) -> dict[Part, float]:
        """Change of each part, the largest first."""
        changes = {part: self.after_s[latency][part] - before for part, before in self.before_s[latency].items()}
        return dict(sorted(changes.items(), key=lambda item: -abs(item[1])))


def differences(a: Sequence[Attribution], b: Sequence[Attribution]) -> list[Difference]:
    """Compare the profiled trials of two sides at each load that both have, in the order of A.

    Args:
        a: of one engine, the baseline.
        b: of one engine, the candidate.

    Raises:
        NoEvidence: they have no load in common at which both have attributed requests.
    """
    before = [trial for trial in a if trial.means]
    after = {trial.record.load.label: trial for trial in b if trial.means}
    pairs = [(trial, after[load]) for trial in before if (load := trial.record.load.label) in after]
    if not pairs:
        raise NoEvidence("the two sides have no profiled trial at the same load; profile both with the same experiment")
    return [_difference(old, new) for old, new in pairs]


def _difference(old: Attribution, new: Attribution) -> Difference:
    sides, merged = [old.means, new.means], True
    if old.parts != new.parts:
        sides = [_phases(means) for means in sides]
    elif old.absent.keys() != new.absent.keys():
        sides = [{latency: merge_interference(parts) for latency, parts in means.items()} for means in sides]
    else:
        merged = False
    return Difference(old.record.load.label, (old.record.engine, new.record.engine), *sides, merged=merged)


def _phases(means: Mapping[Latency, Mapping[Part, float]]) -> dict[Latency, dict[Part, float]]:
    """Parts that steps and spans both tell apart; they sum to the same latency."""
    prefill_s = _sum(means[Latency.TTFT], _COMPUTING)
    return {
        latency: {
            Part.CLIENT: by_part[Part.CLIENT],
            Part.OUTSIDE: _sum(by_part, _OUTSIDE),
            Part.PREFILL_PHASE: prefill_s,
            Part.DECODE_PHASE: _sum(by_part, _COMPUTING) - prefill_s,
            Part.UNATTRIBUTED: by_part[Part.UNATTRIBUTED],
        }
        for latency, by_part in means.items()
    }


def _sum(by_part: Mapping[Part, float], parts: frozenset[Part]) -> float:
    return sum(seconds for part, seconds in by_part.items() if part in parts)


def side(attributions: Sequence[Attribution], engine: str, run: str) -> list[Attribution]:
    """The profiled trials of one engine.

    Args:
        attributions: of a run.
        engine: label; empty for the run's only engine with profiled trials.
        run: names the run in messages.

    Raises:
        NoEvidence: the run has no profiled trial, or none of that engine.
        NotComparable: it has profiled trials of several engines, and none is named.
    """
    labels = list(dict.fromkeys(trial.record.engine for trial in attributions))
    if not labels or (engine and engine not in labels):
        what = f"of {engine}" if engine else "at all"
        raise NoEvidence(f"{run} has no profiled trial {what}; make one with bakeoff profile")
    if not engine and len(labels) > 1:
        known = ", ".join(f"{run}@{label}" for label in labels)
        raise NotComparable(f"{run} has profiled trials of several engines; name one: {known}")
    return [trial for trial in attributions if trial.record.engine == (engine or labels[0])]
