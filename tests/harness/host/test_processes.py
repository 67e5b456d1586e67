"""Processes as the sampler follows them."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bakeoff.harness.host import processes
from bakeoff.harness.host.processes import ProcessStat, ProcessTree

S = 1_000_000_000
LINE = b"42 (a ) R (b) S 7 42 42 0 -1 4194304 100 0 0 0 11 22 33 44 20 0 5 0 9876 123456 789 18446744073709551615 0 0 0"


@pytest.fixture
def tree() -> Iterator[ProcessTree]:
    """The tree of this process."""
    tree = ProcessTree([os.getpid()])
    yield tree
    tree.close()


def started(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-E", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_a_process_is_read_whatever_its_name_holds():
    ticks_per_s, page_bytes = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    assert ProcessStat.of(LINE) == ProcessStat(7, False, False, 33 / ticks_per_s, 77 / ticks_per_s, 789 * page_bytes)


def test_a_new_child_is_found_with_the_next_search(tree: ProcessTree):
    assert os.getpid() in tree.read(0)
    with started("import sys; sys.stdin.read()") as child:
        assert child.pid not in tree.read(S - 1)
        assert child.pid in tree.read(S)
        child.communicate()
    assert child.pid not in tree.read(S + 1)


def test_a_process_whose_parent_has_ended_is_still_counted(tree: ProcessTree):
    """Servers that put themselves into the background do this."""
    with started(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-S', '-E', '-c', 'import sys; sys.stdin.read()'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)"  # the child reads the pipe that both have
    ) as parent:
        assert parent.stdout is not None
        orphan = int(parent.stdout.readline())
        assert {parent.pid, orphan} <= set(tree.read(0))
        parent.kill()
        os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
        processes = tree.read(S)
        assert orphan in processes
        assert processes[parent.pid].has_ended
    assert parent.pid not in tree.read(S + 1), "it was reaped"


def test_nothing_is_looked_through_where_no_process_was_started(tree: ProcessTree, monkeypatch: pytest.MonkeyPatch):
    looked: list[int] = []
    children = processes._children
    monkeypatch.setattr(processes, "_children", lambda pid, proc: looked.append(pid) or children(pid, proc))
    monkeypatch.setattr(tree, "_newest", iter([4711, 4711, 4712]).__next__)
    counts = [len(looked) for second in (0, 1, 2) if tree.read(second * S)]
    assert counts[0] == counts[1] < counts[2]
