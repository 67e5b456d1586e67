"""Rests for a loop that is woken too often: many chunks in one read instead of a read for each.

A wake-up and a read cost the kernel about 4 µs however little there is to read, so a worker that takes every chunk as
it comes ends at some 200,000 a second, and from there on its lateness has no bound. Above :data:`DENSE_PER_MS` the
loop rests for 50 µs between two rounds: a stamp is late by at most that, and a chunk costs a third. Network cards
moderate their interrupts for the same reason (J. Mogul, K. Ramakrishnan: *Eliminating receive livelock in an
interrupt-driven kernel*. ACM TOCS 15 (1997), 217-252).
"""

import asyncio
import time

DENSE_PER_MS = 100
"""Chunks in a millisecond above which the loop rests: a hundred streams of a thousand tokens a second each."""
REST_S = 0.000_05
_WINDOW_NS = 1_000_000


class Moderator:
    """One for each transport.

    Attributes:
        loop: the loop that rests; None, as before the first connection, for none.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._chunks = 0
        self._window_end_ns = 0
        self._dense = False
        self._resting = False

    def count(self, chunks: int, now_ns: int) -> None:
        """So many chunks came in the read at ``now_ns``."""
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
