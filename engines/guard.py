"""Runs one engine and outlives whoever started it by no more than a few seconds.

Started as a plain script, with the standard library only, so that it costs 20 ms. It puts the engine into a session
and process group of its own, writes the engine's pid as one line to stdout, and then waits for one of two things:

* the engine ends: its exit status becomes the guard's;
* stdin closes, because the harness asks for a stop or is gone, by ``kill -9`` too: the whole group gets SIGINT, then
  SIGTERM, then SIGKILL, each after the grace it was given.

Nothing survives: the engine dies with the guard (PR_SET_PDEATHSIG), and what an engine orphans is re-parented to the
guard (PR_SET_CHILD_SUBREAPER) and killed. Linux only.

Where a clean-up is given, it is run when the engine is gone, however it ended: a container outlives its client.

Usage: ``python guard.py GRACE_INT_S GRACE_TERM_S [CLEANUP… --] -- ARGV…``
"""

import ctypes
import functools
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)
CLEANUP_S = 20.0
"""How long a clean-up may take."""
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
    cleanup, program = _parts(argv[2:])
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        child = subprocess.Popen(
            program,
            stdin=subprocess.DEVNULL,
            stdout=2,
            start_new_session=True,
            preexec_fn=functools.partial(_die_with_guard, os.getpid()),  # noqa: PLW1509  (this script has one thread)
        )
    except OSError as error:
        sys.stderr.write(f"cannot start {program[0]}: {error.strerror}\n")
        return EXIT_CANNOT_START
    sys.stdout.write(f"{child.pid}\n")
    sys.stdout.flush()
    pidfd = os.pidfd_open(child.pid)
    if pidfd not in _wait(pidfd, 0, timeout_s=None):
        _stop(child.pid, pidfd, graces_s)
    status = child.wait()
    _signal_group(child.pid, signal.SIGKILL)
    _kill_adopted()
    if cleanup:
        clean_up(cleanup, 2)
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
