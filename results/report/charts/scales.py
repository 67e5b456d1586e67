"""Linear and logarithmic axes, from values to pixels, with ticks at round numbers."""

import math
from collections.abc import Iterable, Sequence

import msgspec

LOG_FROM = 20.0
"""Positive values that span more than this ratio get a logarithmic axis."""


class Axis(msgspec.Struct, frozen=True):
    """Maps values ``low``…``high`` to pixels ``start``…``end``; for y, ``end`` < ``start``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Pixel of a value, clipped to the axis."""
        low, high = self._transform(self.low), self._transform(self.high)
        fraction = (self._transform(value) - low) / (high - low)
        return self.start + min(1.0, max(0.0, fraction)) * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Round values inside the axis."""
        return _log_ticks(self.low, self.high, about) if self.log else _linear_ticks(self.low, self.high, about)

    def _transform(self, value: float) -> float:
        return math.log10(max(value, self.low)) if self.log else value


class Scale(msgspec.Struct, frozen=True):
    """An x axis with ticks, not yet mapped to pixels.

    Attributes:
        low: left end.
        high: right end.
        ticks: values and their labels.
        title: of the axis.
        log: whether the axis is logarithmic.
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
    """Axis from zero to 8 % above the largest value, so that lengths can be compared."""
    top = max(values, default=0.0)
    return Axis(0.0, top * 1.08 if top > 0 else 1.0, start, end)


def fitted_axis(values: Iterable[float], start: float, end: float) -> Axis:
    """Linear axis from zero, or logarithmic if all values are positive and span more than :data:`LOG_FROM`."""
    finite = sorted(value for value in values if math.isfinite(value))
    if not finite or finite[0] <= 0 or finite[-1] / finite[0] < LOG_FROM:
        return zero_axis(finite, start, end)
    return Axis(finite[0] / 1.15, finite[-1] * 1.15, start, end, log=True)


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
