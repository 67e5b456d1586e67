"""The engine's own page, read twice a second in a thread of its own: a slow page delays no other probe.

Each reading is stamped at the middle of its exchange, the instant for which its numbers hold best. Between the marks
only gauges, counters and the sums of histograms are kept; a marked reading has the buckets too.
"""

import http.client
import queue
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from engines.metrics import DrainedIterations, Prometheus
from engines.metrics.reading import Frame, reader_of
from engines.secrets import conceal, masked
from harness.telemetry.loop import Ticker
from harness.telemetry.orders import Mark, ServerPage
from results.records import TelemetryRecord

INTERVAL_NS = 500_000_000
_TIMEOUT_S = {Prometheus: 2.0, DrainedIterations: 4.0}
"""For one exchange; a page that drains itself may be held back for two seconds while nothing happens."""
_HEADERS = {"accept": "text/plain; version=0.0.4, application/json; q=0.5", "accept-encoding": "identity"}
"""The format that is cheapest to make."""


_NO_SUCH_PAGE = frozenset({301, 302, 307, 308, 401, 403, 404, 405, 410, 501})


class Refused(Exception):
    """The server answers with something else than the page."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.for_good = status in _NO_SUCH_PAGE


class Reading(NamedTuple):
    """One exchange; ``why`` says what went wrong, and is empty where the frame is good.

    ``refused`` is whether the page will not be there the next time either.
    """

    t_ns: int
    scrape_s: float | None
    frame: Frame
    why: str = ""
    refused: bool = False


class PageReader:
    """Reads one page over a connection that is kept open.

    Args:
        page: where it is.
        clock_ns: gives the stamps.
    """

    def __init__(self, page: ServerPage, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        conceal(*page.access.headers.values(), page.access.query)
        self._source = page.source
        self._headers = page.access.headers | _HEADERS
        parts = urllib.parse.urlsplit(page.base_url)
        self._path = page.access.path(parts.path.rstrip("/") + page.source.path)
        self._connection = _connection(parts, page)
        self._reader = reader_of(page.source)
        self._clock_ns = clock_ns

    def read(self) -> Reading:
        """Read the page once; whatever goes wrong becomes a reason."""
        try:
            before_ns, body, after_ns = self._exchange()
            frame = self._reader.read(body)
        except Refused as error:
            return Reading(self._clock_ns(), None, {}, masked(str(error)), refused=error.for_good)
        except (OSError, http.client.HTTPException, ValueError, msgspec.MsgspecError) as error:
            self._connection.close()
            return Reading(self._clock_ns(), None, {}, masked(f"{type(error).__name__}: {error} at {self._path}"))
        return Reading((before_ns + after_ns) // 2, (after_ns - before_ns) / 1e9, frame)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _exchange(self) -> tuple[int, bytes, int]:
        """Begin, body and end; a connection that the server has closed meanwhile is opened once more."""
        fresh = self._connection.sock is None
        try:
            return self._ask()
        except (ConnectionError, http.client.BadStatusLine):
            self._connection.close()
            if fresh:
                raise
            return self._ask()

    def _ask(self) -> tuple[int, bytes, int]:
        before_ns = self._clock_ns()
        self._connection.request("GET", self._path, headers=self._headers)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise Refused(answer.status, f"HTTP {answer.status} {answer.reason} at {self._path}")
        return before_ns, body, self._clock_ns()


class ServerProbe:
    """Reads a page at its own pace, and whenever it is told to.

    Args:
        page: where it is.
        emit: takes records; called in the probe's thread.
        done: takes the number of an order that holds now; called in the probe's thread.
    """

    def __init__(self, page: ServerPage, emit: Callable[[TelemetryRecord], None], done: Callable[[int], None]) -> None:
        self._reader = PageReader(page)
        self._emit = emit
        self._done = done
        self._orders: queue.SimpleQueue[Mark | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stopped = False
        threading.Thread(target=self._run, name="server-probe", daemon=True).start()

    def mark(self, order: Mark) -> None:
        """Read now; the order is answered when that is done, or has failed."""
        self._orders.put(order)

    def stop(self) -> None:
        """Nothing is emitted or answered from now on; an exchange that is under way is not waited for."""
        with self._lock:
            self._stopped = True
        self._orders.put(None)

    def _run(self) -> None:
        ticker = Ticker(INTERVAL_NS, time.monotonic_ns())
        refused = False
        while True:
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
        """A page that is refused once will be at the next tick too: it is asked for again at the marks only."""
        reading = self._reader.read()
        with self._lock:
            if not self._stopped:
                self._emit(_record(reading, order.mark if order else None))
                if order:
                    self._done(order.number)
        return reading


def _record(reading: Reading, mark: str | None) -> TelemetryRecord:
    kept = reading.frame if mark else {name: value for name, value in reading.frame.items() if "_le_" not in name}
    values: dict[str, float | int | str | None] = {"scrape_s": reading.scrape_s, **kept}
    if mark:
        values["mark"] = mark
    reasons = {name: "the engine shows no number" for name, value in kept.items() if value is None}
    if reading.why:
        values["scrape_s"] = None
        reasons["scrape_s"] = reading.why
    return TelemetryRecord(reading.t_ns, "server", values, reasons)


def _connection(parts: urllib.parse.SplitResult, page: ServerPage) -> http.client.HTTPConnection:
    """Not opened yet. Certificates are checked as the client's are; proxies are not used."""
    port = page.source.port if isinstance(page.source, Prometheus) and page.source.port else parts.port
    timeout_s = _TIMEOUT_S[type(page.source)]
    if parts.scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(parts.hostname or "", port, timeout=timeout_s, context=context)
    return http.client.HTTPConnection(parts.hostname or "", port, timeout=timeout_s)
