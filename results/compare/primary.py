"""The primary metric and load of a verdict, fixed before any data is seen; all other metrics are guardrails.

Output tokens per second at the highest closed-loop level. If every level is open loop, where the schedule sets the
rate, the median TTFT at the last level. Answers without tokens, such as embeddings, have requests per second instead,
and answers that are not streamed the median time of their end.
"""

from collections.abc import Container, Iterable

from bakeoff.results.records import Load


def primary_load(loads: Iterable[Load]) -> Load | None:
    """Choose the primary load, not of one class alone if there are others; None if there are no loads."""
    every = list(loads)
    all_loads = [load for load in every if load.only is None] or every
    closed = [load for load in all_loads if load.concurrency is not None]
    if closed:
        return max(closed, key=lambda load: load.concurrency or 0)
    return all_loads[-1] if all_loads else None


def primary_metric(load: Load, known: Container[str] = ()) -> str:
    """Return the name of the primary metric at a load.

    Args:
        load: the load.
        known: metrics that any trial has; empty if unknown.
    """
    usual, whole = (
        ("ttft_p50_s", "e2e_p50_s") if load.concurrency is None else ("output_tokens_per_s", "requests_per_s")
    )
    return whole if whole in known and usual not in known else usual
