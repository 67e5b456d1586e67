"""A metric's value: a number, or the reason why there is none."""

import msgspec


class Value(msgspec.Struct, frozen=True):
    """Exactly one of the two is set.

    Attributes:
        value: finite number in the unit of the metric's definition.
        reason: why the value is absent, as a short clause.
    """

    value: float | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.value is None) == (self.reason is None):
            raise ValueError(f"a value has either a number or a reason, not {self.value!r} and {self.reason!r}")


def absent(reason: str) -> Value:
    """No number, and why."""
    return Value(None, reason)
