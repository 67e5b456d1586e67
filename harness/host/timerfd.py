"""A kernel timer that an event loop watches like a socket.

Uses Linux's timerfd(2), through ctypes until Python 3.13 is the oldest supported version. Elsewhere, and where the
kernel gives no further one, the loop's own timer, whose unit is a millisecond, ends a little early, and the loop turns
without waiting for the rest.
"""

import asyncio
import contextlib
import ctypes
import os
import time
from collections.abc import Callable

from bakeoff.results.units import NS_PER_S

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_LEAD_NS = 2_000_000
"""A timer of the loop is rarely later than this."""


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
        self._handle: asyncio.Handle | None = None
        self._deadline_ns = 0
        self._fd = -1
        self._libc = ctypes.CDLL(None, use_errno=True)
        if hasattr(self._libc, "timerfd_create"):
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0:
            loop.add_reader(self._fd, self._fired)

    def set(self, deadline_ns: int) -> None:
        """Call at ``deadline_ns`` of the monotonic clock, or at once if that has passed."""
        if self._fd < 0:
            if self._handle is not None:
                self._handle.cancel()
            self._deadline_ns = deadline_ns
            # Not at a time of the loop, whose clock may be another one: macOS has one that stands still in sleep.
            early_s = (deadline_ns - _LEAD_NS - time.monotonic_ns()) / NS_PER_S
            self._handle = self._loop.call_later(max(0.0, early_s), self._turned)
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

    def _turned(self) -> None:
        if time.monotonic_ns() >= self._deadline_ns:
            self._callback()
        else:
            self._handle = self._loop.call_soon(self._turned)

    def _fired(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the timer was set again between the loop's poll and this call
            os.read(self._fd, 8)
        self._callback()
