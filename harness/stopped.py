"""Whether an engine's processes were stopped (state T) in a trial: by SIGSTOP, a debugger, or a full terminal.

Such an engine has not failed: it goes on when it is told to. But what it did meanwhile says nothing of its speed.
"""

from collections.abc import Sequence
from itertools import pairwise

from results.records import RequestRecord, TelemetryRecord

LEAST_S = 0.25
"""Stops that add up to less are not told from the sampling itself, which is at 10 Hz."""


def stopped(telemetry: Sequence[TelemetryRecord], measured: Sequence[RequestRecord]) -> str | None:
    """How long which processes were stopped between the first request's plan and the last one's end; None if never."""
    if not measured:
        return None
    start_ns = min(request.planned_ns for request in measured)
    end_ns = max(request.ended_ns for request in measured)
    readings = [record for record in telemetry if record.source == "engine" and start_ns <= record.t_ns <= end_ns]
    held = [(later.t_ns - one.t_ns, one) for one, later in pairwise(readings) if _count(one, "stopped")]
    total_s = sum(length_ns for length_ns, _ in held) / 1e9
    if total_s < LEAST_S:
        return None
    most, of = max((_count(record, "stopped"), _count(record, "processes")) for _, record in held)
    which = "none of its processes" if most == of else f"{most} of its {of} processes"
    verb = "ran" if most == of else "did not run"
    return f"engine was stopped: {which} {verb} for {total_s:.1f} s of the trial; let nothing stop it, and repeat"


def _count(record: TelemetryRecord, name: str) -> int:
    value = record.values.get(name)
    return value if isinstance(value, int) else 0
