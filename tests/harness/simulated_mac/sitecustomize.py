"""A system like macOS, as far as Python shows it: put this folder on ``PYTHONPATH`` of a process on Linux.

Without functions that only Linux has, and without /proc for all but psutil, which reads it in place of macOS's calls.
"""

import builtins
import ctypes
import fcntl
import io
import os
import select
import signal
import sys

for module, prefixes in {os: ("SCHED_", "sched_"), select: ("EPOLL", "epoll")}.items():
    for name in [name for name in dir(module) if name.startswith(prefixes)]:
        delattr(module, name)
import socket  # noqa: E402  (its selectors are chosen by what select has)

_LACKING = {
    ctypes.CDLL: ("prctl", "syscall", "timerfd_create", "timerfd_settime"),
    fcntl: ("F_SETPIPE_SZ", "F_GETPIPE_SZ"),
    os: ("copy_file_range", "eventfd", "eventfd_read", "eventfd_write", "fdatasync", "getrandom", "memfd_create",
         "pidfd_open", "posix_fadvise", "posix_fallocate", "splice"),
    select: ("POLLRDHUP",),
    signal: ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo"),
    socket: ("SO_PEERCRED", "TCP_CONGESTION", "TCP_QUICKACK", "TCP_USER_TIMEOUT"),
}  # fmt: skip


def _absent(self: ctypes.CDLL, name: str) -> object:
    if name in _LACKING[ctypes.CDLL]:
        raise AttributeError(f"symbol not found: {name}")
    return _find(self, name)


def _is_hidden(path: object) -> bool:
    """Whether ``path`` is of /proc, and neither of the last callers is psutil."""
    if not (isinstance(path, str | os.PathLike) and str(path).startswith("/proc")):
        return False
    frame, names = sys._getframe(2), []
    while frame is not None and len(names) < 8:
        names.append(frame.f_code.co_filename)
        frame = frame.f_back
    return not any("psutil" in name for name in names)


def _hiding(function):
    def guarded(path, *arguments, **options):
        if _is_hidden(path):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return function(path, *arguments, **options)

    return guarded


_find = ctypes.CDLL.__getattr__
ctypes.CDLL.__getattr__ = _absent
for module, names in _LACKING.items():
    for name in names if module is not ctypes.CDLL else ():
        if hasattr(module, name):
            delattr(module, name)
builtins.open = io.open = _hiding(builtins.open)
for name in ("open", "stat", "lstat", "listdir", "scandir", "readlink"):
    setattr(os, name, _hiding(getattr(os, name)))

import psutil  # noqa: E402  (imported with /proc in sight, as it reads it)


def _refused(*_: object, **__: object) -> list[object]:
    """As macOS answers who is not root."""
    raise psutil.AccessDenied(0)


psutil.net_connections = _refused
