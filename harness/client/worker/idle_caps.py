"""Caps on idle time: where nothing is in flight for long, the pauses that are left are shortened.

The pauses of sessions are those of a recording, and some last hours. Rules of play cap the time in which no session has
a request in flight, or one session has none. When the last request ends, the next one is known: if its pause lasts
longer than the cap, every pause that is left is shortened by the difference, so that their order and distances stay.
"""

import msgspec

from bakeoff.results.units import NS_PER_S


class IdleCaps(msgspec.Struct, frozen=True):
    """The caps of a load, in nanoseconds; None for no cap.

    Attributes:
        load_ns: longest time without a request in flight.
        session_ns: the same for each session.
    """

    load_ns: int | None = None
    session_ns: int | None = None

    @classmethod
    def of(cls, load_s: float | None, session_s: float | None) -> "IdleCaps | None":
        """The caps of these seconds; None if there is no cap."""
        if load_s is None and session_s is None:
            return None
        return cls(*(None if seconds is None else round(seconds * NS_PER_S) for seconds in (load_s, session_s)))


def excess_ns(cap_ns: int | None, idle_ns: int, next_ns: int | None) -> int:
    """By how much to shorten pauses.

    Args:
        cap_ns: longest idle time; None for no cap.
        idle_ns: since when nothing is in flight.
        next_ns: end of the pause that ends first; None if there is none.
    """
    return 0 if cap_ns is None or next_ns is None else max(0, next_ns - idle_ns - cap_ns)
