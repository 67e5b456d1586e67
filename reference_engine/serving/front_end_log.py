"""Records the times of streamed requests in the HTTP process; see `serving/event_log.py`."""

import contextlib
import time
from collections.abc import Sequence

from bakeoff.reference_engine.errors import RequestError, UserMistakeError
from bakeoff.reference_engine.serving.core.client import EngineClient
from bakeoff.reference_engine.serving.event_log import HttpRecord, Recording, Write


class FrontEndLog:
    """Records from `start` to `stop`. Used on the event loop only.

    Args:
        directory: for logs; empty if they are off.
    """

    def __init__(self, directory: str) -> None:
        self._recording = Recording(directory, "front-end")

    def start(self) -> str:
        """Starts a log; returns its path.

        Raises:
            RequestError: there is no directory, a log is being written already, or the clock is not shared.
        """
        try:
            return self._recording.start()
        except UserMistakeError as error:
            raise RequestError(str(error)) from error

    def stop(self) -> str:
        """Ends the log; returns its path.

        Raises:
            RequestError: no log is being written, or it is incomplete.
        """
        try:
            return self._recording.stop()
        except UserMistakeError as error:
            raise RequestError(str(error)) from error

    def close(self) -> None:
        """Ends a log that is being written."""
        if self._recording.is_on:
            with contextlib.suppress(RequestError):
                self.stop()

    def trace(self) -> "HttpTrace | None":
        """The trace of a request whose handler begins now; None while no log is being written."""
        return HttpTrace(self) if self._recording.is_on else None

    def append(self, record: HttpRecord) -> None:
        """Stores the record of a request that has ended; drops it if the log has ended before."""
        self._recording.append(record)


class HttpTrace:
    """The times of one request.

    Args:
        log: gets the times when the request ends.
    """

    __slots__ = ("_engines", "_log", "_parsed_ns", "_received_ns", "_writes")

    def __init__(self, log: FrontEndLog) -> None:
        self._log = log
        self._received_ns = time.monotonic_ns()
        self._parsed_ns = 0
        self._writes: list[Write] = []
        self._engines: EngineClient | None = None

    def parsed(self, engines: EngineClient) -> None:
        """Records that the request has been parsed and tokenised and goes to these engines."""
        self._engines = engines
        self._parsed_ns = time.monotonic_ns()

    def writes(self, tokens: int) -> None:
        """Records that the text of some tokens is about to be written to the socket."""
        assert self._engines is not None
        self._writes.append((tokens, self._engines.reported_ns, time.monotonic_ns()))

    def ended(self, request_ids: Sequence[str]) -> None:
        """Records that the answer has ended, or that its client has disconnected."""
        self._log.append(
            HttpRecord(
                list(request_ids), self._received_ns, self._parsed_ns, self._writes,
                time.monotonic_ns(),
            )
        )  # fmt: skip
