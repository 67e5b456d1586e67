"""The axes of a portrait's charts."""

from collections.abc import Sequence

from harness.portraits.bins import Binned
from results.metrics import Unit
from results.report.charts.axes import tick_text
from results.report.charts.scales import Axis, Scale
from results.report.format import short_text

_CLOCKS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def time_scale(length_s: float, ticks: int = 6) -> Scale:
    """Time from the beginning, in the largest unit of which it holds three."""
    unit_s, name = next((clock for clock in _CLOCKS if length_s >= 3 * clock[0]), _CLOCKS[-1])
    axis = Axis(0.0, length_s / unit_s, 0, 1)
    texts = [(value * unit_s, f"{tick_text(Unit.COUNT, value, axis)} {name}") for value in axis.ticks(ticks)]
    return Scale(0.0, length_s, texts, "since the load began")


def bins_scale(binned: Binned, title: str, ticks: int = 5) -> Scale:
    """From a sample's smallest value to its largest."""
    low, high = binned.bins[0].low, binned.bins[-1].high
    return Scale(low, high, _texts(Axis(low, high, 0, 1, binned.log), ticks), title, binned.log)


def capacity_scale(tokens: Sequence[int], ticks: int = 6) -> Scale:
    """Sizes of a cache."""
    low, high = min(tokens), max(tokens)
    low, high = (low / 1.1, high * 1.1)
    return Scale(
        low, high, _texts(Axis(low, high, 0, 1, log=True), ticks), "size of the cache in tokens, logarithmic", log=True
    )


def _texts(axis: Axis, ticks: int) -> list[tuple[float, str]]:
    return [(value, short_text(value)) for value in axis.ticks(ticks)]
