"""Samples of the engine's metrics page in one trial: counter increases over the load, gauges within the window.

The harness samples the page twice a second, and marks two complete samples: one just before the measured load and one
just after its last answer. Counter increases between the marks cover exactly the measured requests, provided that no
other client uses the engine.
"""

from collections.abc import Sequence
from typing import TypeGuard

import msgspec
import numpy as np

from bakeoff.results.columns import UNKNOWN
from bakeoff.results.metrics.values import Value, absent
from bakeoff.results.records import Phase, TelemetryRecord, Window
from bakeoff.results.requests import Requests
from bakeoff.results.server_view.pages import engine_page

BEFORE, AFTER = "before", "after"
_UNKNOWN = "the engine does not report it"


class Readings(msgspec.Struct, frozen=True):
    """The samples of one trial, by time.

    Attributes:
        good: samples that could be read.
        before: the mark before the measured load.
        after: the mark after its last answer.
        why: why there are no increases; None if both marks could be read.
    """

    good: list[TelemetryRecord]
    before: TelemetryRecord | None
    after: TelemetryRecord | None
    why: str | None

    def counted(self, requests: Requests) -> Requests:
        """The requests that the counters count: those sent since the mark.

        In runs of earlier versions these are also those that filled the cache with the histories of sessions.
        """
        if self.before is None:
            return requests.under_load
        sent_ns = requests.ints("sent_ns")
        is_load = ~requests.equal("phase", Phase.WARMUP)
        return requests.take(np.where(sent_ns == UNKNOWN, is_load, sent_ns >= self.before.t_ns))

    def increase(self, name: str) -> Value:
        """Increase of a counter between the marks; one that first appears during the load starts at 0."""
        if self.before is None or self.after is None:
            return absent(self.why or "")
        then, now = self.before.values.get(name, 0.0), self.after.values.get(name)
        if name not in self.after.values:
            return absent(_UNKNOWN)
        if not is_number(then) or not is_number(now):
            return absent("the engine reports no number for it")
        if now < then:
            return absent(f"the counter fell from {then:g} to {now:g}: the engine was restarted")
        return Value(float(now - then))

    def levels(self, name: str, window: Window) -> tuple[list[float], str]:
        """Values of a gauge within the window, and why there are none."""
        if not self.good:
            return [], self.why or _UNKNOWN
        if not any(name in record.values for record in self.good):
            return [], _UNKNOWN
        inside = [record.values.get(name) for record in self.good if window.holds(record.t_ns)]
        return [level for level in inside if is_number(level)], "no sample falls into the steady window"


def is_number(value: object) -> TypeGuard[float]:
    """Whether a sampled value is a number."""
    return isinstance(value, int | float)


def readings(telemetry: Sequence[TelemetryRecord]) -> Readings:
    """Select the samples of the engine's page from a trial's telemetry; the sums of its pages if it has several."""
    records = engine_page(telemetry)
    good = [record for record in records if record.values.get("scrape_s") is not None]
    before, after = (_marked(good, mark) for mark in (BEFORE, AFTER))  # the last one: a load may begin again
    return Readings(good, before, after, None if before and after else _why(records, before))


def _marked(records: Sequence[TelemetryRecord], mark: str) -> TelemetryRecord | None:
    return next((record for record in reversed(records) if record.values.get("mark") == mark), None)


def _why(records: Sequence[TelemetryRecord], before: TelemetryRecord | None) -> str:
    if not records:
        return "the engine's metrics were not read"
    failed = [reason for record in records if (reason := record.reasons.get("scrape_s"))]
    if failed:
        return f"its metrics page could not be read: {failed[-1]}"
    missing = "before the load" if before is None else "after the load: the trial was cut off"
    return f"its metrics page was not read {missing}"
