"""Checks for rows of all formats: lengths in range, and times that do not decrease."""

import math
import re
from datetime import date
from typing import Annotated

import msgspec

MAX_TOKENS = 100_000_000
"""Largest length; a larger number is a time stamp or an id in the wrong column."""
MAX_TIME_S = 1e11
"""About 3,000 years; a larger time is in milliseconds or nanoseconds."""
_EPOCH_UNITS = ((1e17, 1e-9), (1e14, 1e-6), (MAX_TIME_S, 1e-3))
"""Least time since 1970 in nano-, micro- and milliseconds, and that unit in seconds."""

BACKWARDS = "its time is before that of the previous row; sort the file by its time column"

InputTokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
"""A prompt has at least one token."""
OutputTokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
"""0 marks a failed or abandoned request; each format documents how it treats these."""
RequestedTokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
"""Requested length of an answer."""
BlockTokens = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_TIME_S)]

_SHOWN_CHARS = 60
_STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{0,9}))?)?\s*(?:(Z)|([+-])(\d\d):?(\d\d)?)?", re.ASCII
)


def quoted(text: str) -> str:
    """A field's text for a message, shortened."""
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…")


def tokens(text: str, name: str, least: int) -> int:
    """Parse a number of tokens; ``12.0`` is 12.

    Raises:
        ValueError: it is not a whole number from ``least`` to ``MAX_TOKENS``.
    """
    digits = text.strip()
    try:
        value = int(digits) if len(digits) < 16 and digits.isascii() and digits.isdigit() else number(digits, name)
    except ValueError:
        value = math.nan
    if not (least <= value <= MAX_TOKENS and value == int(value)):
        raise ValueError(f"{name} must be a whole number from {least} to {MAX_TOKENS}, not {quoted(text)}")
    return int(value)


def check_output_tokens(output_tokens: int) -> None:
    """Raise ValueError unless a format's option ``output_tokens`` is a length."""
    if not 1 <= output_tokens <= MAX_TOKENS:
        raise ValueError(f"output_tokens must be from 1 to {MAX_TOKENS}, not {output_tokens}")


def number(text: str, name: str) -> float:
    """Parse a number.

    Raises:
        ValueError: it is not a finite number.
    """
    try:
        value = math.nan if "_" in text else float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{name} must be a number, not {quoted(text)}")
    return value


def amount(text: str, name: str, unit: float = 1.0) -> float:
    """Parse a time, rate or share, and multiply it by ``unit``.

    Raises:
        ValueError: it is not a number, negative, or above ``MAX_TIME_S``.
    """
    value = number(text, name) * unit
    if not 0 <= value <= MAX_TIME_S:
        raise ValueError(f"{name} must be from 0 to {MAX_TIME_S:g}, not {quoted(text)}")
    return value


def stamp_ns(text: str) -> int:
    """Parse a time stamp such as ``2024-05-10 00:00:00.009930+00:00`` into nanoseconds since the year 1.

    A space or ``T`` separates date and time. Seconds, up to 9 decimals and the zone are optional; the default zone is
    UTC.

    Raises:
        ValueError: it is not such a stamp.
    """
    match = _STAMP.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{quoted(text)} is not a time stamp such as 2024-05-10 00:00:00.009930+00:00")
    day, hour, minute, second, decimals, _, sign, zone_hours, zone_minutes = match.groups()
    if int(hour) > 23 or int(minute) > 59 or int(second or 0) > 60:
        raise ValueError(f"{quoted(text)} is not a time of day")
    try:
        days = date.fromisoformat(day).toordinal()
    except ValueError:
        raise ValueError(f"{quoted(text)} has a date that does not exist") from None
    zone_s = int(zone_hours or 0) * 3600 + int(zone_minutes or 0) * 60
    local_s = days * 86400 + int(hour) * 3600 + int(minute) * 60 + int(second or 0)
    return (local_s + (zone_s if sign == "-" else -zone_s)) * 10**9 + int((decimals or "").ljust(9, "0"))


def epoch_s(time: float) -> float:
    """A time in seconds, from seconds, or from a time since 1970 in milli-, micro- or nanoseconds."""
    return next((time * unit for least, unit in _EPOCH_UNITS if time > least), time)


class Clock:
    """Converts times to seconds from the first row; either all are numbers or all are time stamps."""

    def __init__(self) -> None:
        self._first_ns: int | None = None
        self._first_s: float | None = None
        self._last_s = 0.0

    def offset_s(self, time_s: float) -> float:
        """Seconds from the first row's time to this one.

        Raises:
            ValueError: the time is negative, too large, or before that of the previous row.
        """
        if not 0 <= time_s <= MAX_TIME_S:
            raise ValueError(f"its time is {time_s:g} s, not between 0 and {MAX_TIME_S:g}; check its column and unit")
        if self._first_ns is not None:
            raise ValueError("its time is a number, but the first row has a time stamp")
        if self._first_s is None:
            self._first_s = time_s
        return self._rising(time_s - self._first_s)

    def stamp_offset_s(self, text: str) -> float:
        """The same for a time stamp; see :func:`stamp_ns`.

        Raises:
            ValueError: it is not a time stamp, or before that of the previous row.
        """
        time_ns = stamp_ns(text)
        if self._first_s is not None:
            raise ValueError("its time is a time stamp, but the first row has a number")
        if self._first_ns is None:
            self._first_ns = time_ns
        return self._rising((time_ns - self._first_ns) / 1e9)

    def _rising(self, offset_s: float) -> float:
        if offset_s < self._last_s:
            raise ValueError(BACKWARDS)
        self._last_s = offset_s
        return offset_s
