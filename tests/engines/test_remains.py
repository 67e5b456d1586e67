"""Killing of the processes of an engine whose guard was killed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bakeoff.engines.remains import MARK, kill_remains

SOON_S = 5.0
WAIT = "import signal, sys; print('up', flush=True); signal.pause()"


@contextmanager
def process(code: str = WAIT, *, own_session: bool = False, **env: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True, env=env, start_new_session=own_session
    ) as started:  # fmt: skip
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == "up\n"
            yield started
        finally:
            started.kill()


def test_whatever_carries_the_mark_is_killed_wherever_it_went() -> None:
    with process(own_session=True, **{MARK: "mine"}) as marked, process(**{MARK: "mined"}) as other:
        assert kill_remains("mine", None) == 1
        assert marked.wait(SOON_S) == -9
        assert other.poll() is None


def test_whatever_is_of_the_session_is_killed_without_a_mark() -> None:
    with process(own_session=True) as leader, process() as other:
        assert kill_remains("none", leader.pid) == 1
        assert leader.wait(SOON_S) == -9
        assert other.poll() is None


def test_a_process_that_has_ended_and_is_not_waited_for_does_not_count() -> None:
    with process("print('up', flush=True)", own_session=True, **{MARK: "gone"}) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert kill_remains("gone", ended.pid) == 0
