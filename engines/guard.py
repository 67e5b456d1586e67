"""Runs one engine and outlives whoever started it by no more than a few seconds.

Started as a plain script, with the standard library only, so that it costs 20 ms. It puts the engine into a session
and process group of its own, writes the engine's pid as one line to stdout, and then waits for one of two things:

* the engine ends: its exit status becomes the guard's;
* stdin closes, because the harness asks for a stop or is gone, by ``kill -9`` too: the whole group gets SIGINT, then
  SIGTERM, then SIGKILL, each after the grace it was given.

Nothing survives: the engine dies with the guard (PR_SET_PDEATHSIG), and what an engine orphans is re-parented to the
guard (PR_SET_CHILD_SUBREAPER) and killed. Linux only.

Where a clean-up is given, it is run when the engine is gone, however it ended: a container outlives its client.

With ``--mask``, stdin begins with one line: a mask and secrets, with NUL between them. What the engine prints then
passes through the guard, which puts the mask in place of each secret: none is ever in the log, whoever is killed.

Usage: ``python guard.py GRACE_INT_S GRACE_TERM_S [--mask] [CLEANUP… --] -- ARGV…``
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
"""How long a clean-up may take."""
MASK_OPTION = "--mask"
_BLOCK_BYTES = 1 << 16
_PIPE_BYTES = 1 << 20
_REST_S = 0.02
_DRAIN_S = 5.0
"""How long the last output may take to reach the log, once nothing is left that could print."""
EXIT_CANNOT_START = 127
"""The guard's status when the program could not be executed; the reason stands in the engine's log."""


def _die_with_guard(guard: int) -> None:
    """Run in the child between fork and exec; ``_LIBC`` was loaded before the fork, nothing is imported here."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:  # it was gone before that was asked for
        os._exit(EXIT_CANNOT_START)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # a shell's background job has told its children to ignore some


def _wait(pidfd: int, *others: int, timeout_s: float | None) -> set[int]:
    poll = select.poll()
    for fd in (pidfd, *others):
        poll.register(fd, select.POLLIN | select.POLLHUP)
    return {fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)}


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return  # the group is empty already


def _stop(pid: int, pidfd: int, graces_s: tuple[float, float]) -> None:
    for number, grace_s in ((signal.SIGINT, graces_s[0]), (signal.SIGTERM, graces_s[1])):
        _signal_group(pid, number)
        _signal_group(pid, signal.SIGCONT)  # an engine that was stopped hears it too
        if _wait(pidfd, timeout_s=grace_s):
            return
    _signal_group(pid, signal.SIGKILL)
    _wait(pidfd, timeout_s=None)


def _kill_adopted() -> None:
    """Kill processes that the engine orphaned: they are children of this process now."""
    while True:
        adopted = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
        if not adopted:
            return
        for pid in adopted:
            os.kill(int(pid), signal.SIGKILL)
            os.waitpid(int(pid), 0)


class _MaskedLog:
    """Copies what is printed into a pipe to stderr, the log, whole lines at a time, with secrets masked.

    The engine may be under measurement: the pipe is looked at 50 times a second at most, however many lines it prints.

    Args:
        line: the mask and the secrets, longest first, with NUL between them.

    Attributes:
        input: file descriptor to print into; to be closed here once the engine has it.
    """

    def __init__(self, line: bytes) -> None:
        self._mask, *self._secrets = line.split(b"\0")
        self._longest_bytes = max(map(len, self._secrets), default=1)
        self._output, self.input = os.pipe()
        with contextlib.suppress(OSError):  # this user's pipes are many; then 64 KiB must do between two looks
            fcntl.fcntl(self._output, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._thread = threading.Thread(target=self._copy, daemon=True)

    def start(self) -> None:
        """Copy until every writer has closed the pipe."""
        os.close(self.input)
        self._thread.start()

    def join(self) -> None:
        """Wait until all is written."""
        self._thread.join(_DRAIN_S)

    def _copy(self) -> None:
        waiting = b""
        while block := os.read(self._output, _PIPE_BYTES):
            waiting += block
            end = max(waiting.rfind(b"\n"), waiting.rfind(b"\r")) + 1
            if len(waiting) - end > _BLOCK_BYTES:
                end = self._between_secrets(waiting)
            _log(self._masked(waiting[:end]))
            waiting = waiting[end:]
            time.sleep(_REST_S)
        _log(self._masked(waiting))

    def _between_secrets(self, line: bytes) -> int:
        """Where a line without end may be cut: what could be the beginning of a secret stays."""
        end = max(0, len(line) - self._longest_bytes)
        for secret in self._secrets:
            found = line.find(secret, max(0, end - len(secret) + 1), end + len(secret) - 1)
            end = end if found < 0 else found
        return end

    def _masked(self, text: bytes) -> bytes:
        for secret in self._secrets:
            text = text.replace(secret, self._mask)
        return text


def _log(data: bytes) -> None:
    with contextlib.suppress(OSError):  # a full disk must not stop the engine, which would wait for its pipe
        while data:
            data = data[os.write(2, data) :]


def _first_line() -> bytes:
    """Of stdin; nothing is sent after it, so that its end stays the sign to stop."""
    line = b""
    while not line.endswith(b"\n"):
        block = os.read(0, _BLOCK_BYTES)
        if not block:
            sys.exit(EXIT_CANNOT_START)  # whoever would have watched the engine is gone
        line += block
    return line.removesuffix(b"\n")


def _parts(words: list[str]) -> tuple[list[str], list[str]]:
    """The clean-up, which may be empty, and the engine's program."""
    if words[0] == "--":
        return [], words[1:]
    end = words.index("--")
    return words[:end], words[end + 2 :]


def clean_up(argv: Sequence[str], output: int) -> None:
    """Run it with a limit; what it has to say goes to a file, given by its number: the engine's log."""
    try:
        subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=CLEANUP_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        sys.stderr.write(f"clean-up failed: {error}\n")


def main(argv: list[str]) -> int:
    """Run the engine under guard and return its exit status (128 + n when signal n ended it)."""
    graces_s = (float(argv[0]), float(argv[1]))
    masks = argv[2] == MASK_OPTION
    cleanup, program = _parts(argv[3:] if masks else argv[2:])
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
    _kill_adopted()
    if log:
        log.join()
    if cleanup:
        clean_up(cleanup, 2)
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
