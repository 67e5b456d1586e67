"""Checks of the engine's own counters: restarts, and traffic from other clients."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding, warning
from bakeoff.results.records import TelemetryRecord
from bakeoff.results.requests import Requests
from bakeoff.results.server_view.pages import pages
from bakeoff.results.server_view.readings import is_number, readings

TOKEN_TOLERANCE = 0.01
"""Relative difference allowed between the engine's and the client's output token counts."""
_REBOUND = 0.5
"""A counter that falls and then, in one step, regains this fraction of the fall and exceeds its old value: the page
alternates between several servers."""


class Fall(msgspec.Struct, frozen=True):
    """A decrease of a counter, which should never decrease.

    Attributes:
        name: name of the counter; with several addresses, also where it is shown.
        before: value before the fall.
        after: value after it.
        several: whether it rebounded at once, so that several servers answer in turn.
    """

    name: str
    before: float
    after: float
    several: bool


def fall(telemetry: Sequence[TelemetryRecord]) -> Fall | None:
    """Find the deepest fall of any counter between two samples of a trial; None if none fell."""
    falls: list[Fall] = []
    for page in pages(telemetry):
        good, place = readings(page.records).good, f" at {page.label}" if page.label else ""
        names = dict.fromkeys(name for record in good for name in record.values if name.endswith(("_total", "_count")))
        falls += [deepest for name in names if (deepest := _deepest(f"{name}{place}", _numbers(good, name)))]
    return max(falls, key=lambda fall: fall.before - fall.after, default=None)


def tokens_disagree(telemetry: Sequence[TelemetryRecord], requests: Requests) -> Finding | None:
    """Warn if engine and client counted different output tokens; None if they agree or the engine's count is unknown.

    With failed requests the check does not apply: the engine may have generated tokens the client did not receive.
    """
    samples = readings(telemetry)
    measured, reported = samples.counted(requests), samples.increase("output_tokens_total").value
    if reported is None or not len(measured) or not measured.is_ok.all():
        return None
    counted = int(measured.chunks.tokens.sum())
    if abs(reported - counted) <= TOKEN_TOLERANCE * counted:
        return None
    return warning(FindingCode.COUNTERS_DISAGREE, engine_tokens=round(reported), client_tokens=counted)


def _numbers(records: Sequence[TelemetryRecord], name: str) -> list[float]:
    return [value for record in records if is_number(value := record.values.get(name))]


def _deepest(name: str, numbers: Sequence[float]) -> Fall | None:
    steps = list(pairwise(numbers))
    drops = [(i, before, after) for i, (before, after) in enumerate(steps) if after < before]
    if not drops:
        return None
    several = any(
        b >= before > a and b - a >= _REBOUND * (before - after)
        for i, before, after in drops
        for a, b in steps[i + 1 :]
    )
    _, before, after = max(drops, key=lambda drop: drop[1] - drop[2])
    return Fall(name, before, after, several)
