"""The one metric at the one load that a verdict speaks of, named before anybody looks: the rest are guardrails.

Output tokens per second at the highest closed-loop level; or, when every level is open loop (where the schedule and not
the engine sets the rate), the median TTFT at the last one.
"""

from collections.abc import Iterable

from results.records import Load


def primary_load(loads: Iterable[Load]) -> Load | None:
    """The load, of those given; None of none."""
    known = list(loads)
    closed = [load for load in known if load.concurrency is not None]
    if closed:
        return max(closed, key=lambda load: load.concurrency or 0)
    return known[-1] if known else None


def primary_metric(load: Load) -> str:
    """Its name in the catalogue, at that load."""
    return "ttft_p50_s" if load.concurrency is None else "output_tokens_per_s"
