"""The words of a cache gap."""

from bakeoff.results.records import AssumedRouting, CacheCause, CacheGaps
from bakeoff.results.text.format import ABSENT, percent_text

CAUSES: dict[CacheCause, str] = {
    CacheCause.OFF: "caching is off",
    CacheCause.EVICTION: "evicted",
    CacheCause.ROUTING: "at another address",
    CacheCause.GENERATED: "generated, not reused",
    CacheCause.SALT: "other salt",
    CacheCause.ROUNDING: "block rounding",
    CacheCause.TEMPLATE: "template or tokenizer",
}
"""Heading of each cause."""
_ROUTING = {
    AssumedRouting.BY_SESSION: "replicas not named in answers; the hits fit a router that keeps sessions together",
    AssumedRouting.IN_TURN: "replicas not named in answers; the hits fit a router that takes them in turn",
}
_MIN_POINTS = 0.05
"""Smaller parts are not mentioned, in points."""


def points_text(share: float | None) -> str:
    """A difference of shares in points: ``3.2``."""
    if share is None:
        return ABSENT
    text = f"{100 * share:.1f}"
    return "0.0" if text == "-0.0" else text.replace("-", "−")


def gap_text(gaps: CacheGaps) -> str:
    """The gap in one line: ``61 % of the prompt tokens hit, 94 % could; points lost: evicted 20.1, …``."""
    gap = gaps.whole
    parts = sorted(gap.parts.items(), key=lambda item: -item[1])
    lost = [f"{CAUSES[cause]} {points_text(part)}" for cause, part in parts if 100 * part >= _MIN_POINTS]
    if gap.unexplained is not None:
        lost.append(f"unexplained {points_text(gap.unexplained)}")
    hit = "hits are not reported" if gap.observed is None else f"{percent_text(gap.observed)} of the prompt tokens hit"
    assumed = f"; {_ROUTING[gaps.assumed_routing]}" if gaps.assumed_routing else ""
    return f"{hit}, {percent_text(gap.ideal)} could; points lost: {', '.join(lost) or 'none'}{assumed}"


def cache_text(gaps: CacheGaps) -> str:
    """The simulated cache: ``blocks of 16 tokens, 125,568 tokens``, and the assumed routing."""
    blocks = f"blocks of {gaps.block_tokens} tokens{' (assumed)' if gaps.is_assumed else ''}"
    size = "no limit known" if gaps.capacity_tokens is None else f"{gaps.capacity_tokens:,} tokens"
    return ", ".join([blocks, size, *([_ROUTING[gaps.assumed_routing]] if gaps.assumed_routing else [])])
