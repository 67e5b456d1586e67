"""GuideLLM's statistics: summaries of weighted samples whose percentiles are always sample values.

A weight is how many tokens a value stands for (ITL, TPOT), or for how long it held (rates, requests in flight).
Percentile q is the smallest value whose share of the weight, with all smaller ones, reaches q: the inverse of the
empirical distribution function (type 1 of Hyndman and Fan, weighted).
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

QUANTILES = {
    "p001": 0.001, "p01": 0.01, "p05": 0.05, "p10": 0.1, "p25": 0.25, "p50": 0.5,
    "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999,
}  # fmt: skip
MERGE_S = 1e-4
"""Events closer together than this are merged."""
_LAST_S = 1e-6
"""Duration assigned to an event at the end of the window."""

Weighted = tuple[float, float]
"""A value and its weight."""


class Summary(msgspec.Struct, frozen=True):
    """One summary as its report file stores it; all 0 for an empty sample."""

    mean: float = 0.0
    median: float = 0.0
    mode: float = 0.0
    variance: float = 0.0
    std_dev: float = 0.0
    min: float = 0.0
    max: float = 0.0
    count: int = 0
    total_sum: float = 0.0
    percentiles: dict[str, float] = msgspec.field(default_factory=lambda: dict.fromkeys(QUANTILES, 0.0))


def summary(sample: Iterable[Weighted], count: int | None = None) -> Summary:
    """Summary of a weighted sample; ``count`` is the sum of the weights unless given."""
    pairs = np.array(sorted(sample), dtype=np.float64).reshape(-1, 2)
    count = round(float(pairs[:, 1].sum())) if count is None else count
    if len(pairs) == 0:
        return Summary(count=count)
    values, inverse = np.unique(pairs[:, 0], return_inverse=True)
    weights = np.bincount(inverse, weights=pairs[:, 1])
    values, weights = values[weights > 0], weights[weights > 0]
    if len(values) == 0:
        values, weights = np.unique(pairs[:, 0]), np.ones(len(np.unique(pairs[:, 0])))
    shares = weights / weights.sum()
    mean = float((values * shares).sum())
    variance = float(((values - mean) ** 2 * shares).sum())
    reached = np.cumsum(shares)
    percentiles = {
        name: float(values[min(np.searchsorted(reached, q), len(values) - 1)]) for name, q in QUANTILES.items()
    }
    return Summary(
        mean=mean,
        median=percentiles["p50"],
        mode=float(values[np.argmax(shares)]),
        variance=variance,
        std_dev=variance**0.5,
        min=float(values[0]),
        max=float(values[-1]),
        count=count,
        total_sum=mean * count,
        percentiles=percentiles,
    )


def plain(values: Iterable[float]) -> Summary:
    """Summary with equal weights."""
    return summary([(value, 1.0) for value in values])


def rates(events: Iterable[Weighted], window: tuple[float, float] | None = None) -> Summary:
    """Summary of event rates per second.

    Each event is given the time from half-way to the event before it until half-way to the next one; its rate is its
    weight over that time, and weighs as long. So the mean is the sum of the weights over the length of the window.

    Args:
        events: time in seconds and weight.
        window: start and end; events outside do not count.
    """
    inside = list(events)
    if window is not None:
        inside = [(t, w) for t, w in inside if window[0] <= t <= window[1]] + [(window[0], 0.0), (window[1], 0.0)]
    times, weights = _merged(inside)
    if len(times) < 2:
        return Summary(count=len(times))
    middles = (times[1:] + times[:-1]) / 2
    spans = np.diff(np.concatenate(([times[0]], middles, [times[-1]])))
    spans[-1] = max(spans[-1], _LAST_S)
    return summary(zip((weights / spans).tolist(), spans.tolist(), strict=True), round(float(weights.sum())))


def in_flight(spans: Sequence[tuple[float, float, float]], window: tuple[float, float] | None = None) -> Summary:
    """Summary of the amount in flight, weighted by duration.

    Args:
        spans: start, end and weight.
        window: start and end; what lies outside does not count.
    """
    changes = [(start, weight) for start, _, weight in spans] + [(end, -weight) for _, end, weight in spans]
    times, steps = _merged(changes)
    levels = np.maximum(np.cumsum(steps), 0.0)
    if window is not None and len(times):
        inside = (times > window[0]) & (times < window[1])
        before = levels[times <= window[0]]
        first = float(before[-1]) if len(before) else 0.0
        times = np.concatenate(([window[0]], times[inside], [window[1]]))
        levels = np.concatenate(([first], levels[inside], [0.0]))
    if len(times) < 2:
        return Summary(count=len(spans))
    return summary(zip(levels[:-1].tolist(), np.diff(times).tolist(), strict=True), len(spans))


def _merged(events: Iterable[Weighted]) -> tuple[np.ndarray, np.ndarray]:
    """Times in order with their weights; those within :data:`MERGE_S` of the first of a group are added to it."""
    times: list[float] = []
    weights: list[float] = []
    for t, weight in sorted(events):
        if times and t - times[-1] <= MERGE_S:
            weights[-1] += weight
        else:
            times.append(t)
            weights.append(weight)
    return np.array(times), np.array(weights)
