"""The engine's metrics pages, each read twice a second by a thread of its own: a slow one delays no other probe.

Each reading is stamped at the middle of its exchange, the best estimate of when its numbers were current. Unmarked
readings keep gauges, counters and the sums of histograms; marked ones also keep the buckets.
"""

import http.client
import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from bakeoff.engines.metrics import DrainedIterations, Prometheus
from bakeoff.engines.metrics.readers import EngineValues, reader_of
from bakeoff.engines.secrets import masked
from bakeoff.harness.telemetry.loop import Ticker
from bakeoff.harness.telemetry.orders import Mark, ServerPage
from bakeoff.harness.telemetry.page import Page, Refused
from bakeoff.results.records import TelemetryRecord

INTERVAL_NS = 500_000_000
_TIMEOUT_S = {Prometheus: 2.0, DrainedIterations: 4.0}
"""Limit for one exchange; a draining page may be held back for two seconds while the engine is idle."""


class Reading(NamedTuple):
    """One exchange.

    Attributes:
        t_ns: middle of the exchange.
        scrape_s: its duration; None if it failed.
        values: values by our names.
        error: what failed; empty if they are valid.
        refused: whether later exchanges will fail as well.
    """

    t_ns: int
    scrape_s: float | None
    values: EngineValues
    error: str = ""
    refused: bool = False


class PageReader:
    """Reads one page over a kept connection.

    Args:
        page: the page.
        clock_ns: monotonic clock.
    """

    def __init__(self, page: ServerPage, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        port = page.source.port if isinstance(page.source, Prometheus) else None
        timeout_s = _TIMEOUT_S[type(page.source)]
        self._page = Page(
            page.base_url, page.source.path, page.access, port=port, timeout_s=timeout_s, clock_ns=clock_ns
        )
        self._reader = reader_of(page.source)
        self._clock_ns = clock_ns

    def read(self) -> Reading:
        """Read the page once; a failure becomes the error of the reading."""
        try:
            before_ns, body, after_ns = self._page.get()
            values = self._reader.read(body)
        except Refused as error:
            return Reading(self._clock_ns(), None, {}, masked(str(error)), refused=error.is_permanent)
        except (OSError, http.client.HTTPException, ValueError, msgspec.MsgspecError) as error:
            self._page.close()
            return Reading(self._clock_ns(), None, {}, masked(f"{type(error).__name__}: {error} at {self._page.path}"))
        return Reading((before_ns + after_ns) // 2, (after_ns - before_ns) / 1e9, values)

    def close(self) -> None:
        """Close the connection."""
        self._page.close()


class ServerProbe:
    """Reads a page periodically and on order.

    Args:
        page: the page.
        emit: takes records; called in the probe's thread.
        done: takes the number of a completed order; called in the probe's thread.
    """

    def __init__(self, page: ServerPage, emit: Callable[[TelemetryRecord], None], done: Callable[[int], None]) -> None:
        self._name = page.name
        self._reader = PageReader(page)
        self._emit = emit
        self._done = done
        self._orders: queue.SimpleQueue[Mark | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stopped = False
        threading.Thread(target=self._run, name="server-probe", daemon=True).start()

    def mark(self, order: Mark) -> None:
        """Read now; ``done`` is called when that has succeeded or failed."""
        self._orders.put(order)

    def stop(self) -> None:
        """Emit nothing from now on, without waiting for an exchange in progress."""
        with self._lock:
            self._stopped = True
        self._orders.put(None)

    def _run(self) -> None:
        ticker = Ticker(INTERVAL_NS, time.monotonic_ns())
        refused = False
        while True:
            # A page that is refused once is read again only on order.
            wait_s = None if refused else ticker.wait_ns(time.monotonic_ns()) / 1e9
            try:
                order = self._orders.get(timeout=wait_s)
            except queue.Empty:
                ticker.fire(time.monotonic_ns())
                refused = self._read_once(None).refused
                continue
            if order is None:
                self._reader.close()
                return
            self._read_once(order)

    def _read_once(self, order: Mark | None) -> Reading:
        """Read the page and emit the record."""
        reading = self._reader.read()
        with self._lock:
            if not self._stopped:
                self._emit(_record(self._name, reading, order.mark if order else None))
                if order:
                    self._done(order.number)
        return reading


def _record(source: str, reading: Reading, mark: str | None) -> TelemetryRecord:
    figures = reading.values if mark else {name: value for name, value in reading.values.items() if "_le_" not in name}
    values: dict[str, float | int | str | None] = {"scrape_s": reading.scrape_s, **figures}
    if mark:
        values["mark"] = mark
    reasons = {name: "the engine shows no number" for name, value in figures.items() if value is None}
    if reading.error:
        values["scrape_s"] = None
        reasons["scrape_s"] = reading.error
    return TelemetryRecord(reading.t_ns, source, values, reasons)
