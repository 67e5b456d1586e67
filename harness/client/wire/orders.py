"""Orders to a client worker and its replies: one JSON line each, over its stdin and stdout."""

from typing import Any

import msgspec

from bakeoff import engines
from bakeoff.engines import Access
from bakeoff.engines.addresses import Balance, ReplicaHeader
from bakeoff.engines.dialects import Dialect
from bakeoff.engines.errors import UnknownEngine
from bakeoff.results.records import Pace, Phase, TelemetryRecord


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """One worker's share of a closed loop; see :meth:`bakeoff.harness.client.worker.driver.Driver.closed_loop`."""

    concurrency: int
    duration_s: float
    minimum: int = 0
    grace_s: float | None = None
    """Seconds after ``duration_s`` until the requests in flight are cancelled; None until the last has ended."""
    idle_cap_s: float | None = None
    """Longest time without a request in flight while pauses are left, which are then shortened."""
    session_idle_cap_s: float | None = None
    """The same for each session."""


class Open(msgspec.Struct, frozen=True, tag="open"):
    """One worker's share of an open loop; see :meth:`bakeoff.harness.client.worker.driver.Driver.open_loop`."""

    duration_s: float
    max_in_flight: int | None = None


RAMP_REQUESTS = 20
"""Requests that must have ended in a ramp; in a closed loop of fewer slots, one per slot."""


class Steady(msgspec.Struct, frozen=True, tag="steady"):
    """One worker's share of ramp, window and tail under one load; see :mod:`bakeoff.harness.client.worker.steady`."""

    concurrency: int | None = None
    """Closed loop: slots."""
    max_in_flight: int | None = None
    """Open loop: requests above this number wait inside the client."""
    ramp_s: float = 0.0
    """Shortest ramp."""
    ramp_requests: int = RAMP_REQUESTS
    """This worker's part of :data:`RAMP_REQUESTS`."""


class Pool(msgspec.Struct, frozen=True):
    """A file of sessions, and how it repeats."""

    path: str
    stride: int | None = None
    """Added to the index of each request at every repetition; None: the sessions are sent once."""
    cycles: int = 1
    """Repetitions of the plan that the file holds."""
    period_ns: int = 0
    """Added to the offset of each session of an open loop at every repetition."""


class Format(msgspec.Struct, frozen=True):
    """An engine's wire format: the arguments of :func:`bakeoff.engines.dialect` that decide it."""

    adapter: str
    options: dict[str, Any]
    url: str | None = None

    def dialect(self) -> Dialect | None:
        """The dialect; None if the adapter comes from a package that this worker's machine does not have."""
        try:
            return engines.dialect(self.adapter, self.options, engines.Deployment(url=self.url))
        except UnknownEngine:
            return None


class Target(msgspec.Struct, frozen=True):
    """One of the addresses that a load goes to."""

    base_url: str
    label: str | None = None
    """Recorded with its requests; None for the only one."""
    is_late: bool = False
    """Whether it gets no request before :class:`Join` names it."""


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Prepare a load: open connections, read ahead. The reply is :class:`Ready`."""

    targets: tuple[Target, ...]
    """Where requests go."""
    access: Access
    """Credentials for every request."""
    log: str
    """File to append stream records to."""
    sessions: Pool
    """What to send (:mod:`bakeoff.harness.client.wire.plan`); for a steady load, its ramp."""
    load: Closed | Open | Steady
    timeout_s: float
    phase: Phase
    """Recorded with its requests."""
    transport: str = "http"
    format: Format | None = None
    """Wire format of the answers, to find failures in them; None to look only at statuses and connections."""
    begun: Pool | None = None
    """Steady load: the sessions in progress at its start; those of a closed loop occupy its slots."""
    balance: Balance = Balance.ROUND_ROBIN
    """How the worker divides its requests among several targets."""
    replica_header: ReplicaHeader | None = None
    """Where answers name the replica behind a router; None if they do not."""


class Go(msgspec.Struct, frozen=True, tag="go"):
    """Start the load at ``start_ns`` of the worker's clock.

    The reply at its end is :class:`Done`. A steady load first replies :class:`Ramped`, and runs until :class:`Finish`.
    """

    start_ns: int


class Measure(msgspec.Struct, frozen=True, tag="measure"):
    """Open the window of a steady load. The replies are :class:`WindowClosed`, then :class:`WindowAnswered`."""

    start_ns: int
    end_ns: int
    sessions: Pool
    tail: Pool


class Join(msgspec.Struct, frozen=True, tag="join"):
    """Send requests to a late target from now on. There is no reply."""

    label: str


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """End a steady load: send nothing more. The reply is :class:`Done`."""

    abort: bool
    """Abort the requests in flight instead of waiting for them."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Cancel everything now. The reply is :class:`Stopped`, after the :class:`Done` of a load in progress."""


class ReadClock(msgspec.Struct, frozen=True, tag="clock"):
    """Read the clock. The reply, at once, is :class:`ClockTime`."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Everything is prepared."""


class Ramped(msgspec.Struct, frozen=True, tag="ramped"):
    """The load is steady, or the ramp has timed out."""

    complete: bool
    ended: int
    """Requests that have ended so far."""
    request_s: float | None
    """Mean seconds from plan to end of a request; None if none has ended."""
    pace: Pace | None = None
    """Of the engine; None if no request has succeeded."""
    pace_error: float = 0.0
    """Relative standard error of the mean answer time by this pace."""
    failed: int = 0
    """Requests that have ended with a failure."""
    elapsed_s: float = 0.0
    """Since the load began."""

    @property
    def has_failed(self) -> bool:
        """Whether every request has failed."""
        return 0 < self.ended == self.failed


class WindowClosed(msgspec.Struct, frozen=True, tag="window_closed"):
    """The window is over; some of its requests may still be in flight."""

    end_ns: int
    """As ordered, or earlier if the plan ran out."""
    in_flight: int
    """Requests that were planned and had not ended."""
    overdue: int = 0
    """Those of them that were planned more than three of the ramp's mean answer times before."""


class WindowAnswered(msgspec.Struct, frozen=True, tag="answered"):
    """Every request of the window has ended."""


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """No load is in progress, everything is in the log, and no reply to an earlier order will follow."""


class ClockTime(msgspec.Struct, frozen=True, tag="clock"):
    """The worker's monotonic clock."""

    now_ns: int


class Silence(msgspec.Struct, frozen=True):
    """A time in which no byte of any answer has come."""

    in_flight: int
    """Requests that wait for an answer, or for the rest of it."""
    seconds: float
    timeout_s: float
    """Limit of each request."""


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """The worker's event loop runs; sent every :data:`ALIVE_S` seconds while a load is in progress."""

    silence: Silence | None = None
    """None if the server has answered something since the last sign of life, or no request is in flight."""


ALIVE_S = 2.0


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The load has ended and every exchange is in the log.

    Attributes:
        planned: requests planned.
        start_ns: when the load began; None if it never did.
        end_ns: when it stopped starting requests.
        loop_lag: lateness of the worker's event loop.
        cpu_s: CPU time of the worker since :class:`Go`.
        rss_bytes: its peak memory so far.
        failure: what failed in the worker itself.
        unwritable: whether the failure is that its log cannot be written.
    """

    planned: int
    start_ns: int | None = None
    end_ns: int | None = None
    loop_lag: TelemetryRecord | None = None
    cpu_s: float = 0.0
    rss_bytes: int = 0
    failure: str | None = None
    unwritable: bool = False


Order = Prepare | Go | Measure | Join | Finish | Stop | ReadClock
Reply = Alive | Ready | Ramped | WindowClosed | WindowAnswered | ClockTime | Done | Stopped
