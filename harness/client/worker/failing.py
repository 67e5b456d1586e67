"""Tells failed requests from answered ones while a load runs, and finds a ramp in which every request fails.

A server that fails at once would get tens of thousands of requests from a closed loop, and the plan of the window,
which follows from the ramp's pace, would become as long. So a slot pauses after each failure, whatever its kind, and a
ramp that only fails ends the load.
"""

import asyncio
from http import HTTPStatus

from bakeoff.engines.dialects import Dialect
from bakeoff.harness.client.wire.stream_content import is_answer, is_success
from bakeoff.harness.client.worker.sessions import RequestInFlight
from bakeoff.results.records import FAILURE_PAUSE_NS, StreamEnd
from bakeoff.results.units import NS_PER_S

COHORT = 5
"""A ramp is given up before its time only after this many failures in a row from its start."""
REJECTED_S = 3.0
"""If the server rejects requests, this time after the first one suffices, since few arrive at a low rate."""
_REJECTIONS = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})
"""Besides redirects, the statuses that every later request would get too: a key, name or address is wrong."""
_TRUSTED = 10
"""After this many answers in a row, answers are decoded rarely and late: decoding would delay the next request."""
_MAX_DECODED_BYTES = 1 << 16
"""Longer answers take so long that failures of theirs flood nothing, and decoding them would hold the load up."""
_MAX_RESET_BYTES = 1 << 20
"""As for answers whose connection broke behind their end, which seldom happens."""
_END_MARKS = (b"DONE", b"usage")
"""One of them is in the last reads of a whole answer."""


class FailureDetector:
    """Decides for each ended request whether it failed.

    Failures of the transport and HTTP statuses always show. An error event or a missing finish reason shows only if the
    answer is decoded. That is done for every answer until ten in a row were whole; then for one of those that took less
    than :data:`FAILURE_PAUSE_NS`, once in that time, and after the slot's next request has been sent.

    Args:
        dialect: of the engine; None: every complete answer with status 200 is whole.
    """

    def __init__(self, dialect: Dialect | None) -> None:
        self._dialect = dialect
        self._whole = 0
        self._decoded_ns = 0

    def has_failed(self, request: RequestInFlight) -> bool:
        """Whether the request failed, as far as is known now; False if the client cancelled it."""
        if request.end in {StreamEnd.RESET, StreamEnd.TIMEOUT} and is_success(request.status):
            return not self._is_whole(request)
        if request.end is not StreamEnd.COMPLETE or not is_success(request.status):
            return request.end is not StreamEnd.CANCELLED
        if self._dialect is None or sum(map(len, request.reads)) > _MAX_DECODED_BYTES:
            return False
        if self._whole < _TRUSTED:
            return not self._decode(request)
        is_quick = request.ended_ns - request.started_ns < FAILURE_PAUSE_NS
        if is_quick and request.ended_ns - self._decoded_ns >= FAILURE_PAUSE_NS:
            self._decoded_ns = request.ended_ns
            asyncio.get_running_loop().call_soon(self._decode, request)
        return False

    def _is_whole(self, request: RequestInFlight) -> bool:
        """Whether the whole answer had come before its connection broke; most that break are not decoded to tell."""
        tail = b"".join(request.reads[-2:])
        if self._dialect is None or not any(mark in tail for mark in _END_MARKS):
            return False
        is_small = sum(map(len, request.reads)) <= _MAX_RESET_BYTES
        return is_small and is_answer(request, self._dialect, is_reset=True)

    def _decode(self, request: RequestInFlight) -> bool:
        assert self._dialect is not None
        is_whole = is_answer(request, self._dialect)
        self._whole = self._whole + 1 if is_whole else 0
        return is_whole


class RampFailures:
    """Counts the failures of one ramp.

    Attributes:
        ended: requests that have ended.
        failed: those of them that failed.
    """

    def __init__(self) -> None:
        self.ended = self.failed = 0
        self._rejected = self._unanswered = 0
        self._first_ns: int | None = None

    def add(self, request: RequestInFlight) -> None:
        """Count a request that has ended."""
        self.ended += 1
        if request.has_failed:
            self.failed += 1
            self._rejected += _is_rejection(request.status)
            self._unanswered += request.end is StreamEnd.TIMEOUT and not request.read_ns
            self._first_ns = request.ended_ns if self._first_ns is None else self._first_ns

    @property
    def are_all(self) -> bool:
        """Whether requests have ended, each with a failure."""
        return 0 < self.ended == self.failed

    @property
    def are_unanswered(self) -> bool:
        """Whether requests have ended, and for each the server sent nothing until its timeout."""
        return 0 < self.ended == self._unanswered

    @property
    def are_cohort(self) -> bool:
        """Whether enough requests have ended to give the ramp up, each with a failure."""
        return self.are_all and self.ended >= COHORT

    def are_rejections(self, now_ns: int) -> bool:
        """Whether the server rejects every request, and has done so often or long enough."""
        if self._first_ns is None or self._rejected < self.ended:
            return False
        return self.ended >= COHORT or now_ns - self._first_ns >= REJECTED_S * NS_PER_S


def _is_rejection(status: int | None) -> bool:
    return status in _REJECTIONS or (status is not None and 300 <= status < 400)
