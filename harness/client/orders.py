"""What a client worker is told and what it answers: one JSON line each, over its stdin and stdout."""

import msgspec

from engines import Access
from results.records import Phase, TelemetryRecord


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """One worker's share of a closed loop; see :meth:`harness.client.driver.Driver.closed_loop`."""

    concurrency: int
    duration_s: float
    minimum: int = 0


class Open(msgspec.Struct, frozen=True, tag="open"):
    """One worker's share of an open loop; see :meth:`harness.client.driver.Driver.open_loop`."""

    duration_s: float
    max_in_flight: int | None = None


class Steady(msgspec.Struct, frozen=True, tag="steady"):
    """One worker's share of ramp, window and tail under one load; see :mod:`harness.client.steady`."""

    concurrency: int | None = None
    """Closed loop: slots."""
    max_in_flight: int | None = None
    """Open loop: sessions above this number wait inside the client."""
    ramp_s: float = 0.0
    """The ramp takes at least so long."""


class Pool(msgspec.Struct, frozen=True):
    """A file of sessions, and how it goes on when they have been sent."""

    path: str
    stride: int | None = None
    """Added to the index of each request whenever the pool begins again; None: it is sent once."""
    period_ns: int = 0
    """Added to the offset of each session of an open loop likewise."""


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Get ready for a load: open connections, read ahead. Answered by :class:`Ready`."""

    base_url: str
    access: Access
    """What every request must carry."""
    log: str
    """File of stream records to append to."""
    sessions: Pool
    """What is sent (:mod:`harness.client.wire`); of a steady load, its ramp."""
    load: Closed | Open | Steady
    timeout_s: float
    phase: Phase
    """How its requests are recorded."""
    transport: str = "http"


class Go(msgspec.Struct, frozen=True, tag="go"):
    """Put the load on at ``start_ns`` of the worker's clock.

    Answered by :class:`Done`; a steady load answers :class:`Ramped` before, and goes on until it is told to finish.
    """

    start_ns: int


class Measure(msgspec.Struct, frozen=True, tag="measure"):
    """Open the window of a steady load. Answered by :class:`WindowClosed`, then :class:`Answered`."""

    start_ns: int
    end_ns: int
    sessions: Pool
    tail: Pool


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """End a steady load: send nothing more. Answered by :class:`Done`."""

    abort: bool
    """Give up what is in flight instead of waiting for it."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Cut everything off now. Answered by :class:`Stopped`, after the :class:`Done` of a load that was on."""


class AskClock(msgspec.Struct, frozen=True, tag="clock"):
    """Answered by :class:`TellClock` at once."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Everything is prepared."""


class Ramped(msgspec.Struct, frozen=True, tag="ramped"):
    """The load is steady, or the time for that ran out."""

    complete: bool
    ended: int
    """Requests that have ended."""
    request_s: float | None
    """Closed loop: mean time of the latest requests, from plan to end; None where none ended."""


class WindowClosed(msgspec.Struct, frozen=True, tag="window_closed"):
    """The window is over; its requests may still be under way."""

    end_ns: int
    """As ordered, or earlier where the plan ended."""
    in_flight: list[int]
    """Requests that were planned and had not ended, at equal distances over the window, its ends included."""


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """Every request of the window has ended."""


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """Nothing is going on; everything that was is in the log, and no answer to an earlier order is under way."""


class TellClock(msgspec.Struct, frozen=True, tag="clock"):
    """The worker's monotonic clock."""

    now_ns: int


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The load has ended and every exchange is in the log.

    Attributes:
        planned: requests planned.
        start_ns: when the load was put on; None when it never was.
        end_ns: when issuing stopped.
        loop_lag: how late the worker's event loop was.
        cpu_s: CPU time of the worker from :class:`Go` to here.
        rss_bytes: its peak memory so far.
        failure: what went wrong in the worker itself.
        unwritable: whether that is only that its log cannot be written.
    """

    planned: int
    start_ns: int | None = None
    end_ns: int | None = None
    loop_lag: TelemetryRecord | None = None
    cpu_s: float = 0.0
    rss_bytes: int = 0
    failure: str | None = None
    unwritable: bool = False


Order = Prepare | Go | Measure | Finish | Stop | AskClock
Answer = Ready | Ramped | WindowClosed | Answered | TellClock | Done | Stopped
