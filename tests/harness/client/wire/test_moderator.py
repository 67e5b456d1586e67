"""When the loop rests: only while chunks come densely, and once for each round."""

import asyncio
from typing import Any, cast

from bakeoff.harness.client.wire.moderator import DENSE_PER_MS, Moderator

MS = 1_000_000


class Rounds:
    """A loop that counts the callbacks deferred to its next round."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.rests = 0

    def call_soon(self, callback: Any) -> None:
        self.waiting.append(callback)

    def next(self) -> None:
        self.rests += len(self.waiting)
        for callback in self.waiting:
            callback()
        self.waiting.clear()


class Fed:
    """A moderator whose loop reads one chunk at a time, a round for each tenth of a millisecond."""

    def __init__(self) -> None:
        self.rounds = Rounds()
        self.moderator = Moderator()
        self.moderator.loop = cast("asyncio.AbstractEventLoop", self.rounds)
        self._now_ns = 0

    def feed(self, per_ms: int, duration_ms: int) -> int:
        """The number of rests while this many chunks arrive in each millisecond, evenly spaced."""
        before = self.rounds.rests
        end_ns = self._now_ns + duration_ms * MS
        while self._now_ns < end_ns:
            self._now_ns += MS // per_ms
            self.moderator.count(1, self._now_ns)
            if self._now_ns // (MS // 10) != (self._now_ns - MS // per_ms) // (MS // 10):
                self.rounds.next()
        return self.rounds.rests - before


def test_a_loop_that_is_paced_never_rests():
    assert Fed().feed(DENSE_PER_MS // 2, 20) == 0


def test_a_dense_loop_rests_once_in_every_round_after_the_first_millisecond():
    assert 150 <= Fed().feed(2 * DENSE_PER_MS, 20) <= 200


def test_it_stops_when_it_is_quiet_again():
    fed = Fed()
    fed.feed(2 * DENSE_PER_MS, 20)
    assert fed.feed(1, 50) <= 2
    assert fed.feed(2 * DENSE_PER_MS, 20) >= 150


def test_without_a_loop_nothing_rests():
    moderator = Moderator()
    for tenth in range(100):
        moderator.count(50, tenth * MS // 10)  # would raise if it asked for a loop
