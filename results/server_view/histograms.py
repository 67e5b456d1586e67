"""A histogram's own numbers between the marks: its mean is exact, its quantiles as fine as its buckets are."""

import msgspec

from results.metrics.percentiles import required_count
from results.metrics.values import Value, absent
from results.server_view.readings import Readings


class Quantile(msgspec.Struct, frozen=True):
    """A quantile by interpolation, and the width of the bucket in which it lies: nothing finer is known of it."""

    value: Value
    width: Value


def mean(found: Readings, name: str, requests: int) -> Value:
    """The mean of a histogram's observations.

    Args:
        found: the readings.
        name: of the histogram.
        requests: what an engine's sum is divided by that keeps no count of its own: the requests that were answered.
    """
    total, count = found.moved(f"{name}_sum"), found.moved(f"{name}_count")
    if total.value is None:
        return total
    number = requests if count.value is None else count.value
    return Value(total.value / number) if number else absent("it observed nothing")


def quantile(found: Readings, name: str, q: float) -> Quantile:
    """A quantile of a histogram's observations by linear interpolation inside the bucket in which it lies."""
    count = found.moved(f"{name}_count")
    if count.value is None:
        return Quantile(count, count)
    need = required_count(q)
    if count.value < need:
        none = absent(f"p{q * 100:g} needs {need:,} observations, there are {count.value:,.0f}")
        return Quantile(none, none)
    return _inside(_buckets(found, f"{name}_le_"), q * count.value)


def _buckets(found: Readings, prefix: str) -> list[tuple[float, float]]:
    """Upper bound and observations up to it, by rising bound."""
    names = [name for name in (found.after.values if found.after else {}) if name.startswith(prefix)]
    moved = [(float(name.removeprefix(prefix)), found.moved(name).value) for name in names]
    return sorted((bound, number) for bound, number in moved if number is not None)


def _inside(buckets: list[tuple[float, float]], rank: float) -> Quantile:
    low, below = 0.0, 0.0
    for high, up_to in buckets:
        if up_to >= rank and up_to > below:
            share = (rank - below) / (up_to - below)
            return Quantile(Value(low + share * (high - low)), Value(high - low))
        low, below = high, up_to
    none = absent(f"it lies beyond the last bucket, {low:g} s" if buckets else "its histogram has no buckets")
    return Quantile(none, none)
