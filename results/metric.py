"""What a metric is: its name, unit and direction."""

from enum import StrEnum

import msgspec


class Unit(StrEnum):
    """Units of stored and computed values; :mod:`bakeoff.results.text.format` scales them for display."""

    SECONDS = "s"
    PER_SECOND = "/s"
    TOKENS_PER_SECOND = "tok/s"
    BYTES = "B"
    JOULES = "J"
    COUNT = ""
    SHARE = "share"


class Better(StrEnum):
    """Direction of improvement."""

    LOWER = "lower"
    HIGHER = "higher"


class Metric(msgspec.Struct, frozen=True):
    """Identity of one metric.

    Attributes:
        name: column in data frames, key in JSON; ends in its unit where it has one.
        title: column heading.
        unit: of the value.
        better: direction of improvement.
        definition: one sentence; the symbols are those of docs/definitions.md.
    """

    name: str
    title: str
    unit: Unit
    better: Better
    definition: str
