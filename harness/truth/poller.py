"""Wait for descriptors, as exactly as the system can.

Linux's epoll_pwait2(2) counts nanoseconds; ctypes calls it, because Python has only milliseconds.

Spinning is no more exact: Linux takes a real-time process that never sleeps off its core for 50 ms of every second in
which anything else wants to run there.
"""

import contextlib
import ctypes
import errno
import select

from bakeoff import system
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


class EpollPoller:
    """Linux's epoll, with sleeps of nanoseconds where the kernel has them.

    Descriptors are watched with masks of ``POLL…`` bits, whose values epoll's bits have, too.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.register, self.modify, self.unregister = self._epoll.register, self._epoll.modify, self._epoll.unregister
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # else sleeps without real-time priority last 50 µs longer
        self._syscall = libc.syscall
        pointer = ctypes.c_void_p
        self._syscall.argtypes = (ctypes.c_long, ctypes.c_int, pointer, ctypes.c_int, pointer, pointer, ctypes.c_size_t)
        self._event = (ctypes.c_char * 16)()  # the kernel needs room for one; the caller polls for it again
        self._timeout = _Timespec(0, 0)
        self._arguments = (ctypes.addressof(self._event), 1, ctypes.addressof(self._timeout), None, 8)
        self._precise = self._sleep(0)

    def ready(self, most: int) -> list[tuple[int, int]]:
        """Descriptors that have an event, with its bits, without waiting."""
        return self._epoll.poll(0, most)

    def wait(self, remaining_ns: int) -> None:
        """Return on an event, or shortly before ``remaining_ns`` have passed: ask :meth:`ready` from there on."""
        if not self._precise:
            if remaining_ns > _COARSE_LEAD_NS:
                self._epoll.poll(min(remaining_ns - _COARSE_LEAD_NS, _LONGEST_NS) / NS_PER_S, 1)
            return
        lead_ns = _NEAR_LEAD_NS if remaining_ns < _NEAR_NS else _FAR_LEAD_NS
        if remaining_ns > lead_ns:
            self._sleep(min(remaining_ns - lead_ns, _LONGEST_NS))

    def close(self) -> None:
        """Free it; closing twice is harmless."""
        self._epoll.close()

    def _sleep(self, duration_ns: int) -> bool:
        """Sleep; returns whether the kernel has the system call."""
        self._timeout.s, self._timeout.ns = divmod(duration_ns, NS_PER_S)
        events = self._syscall(_EPOLL_PWAIT2, self._epoll.fileno(), *self._arguments)
        return events >= 0 or ctypes.get_errno() != errno.ENOSYS


class PollPoller:
    """poll(2), which every POSIX system has, with sleeps of milliseconds; spins through the last one."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self.register, self.modify = self._poll.register, self._poll.modify

    def unregister(self, fd: int) -> None:
        """Watch it no more."""
        with contextlib.suppress(KeyError):
            self._poll.unregister(fd)

    def ready(self, most: int) -> list[tuple[int, int]]:
        """Descriptors that have an event, with its bits, without waiting."""
        events = self._poll.poll(0)
        for fd, mask in events:
            if mask & select.POLLNVAL:  # it was closed
                self.unregister(fd)
        return [(fd, mask) for fd, mask in events if not mask & select.POLLNVAL][:most]

    def wait(self, remaining_ns: int) -> None:
        """Return on an event, or about a millisecond before ``remaining_ns`` have passed."""
        if remaining_ns > _COARSE_LEAD_NS:
            self._poll.poll(min(remaining_ns - _COARSE_LEAD_NS, _LONGEST_NS) // 1_000_000)

    def close(self) -> None:
        """Do nothing: it holds nothing."""


def poller() -> EpollPoller | PollPoller:
    """The most exact one of this system."""
    return EpollPoller() if system.HAS_EPOLL else PollPoller()
