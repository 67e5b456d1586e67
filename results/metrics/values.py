"""Value of a metric: a number, or the reason why there is none."""

import math
from enum import StrEnum

import msgspec


class Absence(StrEnum):
    """Code for why a value is absent; :attr:`Value.reason` is the text for readers."""

    TOO_FEW = "too_few"
    """Fewer observations than the percentile needs."""
    AMONG_FAILURES = "among_failures"
    """The percentile falls among failed requests: worse than any number."""
    SATURATED = "saturated"
    """The engine fell behind, so latencies only reflect the length of the load."""
    UNKNOWN = "unknown"
    """Nothing was observed, or the engine does not report it."""


class Value(msgspec.Struct, frozen=True):
    """Exactly one of ``value`` and ``reason`` is set.

    Attributes:
        value: finite number in the unit of the metric's definition.
        reason: why the value is absent, as a short clause.
        absence: the same as a code; None if there is a number.
    """

    value: float | None = None
    reason: str | None = None
    absence: Absence | None = None

    def __post_init__(self) -> None:
        if (self.value is None) == (self.reason is None) or (self.reason is None) != (self.absence is None):
            raise ValueError(f"a value has either a number or a reason, not {self.value!r} and {self.reason!r}")
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"a value is finite or absent with a reason, not {self.value!r}")


def absent(reason: str, absence: Absence = Absence.UNKNOWN) -> Value:
    """Make an absent value."""
    return Value(None, reason, absence)
