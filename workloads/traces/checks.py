"""What must hold of every row, whatever its format: numbers that can be lengths, and a clock that does not go back."""

import math
import re
from datetime import date
from typing import Annotated

import msgspec

MAX_TOKENS = 100_000_000
"""No request has more; a larger number is a time stamp or an id in the wrong column."""
MAX_TIME_S = 1e11
"""About 3,000 years; a later time is milliseconds or nanoseconds taken for seconds."""

BACKWARDS = "its time is before that of the row above; sort the file by its time column"

InputTokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
"""A prompt has at least one token."""
OutputTokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
"""0 is a request that failed or was given up: each format says what becomes of it."""
WantedTokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
"""Length of an answer to ask for."""
BlockTokens = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_TIME_S)]

_SHOWN_CHARS = 60
_STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{0,9}))?)?\s*(?:(Z)|([+-])(\d\d):?(\d\d)?)?", re.ASCII
)


def shown(text: str) -> str:
    """A field's text as it stands in a message."""
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…")


def tokens(text: str, name: str, least: int) -> int:
    """A count of tokens from a field's text; ``12.0`` is 12.

    Raises:
        ValueError: it is no whole number between ``least`` and ``MAX_TOKENS``.
    """
    digits = text.strip()
    try:
        value = int(digits) if len(digits) < 16 and digits.isascii() and digits.isdigit() else number(digits, name)
    except ValueError:
        value = math.nan
    if not (least <= value <= MAX_TOKENS and value == int(value)):
        raise ValueError(f"{name} must be a whole number from {least} to {MAX_TOKENS}, not {shown(text)}")
    return int(value)


def number(text: str, name: str) -> float:
    """A number from a field's text.

    Raises:
        ValueError: it is none, or not a finite one.
    """
    try:
        value = math.nan if "_" in text else float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{name} must be a number, not {shown(text)}")
    return value


def amount(text: str, name: str, unit: float = 1.0) -> float:
    """A time, rate or share from a field's text, times ``unit``.

    Raises:
        ValueError: it is no number, negative or above ``MAX_TIME_S``.
    """
    value = number(text, name) * unit
    if not 0 <= value <= MAX_TIME_S:
        raise ValueError(f"{name} must be from 0 to {MAX_TIME_S:g}, not {shown(text)}")
    return value


def stamp_ns(text: str) -> int:
    """Nanoseconds since the year 1 of a time stamp such as ``2024-05-10 00:00:00.009930+00:00``.

    The date and time may be parted by a space or ``T``; seconds, up to 9 decimals and the zone may be missing: a stamp
    without zone is taken as UTC.

    Raises:
        ValueError: it is no such stamp.
    """
    found = _STAMP.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{shown(text)} is no time stamp such as 2024-05-10 00:00:00.009930+00:00")
    day, hour, minute, second, decimals, _, sign, zone_hours, zone_minutes = found.groups()
    if int(hour) > 23 or int(minute) > 59 or int(second or 0) > 60:
        raise ValueError(f"{shown(text)} is no time of day")
    try:
        days = date.fromisoformat(day).toordinal()
    except ValueError:
        raise ValueError(f"{shown(text)} has a date that the calendar lacks") from None
    zone_s = int(zone_hours or 0) * 3600 + int(zone_minutes or 0) * 60
    local_s = days * 86400 + int(hour) * 3600 + int(minute) * 60 + int(second or 0)
    return (local_s + (zone_s if sign == "-" else -zone_s)) * 10**9 + int((decimals or "").ljust(9, "0"))


class Clock:
    """Arrivals counted from the first row, all of them numbers or all of them time stamps."""

    def __init__(self) -> None:
        self._first_ns: int | None = None
        self._first_s: float | None = None
        self._last_s = 0.0

    def offset_s(self, time_s: float) -> float:
        """Seconds from the first row's time to this one.

        Raises:
            ValueError: the time is negative, too large to be one, or before the row above.
        """
        if not 0 <= time_s <= MAX_TIME_S:
            raise ValueError(f"its time is {time_s:g} s, not between 0 and {MAX_TIME_S:g}; check its column and unit")
        if self._first_ns is not None:
            raise ValueError("its time is a number where the first row has a time stamp")
        if self._first_s is None:
            self._first_s = time_s
        return self._rising(time_s - self._first_s)

    def stamp_offset_s(self, text: str) -> float:
        """The same of a time stamp; see :func:`stamp_ns`.

        Raises:
            ValueError: it is no time stamp, or before the row above.
        """
        time_ns = stamp_ns(text)
        if self._first_s is not None:
            raise ValueError("its time is a time stamp where the first row has a number")
        if self._first_ns is None:
            self._first_ns = time_ns
        return self._rising((time_ns - self._first_ns) / 1e9)

    def _rising(self, offset_s: float) -> float:
        if offset_s < self._last_s:
            raise ValueError(BACKWARDS)
        self._last_s = offset_s
        return offset_s
