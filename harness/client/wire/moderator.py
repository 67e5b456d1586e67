"""Pauses an event loop that is woken too often, so that one read returns many chunks.

A wake-up and a read cost about 4 µs of kernel time however few bytes there are, so a worker that reads every chunk by
itself saturates at about 200,000 chunks per second, and its lateness then grows without bound. Above
:data:`DENSE_PER_MS` the loop sleeps for 50 µs between two rounds: stamps are late by at most that, and a chunk costs a
third. Network cards moderate interrupts for the same reason (J. Mogul, K. Ramakrishnan: *Eliminating receive livelock
in an interrupt-driven kernel*. ACM TOCS 15 (1997), 217-252).
"""

import asyncio
import time

DENSE_PER_MS = 100
"""Chunks per millisecond above which the loop pauses: a hundred streams of a thousand tokens per second each."""
REST_S = 0.000_05
_WINDOW_NS = 1_000_000


class Moderator:
    """Counts chunks of one transport and pauses its loop.

    Attributes:
        loop: the loop to pause; None before the first connection.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._chunks = 0
        self._window_end_ns = 0
        self._dense = False
        self._resting = False

    def count(self, chunks: int, now_ns: int) -> None:
        """Count the chunks of the read at ``now_ns``."""
        self._chunks += chunks
        if now_ns >= self._window_end_ns:
            self._dense = self._chunks >= DENSE_PER_MS and now_ns < self._window_end_ns + _WINDOW_NS
            self._window_end_ns = now_ns + _WINDOW_NS
            self._chunks = 0
        if self._dense and not self._resting and self.loop is not None:
            self._resting = True
            self.loop.call_soon(self._rest)

    def _rest(self) -> None:
        time.sleep(REST_S)
        self._resting = False
