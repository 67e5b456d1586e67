"""What the engine's own counters say against a trial: that it was restarted, that somebody else used it."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from results.findings import Finding, FindingCode, warning
from results.metrics.trial import under_load
from results.records import Outcome, RequestRecord, TelemetryRecord
from results.server_view.readings import is_number, readings

TOKENS_APART = 0.01
"""Share by which the engine's output tokens and the client's may differ."""
_BACK = 0.5
"""A counter that regains this share of its fall in one step, and more than it had, is another server's."""


class Fall(msgspec.Struct, frozen=True):
    """A counter that fell, which none does.

    Attributes:
        name: of the counter.
        height: before.
        floor: after.
        several: whether it then stood as high again at once: the page is that of several servers in turn.
    """

    name: str
    height: float
    floor: float
    several: bool


def fall(telemetry: Sequence[TelemetryRecord]) -> Fall | None:
    """The deepest fall of any counter between two readings of a trial; None where none fell."""
    good = readings(telemetry).good
    names = dict.fromkeys(name for record in good for name in record.values if name.endswith(("_total", "_count")))
    falls = [found for name in names if (found := _deepest(name, _numbers(good, name)))]
    return max(falls, key=lambda found: found.height - found.floor, default=None)


def tokens_disagree(telemetry: Sequence[TelemetryRecord], requests: Sequence[RequestRecord]) -> Finding | None:
    """A warning where the engine counted other output tokens than the client; None where they agree, or one is unknown.

    Failed requests leave the question open: the engine may have gone on where the client stopped counting.
    """
    measured = under_load(requests)
    told = readings(telemetry).moved("output_tokens_total").value
    if told is None or not measured or any(request.outcome is not Outcome.OK for request in measured):
        return None
    counted = sum(request.total_chunk_tokens for request in measured)
    if abs(told - counted) <= TOKENS_APART * counted:
        return None
    return warning(FindingCode.COUNTERS_DISAGREE, engine_tokens=round(told), client_tokens=counted)


def _numbers(records: Sequence[TelemetryRecord], name: str) -> list[float]:
    return [value for record in records if is_number(value := record.values.get(name))]


def _deepest(name: str, numbers: Sequence[float]) -> Fall | None:
    steps = list(pairwise(numbers))
    drops = [(i, height, floor) for i, (height, floor) in enumerate(steps) if floor < height]
    if not drops:
        return None
    several = any(
        b >= height > a and b - a >= _BACK * (height - floor) for i, height, floor in drops for a, b in steps[i + 1 :]
    )
    _, height, floor = max(drops, key=lambda drop: drop[1] - drop[2])
    return Fall(name, height, floor, several)
