"""What a verdict depends on."""

import math
from collections.abc import Sequence

import msgspec

from bakeoff.results.records import (
    ClientError,
    FaultRecord,
    Load,
    RampRecord,
    RequestRecord,
    TelemetryRecord,
    TrafficRecord,
    Window,
)


class Evidence(msgspec.Struct, frozen=True):
    """Everything that a verdict depends on."""

    requests: Sequence[RequestRecord]
    telemetry: Sequence[TelemetryRecord]
    load: Load
    window: Window
    max_failure_share: float
    engine_death: str | None = None
    client_loss: str | None = None
    """Why a worker of the client was lost."""
    lost_workers: int = 0
    """Workers that earlier trials lost for good."""
    planned_workers: int = 0
    """Workers that the run began with."""
    planned: int | None = None
    """Requests under load that the client planned; all of them must be in the log."""
    client_error: ClientError | None = None
    """The client's own error under this shape of load."""
    max_error_share: float = 0.1
    """Largest client error, as a share of the median TTFT and of the mean gap between chunks."""
    replica_header: str | None = None
    """Header of answers that names the replica; None if requests need not say who answered."""
    traffic: TrafficRecord | None = None
    """The planned traffic and the declared state of the prefix cache."""
    ramp: RampRecord | None = None
    """The result of the ramp; None for varying loads and recorded arrivals."""
    max_foreign_share: float = 1.0
    """Largest share of all CPU time that other processes may use."""
    max_window_s: float = math.inf
    """Longest allowed window."""
    sample_interval_ns: int | None = None
    """Time between two samples of the host; None if nothing samples it."""
    faults: Sequence[FaultRecord] = ()
    """Faults that the harness caused under this load."""
