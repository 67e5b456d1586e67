"""Supervise one engine, and stop it within seconds after the parent process ended.

A plain script that uses only the standard library, so it starts in 20 ms. It starts the engine in its own session and
process group, writes the engine's pid as one line to stdout, and waits for one of two events:

* the engine ends: its exit status becomes the guard's;
* stdin closes, because the harness requests a stop or ended (even by ``kill -9``): the whole group gets SIGINT, then
  SIGTERM, then SIGKILL, with the given grace periods between.

No process survives: the engine dies with the guard (PR_SET_PDEATHSIG), and orphans are re-parented to the guard
(PR_SET_CHILD_SUBREAPER) and killed. Linux only.

A clean-up command runs after the engine ended for any reason, because a container outlives its client.

With ``--mask``, stdin begins with one line: a mask and secrets, with NUL between them. The engine's output
then passes through the guard, which replaces each secret by the mask, so no secret reaches the log even after a kill.

With ``--cores``, the engine may use only the cores whose numbers follow, with commas between them.

Usage: ``python guard.py GRACE_INT_S GRACE_TERM_S [--mask] [--cores LIST] [CLEANUP… --] -- ARGV…``
"""

import contextlib
import ctypes
import fcntl
import functools
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)
CLEANUP_S = 20.0
"""Limit on the clean-up."""
MASK_OPTION = "--mask"
CORES_OPTION = "--cores"
_BLOCK_BYTES = 1 << 16
_PIPE_BYTES = 1 << 20
_REST_S = 0.02
_DRAIN_S = 5.0
"""Limit on writing the last output to the log after all processes ended."""
EXIT_CANNOT_START = 127
"""The guard's status when the program could not be executed; the engine's log has the reason."""


def _die_with_guard(guard: int) -> None:
    """Run in the child between fork and exec; ``_LIBC`` was loaded before the fork, nothing is imported here."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:  # the guard ended before prctl took effect
        os._exit(EXIT_CANNOT_START)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # background jobs of a shell inherit ignored signals


def _wait(pidfd: int, *others: int, timeout_s: float | None) -> set[int]:
    poll = select.poll()
    for fd in (pidfd, *others):
        poll.register(fd, select.POLLIN | select.POLLHUP)
    return {fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)}


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return  # the group is already empty


def _stop(pid: int, pidfd: int, graces_s: tuple[float, float]) -> None:
    for number, grace_s in ((signal.SIGINT, graces_s[0]), (signal.SIGTERM, graces_s[1])):
        _signal_group(pid, number)
        _signal_group(pid, signal.SIGCONT)  # so that a suspended engine receives it
        if _wait(pidfd, timeout_s=grace_s):
            return
    _signal_group(pid, signal.SIGKILL)
    _wait(pidfd, timeout_s=None)


def _kill_orphans() -> None:
    """Kill processes that the engine orphaned: they are children of this process now."""
    while True:
        orphans = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
        if not orphans:
            return
        for pid in orphans:
            os.kill(int(pid), signal.SIGKILL)
            os.waitpid(int(pid), 0)


class _MaskedLog:
    """Copies output from a pipe to stderr, the log, line by line, with secrets masked.

    The pipe is read at most 50 times per second, to disturb a measured engine as little as possible.

    Args:
        line: the mask and the secrets, longest first, with NUL between them.

    Attributes:
        input: file descriptor for the engine's output; close it here once the engine has it.
    """

    def __init__(self, line: bytes) -> None:
        self._mask, *self._secrets = line.split(b"\0")
        self._longest_bytes = max(map(len, self._secrets), default=1)
        self._output, self.input = os.pipe()
        with contextlib.suppress(OSError):  # beyond the user's pipe limit; 64 KiB must then suffice between reads
            fcntl.fcntl(self._output, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._thread = threading.Thread(target=self._copy, daemon=True)

    def start(self) -> None:
        """Copy until every writer has closed the pipe."""
        os.close(self.input)
        self._thread.start()

    def join(self) -> None:
        """Wait until all output is written."""
        self._thread.join(_DRAIN_S)

    def _copy(self) -> None:
        pending = b""
        while block := os.read(self._output, _PIPE_BYTES):
            pending += block
            end = max(pending.rfind(b"\n"), pending.rfind(b"\r")) + 1
            if len(pending) - end > _BLOCK_BYTES:
                end = self._between_secrets(pending)
            _log(self._masked(pending[:end]))
            pending = pending[end:]
            time.sleep(_REST_S)
        _log(self._masked(pending))

    def _between_secrets(self, line: bytes) -> int:
        """Where to cut a line without end, so that no secret is split."""
        end = max(0, len(line) - self._longest_bytes)
        for secret in self._secrets:
            position = line.find(secret, max(0, end - len(secret) + 1), end + len(secret) - 1)
            end = end if position < 0 else position
        return end

    def _masked(self, text: bytes) -> bytes:
        for secret in self._secrets:
            text = text.replace(secret, self._mask)
        return text


def _log(data: bytes) -> None:
    with contextlib.suppress(OSError):  # a full disk must not block the engine at its pipe
        while data:
            data = data[os.write(2, data) :]


def _first_line() -> bytes:
    """The first line of stdin; nothing follows it, so that its end still requests a stop."""
    line = b""
    while not line.endswith(b"\n"):
        block = os.read(0, _BLOCK_BYTES)
        if not block:
            sys.exit(EXIT_CANNOT_START)  # the parent process ended
        line += block
    return line.removesuffix(b"\n")


def _parts(words: list[str]) -> tuple[list[str], list[str]]:
    """The clean-up, which may be empty, and the engine's program."""
    if words[0] == "--":
        return [], words[1:]
    end = words.index("--")
    return words[:end], words[end + 2 :]


def clean_up(argv: Sequence[str], output: int) -> None:
    """Run the clean-up with a time limit; its output goes to the file descriptor ``output``, the engine's log."""
    try:
        subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=CLEANUP_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        sys.stderr.write(f"clean-up failed: {error}\n")


def main(argv: list[str]) -> int:
    """Run the engine under guard and return its exit status (128 + n when signal n ended it)."""
    graces_s = (float(argv[0]), float(argv[1]))
    words = argv[2:]
    if masks := words[0] == MASK_OPTION:
        words = words[1:]
    if words[0] == CORES_OPTION:
        os.sched_setaffinity(0, map(int, words[1].split(",")))
        words = words[2:]
    cleanup, program = _parts(words)
    log = _MaskedLog(_first_line()) if masks else None
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        child = subprocess.Popen(
            program,
            stdin=subprocess.DEVNULL,
            stdout=log.input if log else 2,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=functools.partial(_die_with_guard, os.getpid()),  # noqa: PLW1509  (no other thread runs yet)
        )
    except OSError as error:
        sys.stderr.write(f"cannot start {program[0]}: {error.strerror}\n")
        return EXIT_CANNOT_START
    if log:
        log.start()
    sys.stdout.write(f"{child.pid}\n")
    sys.stdout.flush()
    pidfd = os.pidfd_open(child.pid)
    if pidfd not in _wait(pidfd, 0, timeout_s=None):
        _stop(child.pid, pidfd, graces_s)
    status = child.wait()
    _signal_group(child.pid, signal.SIGKILL)
    _kill_orphans()
    if log:
        log.join()
    if cleanup:
        clean_up(cleanup, 2)
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
