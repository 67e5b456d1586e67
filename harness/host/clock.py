"""Time as a dependency: the real clock, and an event loop in virtual time for tests of anything that waits.

Durations come from the host's monotonic clock, which all processes share on Linux.
"""

import asyncio
import heapq
import itertools
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from bakeoff.harness.host.timerfd import Timer
from bakeoff.results.units import NS_PER_S

T = TypeVar("T")


class Clock(Protocol):
    """Reads time and waits for it."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds."""
        ...

    def call_at_ns(self, deadline_ns: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` on the running loop at ``deadline_ns``, or soon if that has passed; never from within."""
        ...

    def close(self) -> None:
        """Cancel all callbacks."""
        ...


class MonotonicClock:
    """The real clock; each event loop needs its own.

    Timers of an event loop are up to a millisecond late (the resolution of libuv). This clock uses a kernel timer that
    the loop watches like a socket: callbacks are about 50 µs late, and waiting takes no CPU time.
    """

    def __init__(self) -> None:
        self._alarms: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._timer: Timer | None = None

    def now_ns(self) -> int:
        """``time.monotonic_ns()``."""
        return time.monotonic_ns()

    def call_at_ns(self, deadline_ns: int, callback: Callable[[], None]) -> None:
        alarm = (deadline_ns, next(self._order), callback)
        heapq.heappush(self._alarms, alarm)
        if self._alarms[0] is alarm:
            if self._timer is None:
                self._timer = Timer(asyncio.get_running_loop(), self._ring)
            self._timer.set(deadline_ns)

    def close(self) -> None:
        """Cancel all callbacks."""
        self._alarms.clear()
        if self._timer is not None:
            self._timer.close()
            self._timer = None

    def _ring(self) -> None:
        now_ns = time.monotonic_ns()
        while self._alarms and self._alarms[0][0] <= now_ns:
            heapq.heappop(self._alarms)[2]()
        if self._alarms and self._timer is not None:
            self._timer.set(self._alarms[0][0])


class LoopClock:
    """The running loop's own time; virtual under :func:`run_virtual`."""

    def now_ns(self) -> int:
        """Loop time in nanoseconds."""
        return round(asyncio.get_running_loop().time() * NS_PER_S)

    def call_at_ns(self, deadline_ns: int, callback: Callable[[], None]) -> None:
        """Set a timer of the loop."""
        asyncio.get_running_loop().call_at(deadline_ns / NS_PER_S, callback)

    def close(self) -> None:
        """Do nothing: timers end with the loop."""


async def sleep_until_ns(clock: Clock, deadline_ns: int) -> None:
    """Return at ``deadline_ns`` of ``clock``, or soon if that has passed."""
    passed = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not passed.done():
            passed.set_result(None)

    clock.call_at_ns(deadline_ns, wake)
    await passed


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits: instead of waiting, virtual time jumps to the next timer."""

    def __init__(self, now_s: float) -> None:
        super().__init__()
        self.now_s = now_s

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("virtual time cannot advance: nothing is scheduled, so the coroutine waits forever")
        if not ready and timeout is not None:
            self.now_s += max(timeout, 0)
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, start_s: float) -> None:
        self._jumping = _JumpingSelector(start_s)
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run_virtual(coroutine: Coroutine[Any, Any, T], *, start_s: float = 0.0) -> T:
    """Run ``coroutine`` on a loop in virtual time, which jumps over every wait: an hour takes a millisecond.

    Args:
        coroutine: coroutine to run.
        start_s: initial time of the loop.
    """
    with asyncio.Runner(loop_factory=lambda: _VirtualLoop(start_s)) as runner:
        return runner.run(coroutine)
