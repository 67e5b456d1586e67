"""The readings of one trial: how far counters moved between the two marks, and gauges inside the window.

The harness reads the page twice a second, and whole just before the measured load and just after its last answer: what
lies between those marks is the measured requests, all of them and, as far as nobody else asks, nothing but them.
"""

from collections.abc import Sequence
from typing import TypeGuard

import msgspec

from results.metrics.values import Value, absent
from results.records import TelemetryRecord, Window

SOURCE = "server"
BEFORE, AFTER = "before", "after"
_UNKNOWN = "the engine does not tell it"


class Readings(msgspec.Struct, frozen=True):
    """What was read, in the order of time.

    Attributes:
        good: readings that have a frame.
        before: the one before the measured load.
        after: the one after its last answer.
        why: why there are no differences; None where both marks are good.
    """

    good: list[TelemetryRecord]
    before: TelemetryRecord | None
    after: TelemetryRecord | None
    why: str | None

    def moved(self, name: str) -> Value:
        """How far a counter moved. One that the engine shows only after its first use began at 0."""
        if self.before is None or self.after is None:
            return absent(self.why or "")
        then, now = self.before.values.get(name, 0.0), self.after.values.get(name)
        if name not in self.after.values:
            return absent(_UNKNOWN)
        if not is_number(then) or not is_number(now):
            return absent("the engine shows no number for it")
        if now < then:
            return absent(f"it fell from {then:g} to {now:g}: the engine was restarted")
        return Value(float(now - then))

    def levels(self, name: str, window: Window) -> tuple[list[float], str]:
        """What a gauge stood at inside the window; where there is nothing, why."""
        if not self.good:
            return [], self.why or _UNKNOWN
        if not any(name in record.values for record in self.good):
            return [], _UNKNOWN
        inside = [record.values.get(name) for record in self.good if window.holds(record.t_ns)]
        return [level for level in inside if is_number(level)], "no reading fell into the steady window"


def is_number(value: object) -> TypeGuard[float]:
    """Whether a sample's value is one."""
    return isinstance(value, int | float)


def readings(telemetry: Sequence[TelemetryRecord]) -> Readings:
    """The readings of the engine's page among a trial's samples."""
    records = sorted((record for record in telemetry if record.source == SOURCE), key=lambda record: record.t_ns)
    good = [record for record in records if record.values.get("scrape_s") is not None]
    before, after = (_marked(good, mark) for mark in (BEFORE, AFTER))
    return Readings(good, before, after, None if before and after else _why(records, before))


def _marked(records: Sequence[TelemetryRecord], mark: str) -> TelemetryRecord | None:
    return next((record for record in records if record.values.get("mark") == mark), None)


def _why(records: Sequence[TelemetryRecord], before: TelemetryRecord | None) -> str:
    if not records:
        return "the engine tells nothing that is read"
    failed = [reason for record in records if (reason := record.reasons.get("scrape_s"))]
    if failed:
        return f"its page could not be read: {failed[-1]}"
    missing = "before the load" if before is None else "after it: the trial was cut off"
    return f"its page was not read {missing}"
