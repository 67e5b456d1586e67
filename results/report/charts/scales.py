"""From values to pixels: linear and logarithmic axes with ticks at round numbers."""

import math
from collections.abc import Iterable, Sequence

import msgspec

LOG_FROM = 20.0
"""A span of positive values wider than this ratio asks for a logarithmic axis."""


class Axis(msgspec.Struct, frozen=True):
    """Values ``low``…``high`` on pixels ``start``…``end`` (``end`` may be the smaller: y grows downwards)."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value; beyond the axis it is held at the edge."""
        share = (self._bend(value) - self._bend(self.low)) / (self._bend(self.high) - self._bend(self.low))
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Round values inside the axis."""
        return _log_ticks(self.low, self.high, about) if self.log else _linear_ticks(self.low, self.high, about)

    def _bend(self, value: float) -> float:
        return math.log10(max(value, self.low)) if self.log else value


class Scale(msgspec.Struct, frozen=True):
    """An x axis whose maker knows its ticks and not its pixels.

    Attributes:
        low: left end.
        high: right end.
        ticks: values, and what stands below each.
        title: what the axis shows.
        log: whether it is logarithmic.
    """

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    title: str
    log: bool = False

    def axis(self, start: float, end: float) -> Axis:
        """The axis on pixels."""
        return Axis(self.low, self.high, start, end, self.log)


def zero_axis(values: Iterable[float], start: float, end: float) -> Axis:
    """From zero to a little above the largest: lengths on it may be compared."""
    top = max(values, default=0.0)
    return Axis(0.0, top * 1.08 if top > 0 else 1.0, start, end)


def fitted_axis(values: Iterable[float], start: float, end: float) -> Axis:
    """Linear from zero, or logarithmic where the values are positive and span more than :data:`LOG_FROM`."""
    known = sorted(value for value in values if math.isfinite(value))
    if not known or known[0] <= 0 or known[-1] / known[0] < LOG_FROM:
        return zero_axis(known, start, end)
    return Axis(known[0] / 1.15, known[-1] * 1.15, start, end, log=True)


def _linear_ticks(low: float, high: float, about: int) -> list[float]:
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.9999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, about: int) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [factor * 10.0**decade for decade in decades for factor in factors]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) <= about + 2:
            return inside
    every = math.ceil(len(inside) / about)
    return inside[::every]
