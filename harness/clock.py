"""Time as a dependency: the real clock, and a loop whose time jumps, for tests of anything that waits.

Durations come from the monotonic clock of this host, which is one for all its processes on Linux.
"""

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

NS_PER_S = 1_000_000_000
_SPIN_NS = 1_500_000


class Clock(Protocol):
    """Reads time and waits for it."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds."""
        ...

    async def sleep_until_ns(self, deadline_ns: int) -> None:
        """Return at ``deadline_ns`` or, if that has passed, at once."""
        ...


class MonotonicClock:
    """The real clock.

    Event-loop timers are late by up to a millisecond (libuv counts in them), so the last 1.5 ms before a deadline are
    spent yielding to the loop instead of sleeping: reads are still served and stamped, and the send is on time.
    """

    def now_ns(self) -> int:
        """``time.monotonic_ns()``."""
        return time.monotonic_ns()

    async def sleep_until_ns(self, deadline_ns: int) -> None:
        """Sleep to just before the deadline, then yield until it."""
        remaining = deadline_ns - time.monotonic_ns()
        if remaining > _SPIN_NS:
            await asyncio.sleep((remaining - _SPIN_NS) / NS_PER_S)
        while time.monotonic_ns() < deadline_ns:  # noqa: ASYNC110  (there is no event: time itself is waited for)
            await asyncio.sleep(0)


class LoopClock:
    """The running loop's own time: under :func:`run_virtual` it jumps."""

    def now_ns(self) -> int:
        """Loop time in nanoseconds."""
        return round(asyncio.get_running_loop().time() * NS_PER_S)

    async def sleep_until_ns(self, deadline_ns: int) -> None:
        """An ordinary sleep of the loop."""
        await asyncio.sleep(max(0, deadline_ns - self.now_ns()) / NS_PER_S)


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits: when the loop would, time jumps to what it waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("virtual time cannot pass: nothing is scheduled, the coroutine waits for ever")
        if not ready and timeout is not None:
            self.now_s += max(timeout, 0)
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run_virtual(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run ``coroutine`` on a loop whose time starts at 0 and jumps over every wait: an hour takes a millisecond."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(coroutine)
