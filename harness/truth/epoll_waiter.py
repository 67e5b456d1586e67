"""Wait on an epoll set for nanoseconds: Linux's epoll_pwait2(2), through ctypes because Python has only milliseconds.

Spinning is no more exact: Linux takes a real-time process that never sleeps off its core for 50 ms of every second in
which anything else wants to run there.
"""

import ctypes
import errno
import select

from bakeoff.results.units import NS_PER_S

_EPOLL_PWAIT2 = 441
"""System call number, the same on every architecture. Linux 5.11."""
_PR_SET_TIMERSLACK = 29
_LONGEST_NS = NS_PER_S // 2
"""A signal between the interpreter's last look for signals and the sleep is handled only when the sleep ends."""
_NEAR_NS, _NEAR_LEAD_NS, _FAR_LEAD_NS = 500_000, 20_000, 150_000
"""A sleep ends this long before its deadline: waking takes about 20 µs, and up to 100 µs after longer sleeps."""
_COARSE_LEAD_NS = 1_100_000
"""The same where only milliseconds are available."""


class _Timespec(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


class EpollWaiter:
    """Sleeps until shortly before a deadline, or until the set has an event.

    Args:
        epoll: the set.
    """

    def __init__(self, epoll: "select.epoll") -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # else sleeps without real-time priority last 50 µs longer
        self._epoll = epoll
        self._syscall = libc.syscall
        pointer = ctypes.c_void_p
        self._syscall.argtypes = (ctypes.c_long, ctypes.c_int, pointer, ctypes.c_int, pointer, pointer, ctypes.c_size_t)
        self._event = (ctypes.c_char * 16)()  # the kernel needs room for one; the caller polls for it again
        self._timeout = _Timespec(0, 0)
        self._arguments = (ctypes.addressof(self._event), 1, ctypes.addressof(self._timeout), None, 8)
        self._precise = self._sleep(0)

    def wait(self, remaining_ns: int) -> None:
        """Return on an event, or shortly before ``remaining_ns`` have passed: poll without waiting from there on."""
        if not self._precise:
            if remaining_ns > _COARSE_LEAD_NS:
                self._epoll.poll(min(remaining_ns - _COARSE_LEAD_NS, _LONGEST_NS) / NS_PER_S, 1)
            return
        lead_ns = _NEAR_LEAD_NS if remaining_ns < _NEAR_NS else _FAR_LEAD_NS
        if remaining_ns > lead_ns:
            self._sleep(min(remaining_ns - lead_ns, _LONGEST_NS))

    def _sleep(self, duration_ns: int) -> bool:
        """Sleep; returns whether the kernel has the system call."""
        self._timeout.s, self._timeout.ns = divmod(duration_ns, NS_PER_S)
        events = self._syscall(_EPOLL_PWAIT2, self._epoll.fileno(), *self._arguments)
        return events >= 0 or ctypes.get_errno() != errno.ENOSYS
