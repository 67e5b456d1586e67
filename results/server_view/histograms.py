"""Means and quantiles of the engine's histograms over the measured load; quantiles are as fine as the buckets."""

import msgspec

from bakeoff.results.metrics.percentiles import required_count
from bakeoff.results.metrics.values import Value, absent
from bakeoff.results.server_view.readings import Readings


class Quantile(msgspec.Struct, frozen=True):
    """An interpolated quantile and the width of its bucket, which is the resolution."""

    value: Value
    width: Value


def mean(samples: Readings, name: str, requests: int) -> Value:
    """Compute the mean of a histogram's observations.

    Args:
        samples: samples of the engine's page.
        name: name of the histogram.
        requests: number of answered requests, the divisor for engines that report a sum without a count.
    """
    total, count = samples.increase(f"{name}_sum"), samples.increase(f"{name}_count")
    if total.value is None:
        return total
    number = requests if count.value is None else count.value
    return Value(total.value / number) if number else absent("the histogram has no observations")


def quantile(samples: Readings, name: str, q: float) -> Quantile:
    """Estimate a quantile of a histogram by linear interpolation within its bucket."""
    count = samples.increase(f"{name}_count")
    if count.value is None:
        return Quantile(count, count)
    need = required_count(q)
    if count.value < need:
        none = absent(f"p{q * 100:g} needs {need:,} observations, there are {count.value:,.0f}")
        return Quantile(none, none)
    return _interpolated(_buckets(samples, f"{name}_le_"), q * count.value)


def _buckets(samples: Readings, prefix: str) -> list[tuple[float, float]]:
    """(upper bound, cumulative count) of each bucket, by rising bound."""
    names = [name for name in (samples.after.values if samples.after else {}) if name.startswith(prefix)]
    counts = [(float(name.removeprefix(prefix)), samples.increase(name).value) for name in names]
    return sorted((bound, number) for bound, number in counts if number is not None)


def _interpolated(buckets: list[tuple[float, float]], rank: float) -> Quantile:
    low, below = 0.0, 0.0
    for high, up_to in buckets:
        if up_to >= rank and up_to > below:
            share = (rank - below) / (up_to - below)
            return Quantile(Value(low + share * (high - low)), Value(high - low))
        low, below = high, up_to
    none = absent(f"it is above the last bucket, {low:g} s" if buckets else "the histogram has no buckets")
    return Quantile(none, none)
