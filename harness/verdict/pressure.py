"""Findings of a steady open loop whose requests queue."""

from collections.abc import Iterator

import msgspec
import numpy as np

from bakeoff.harness.verdict.evidence import Evidence
from bakeoff.results.columns import UNKNOWN
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding, Severity, invalid, warning
from bakeoff.results.metrics.backlog import Backlog, Pressure
from bakeoff.results.metrics.relaxation import needed_window_s, relaxation
from bakeoff.results.requests import Floats, Requests

_MIN_HELD_S, _MAX_HELD_SHARE = 0.001, 0.1
"""A request is held back by a wait from this on; the queue is the cap's if more than this share was."""


def planned_per_s(evidence: Evidence) -> float:
    """Requests that an open loop plans per second."""
    return (evidence.load.rate_per_s or 0.0) * (evidence.traffic.turns if evidence.traffic else 1.0)


def _held_back_s(measured: Requests) -> Floats:
    """How long ``max_in_flight`` held each request back."""
    due_ns = measured.ints("due_ns")
    return np.where(due_ns == UNKNOWN, 0.0, measured.seconds_from("planned_ns", due_ns))


def pressure_findings(evidence: Evidence, load: Requests, found: Backlog, rate_per_s: float) -> Iterator[Finding]:
    """Findings of a steady open loop whose requests queue: at the engine, or in the client under ``max_in_flight``.

    Args:
        evidence: of the trial.
        load: all requests under load.
        found: their backlog.
        rate_per_s: requests per second that the loop plans.
    """
    held_s = _held_back_s(load.planned_inside(evidence.window))
    held_share = float((held_s > _MIN_HELD_S).mean()) if len(held_s) else 0.0
    if found.pressure is not Pressure.SUSTAINED and held_share > _MAX_HELD_SHARE:
        typical_s = float(np.median(held_s[held_s > _MIN_HELD_S]))
        finding = invalid(FindingCode.HELD_BACK, held_share=held_share, held_s=typical_s, rate_per_s=rate_per_s)
        is_certain = found.pressure is Pressure.SATURATED
        yield finding if is_certain else msgspec.structs.replace(finding, severity=Severity.WARNING)
    elif found.pressure is Pressure.SATURATED:
        yield invalid(
            FindingCode.SATURATED, first_in_flight=found.first_in_flight, last_in_flight=found.last_in_flight
        )  # fmt: skip
    elif found.pressure is Pressure.UNCLEAR and found.utilisation is not None and found.needed_requests is not None:
        yield warning(
            FindingCode.CAPACITY_UNCLEAR, utilisation=found.utilisation, planned_requests=found.requests,
            needed_requests=found.needed_requests,
        )  # fmt: skip
    elif found.pressure is Pressure.UNCLEAR:
        yield warning(
            FindingCode.BACKLOG_GREW, first_in_flight=found.first_in_flight, last_in_flight=found.last_in_flight
        )  # fmt: skip
    elif (relaxed := relaxation(load, evidence.window, rate_per_s)) and relaxed.is_window_short:
        yield warning(
            FindingCode.WINDOW_SHORT_FOR_QUEUE, window_s=relaxed.window_s, needed_window_s=needed_window_s(relaxed)
        )  # fmt: skip
