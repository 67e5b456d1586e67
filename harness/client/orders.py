"""What a client worker is told and what it answers: one JSON line each, over its stdin and stdout."""

import msgspec

from engines import Access
from results.records import Phase, TelemetryRecord


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """One worker's share of a closed loop; see :meth:`harness.client.driver.Driver.closed_loop`."""

    concurrency: int
    duration_s: float
    minimum: int = 0
    ramp_s: float | None = None


class Open(msgspec.Struct, frozen=True, tag="open"):
    """One worker's share of an open loop; see :meth:`harness.client.driver.Driver.open_loop`."""

    duration_s: float
    max_in_flight: int | None = None


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Get ready for a load: open connections, read ahead. Answered by :class:`Ready`."""

    base_url: str
    access: Access
    """What every request must carry."""
    log: str
    """File of stream records to append to."""
    sessions: str
    """File of sessions (:mod:`harness.client.wire`)."""
    load: Closed | Open
    timeout_s: float
    phase: Phase
    """How its requests are recorded."""
    transport: str = "http"


class Go(msgspec.Struct, frozen=True, tag="go"):
    """Put the load on at ``start_ns`` of the worker's clock. Answered by :class:`Done`."""

    start_ns: int


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Cut everything off now. Answered by :class:`Stopped`, after the :class:`Done` of a load that was on."""


class AskClock(msgspec.Struct, frozen=True, tag="clock"):
    """Answered by :class:`TellClock` at once."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Everything is prepared."""


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


Order = Prepare | Go | Stop | AskClock
Answer = Ready | TellClock | Done | Stopped
