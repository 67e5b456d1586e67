"""A kernel timer that an event loop watches like a socket.

Uses Linux's timerfd(2), through ctypes until Python 3.13 is the oldest supported version. Other systems use the loop's
own timer, with a resolution of a millisecond.
"""

import asyncio
import contextlib
import ctypes
import os
import sys
from collections.abc import Callable

from bakeoff.results.units import NS_PER_S

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1


class _Timespec(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Timer:
    """Calls ``callback`` once per :meth:`set`; setting it again replaces the deadline.

    Args:
        loop: loop that calls it.
        callback: function to call.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._fd = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0:
            loop.add_reader(self._fd, self._fired)

    def set(self, deadline_ns: int) -> None:
        """Call at ``deadline_ns`` of the monotonic clock, or at once if that has passed."""
        if self._fd < 0:
            if self._handle is not None:
                self._handle.cancel()
            self._handle = self._loop.call_at(deadline_ns / NS_PER_S, self._callback)
            return
        at = _Timespec(*divmod(max(1, deadline_ns), NS_PER_S))  # 0 would disarm it
        self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(_Itimerspec(_Timespec(0, 0), at)), None)

    def close(self) -> None:
        """Disarm and free; closing twice is harmless."""
        if self._handle is not None:
            self._handle.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _fired(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the timer was set again between the loop's poll and this call
            os.read(self._fd, 8)
        self._callback()
