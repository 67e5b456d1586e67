"""Writes every answer when it is due; the part of the truth server in which microseconds count."""

import heapq
import itertools
import os
import time
from collections import deque
from collections.abc import Callable

from harness.truth.answer import Answer

NEVER_NS = 1 << 62
_BURST_NS = 100_000
"""A burst is left so often to look for new requests, so that their arrival is stamped promptly."""


class Pump:
    """The timetable.

    Answers wait in a heap until they are due, then in a queue: whoever is late takes turns. What one answer has due at
    the same instant leaves in one go, so without gaps the earlier request is answered first.

    Args:
        ended: called with an answer when its last write is out.
        failed: called with an answer and the error of its write, ``BlockingIOError`` included; or with None after a
            write of which the kernel took only a part.

    Attributes:
        hold_ns: from here on nothing is written,
        free_ns: up to here.
    """

    def __init__(self, ended: Callable[[Answer], None], failed: Callable[[Answer, OSError | None], None]) -> None:
        self._ended = ended
        self._failed = failed
        self._waiting: list[tuple[int, int, Answer]] = []
        self._ready: deque[Answer] = deque()
        self._order = itertools.count()
        self.hold_ns = self.free_ns = NEVER_NS

    def add(self, answer: Answer) -> None:
        """Put ``answer`` on the timetable for its ``due_ns``."""
        heapq.heappush(self._waiting, (answer.due_ns, next(self._order), answer))

    def resume(self, answer: Answer) -> None:
        """Its connection takes bytes again: it is due now."""
        self._ready.append(answer)

    def run(self, now_ns: int) -> int:
        """Write what is due, for at most 100 µs.

        Returns:
            when there is something to write next; in the past when there is already.
        """
        waiting, ready = self._waiting, self._ready
        while waiting and waiting[0][0] <= now_ns:
            ready.append(heapq.heappop(waiting)[2])
        if ready:
            self._burst(min(self.hold_ns, now_ns + _BURST_NS))
        if ready:
            return self.free_ns if time.monotonic_ns() >= self.hold_ns else 0
        return waiting[0][0] if waiting else NEVER_NS

    def _burst(self, until_ns: int) -> None:
        """Write until ``until_ns``, or as long as something is due."""
        ready, waiting, order = self._ready, self._waiting, self._order
        take, push, write, clock = ready.popleft, heapq.heappush, os.write, time.monotonic_ns
        put, put_first = ready.append, ready.appendleft
        while ready:
            t_ns = clock()
            if t_ns >= until_ns:
                return
            answer = take()
            data = answer.data
            try:
                taken = write(answer.fd, data)
            except OSError as error:
                self._failed(answer, error)
                continue
            answer.stamp(t_ns)
            if taken < len(data):
                answer.took(taken)
                self._failed(answer, None)
                continue
            steps = answer.steps
            for gap_ns, answer.data in steps:  # only the next one: cheaper than next() and a test
                if gap_ns:
                    due_ns = answer.due_ns = answer.due_ns + gap_ns
                    if due_ns > t_ns:
                        push(waiting, (due_ns, next(order), answer))
                    else:
                        put(answer)
                else:
                    put_first(answer)
                break
            else:
                self._ended(answer)
