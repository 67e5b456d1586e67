"""Counters behind the foreign load, read from a made-up /proc: processes come and go, and none is lost."""

import os
import shutil
from pathlib import Path

import psutil
import pytest

from bakeoff.harness.host.cpu import CpuProbe, TreeTime

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SECOND_NS = 1_000_000_000


class Proc:
    """Files as the kernel writes them; times are in seconds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parents: dict[int, int] = {}

    def process(self, pid: int, parent: int, own_s: float = 0.0, waited_s: float = 0.0) -> None:
        """Write a process with equal times in system and user mode and a name that is hard to parse."""
        own, waited = round(own_s * TICKS_PER_S / 2), round(waited_s * TICKS_PER_S / 2)
        fields = ["S", parent, *[0] * 9, own, own, waited, waited, *[0] * 4, 5, *[0] * 30]
        (self.folder / f"{pid}/task/{pid}").mkdir(parents=True, exist_ok=True)
        (self.folder / f"{pid}/stat").write_text(f"{pid} (a) b (c) {' '.join(map(str, fields))}\n")
        self._parents[pid] = parent
        self._write_children()

    def ends(self, *pids: int) -> None:
        for pid in pids:
            (self.folder / f"{pid}/stat").write_text("")  # an open file of a process that has ended gives nothing
            shutil.rmtree(self.folder / str(pid))
            del self._parents[pid]
        self._write_children()

    def _write_children(self) -> None:
        for parent in self._parents:
            children = [child for child, its_parent in self._parents.items() if its_parent == parent]
            (self.folder / f"{parent}/task/{parent}/children").write_text(" ".join(map(str, children)))

    def cores(self, *, user_s: float = 0.0, idle_s: float = 0.0, iowait_s: float = 0.0) -> None:
        times = (
            user_s,
            0,
            0,
            idle_s,
            iowait_s,
            1.0,
            2.0,
            40.0,
            0,
            0,
        )  # 1 s of interrupts, 2 s of soft ones, 40 s stolen
        total = "cpu  " + " ".join(str(round(seconds * TICKS_PER_S)) for seconds in times)
        lines = [total, total.replace("cpu ", "cpu0"), "intr 1 2 3", "ctxt 9"]
        (self.folder / "stat").write_text("\n".join(lines))


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    files = Proc(tmp_path)
    files.cores()
    return files


def test_a_tree_is_the_root_and_all_below_it(proc: Proc) -> None:
    proc.process(1, parent=0, own_s=100)
    proc.process(10, parent=1, own_s=1)
    proc.process(11, parent=10, own_s=2)
    proc.process(12, parent=11, own_s=4)
    proc.process(20, parent=1, own_s=50)
    assert TreeTime([10]).read_s(0) == 7.0
    assert TreeTime([10, 11, 20]).read_s(0) == 57.0, "each process counts once"


def test_what_a_child_used_stays_when_it_ends(proc: Proc) -> None:
    """It had used 3 s when it was last read, and 3.5 s at its end, which its parent then counts."""
    proc.process(10, parent=1, own_s=1)
    proc.process(11, parent=10, own_s=3)
    tree = TreeTime([10])
    assert tree.read_s(0) == 4.0
    proc.ends(11)
    proc.process(10, parent=1, own_s=1, waited_s=3.5)
    assert tree.read_s(1) == 4.5


def test_a_child_that_came_and_went_between_two_readings_counts(proc: Proc) -> None:
    proc.process(10, parent=1, own_s=1)
    tree = TreeTime([10])
    tree.read_s(0)
    proc.process(10, parent=1, own_s=1, waited_s=6)
    assert tree.read_s(1) == 7.0


def test_a_parent_that_does_not_wait_for_its_children_loses_nothing(proc: Proc) -> None:
    """Where SIGCHLD is ignored, the kernel adds the child's time to no process."""
    proc.process(10, parent=1, own_s=1)
    proc.process(11, parent=10, own_s=3)
    tree = TreeTime([10])
    tree.read_s(0)
    proc.ends(11)
    assert tree.read_s(1) == 4.0
    proc.process(10, parent=1, own_s=2)
    assert tree.read_s(2) == 5.0


def test_a_child_and_its_own_child_end_at_once(proc: Proc) -> None:
    proc.process(10, parent=1)
    proc.process(11, parent=10, own_s=3)
    proc.process(12, parent=11, own_s=5)
    tree = TreeTime([10])
    assert tree.read_s(0) == 8.0
    proc.ends(11, 12)
    proc.process(10, parent=1, waited_s=8)
    assert tree.read_s(1) == 8.0


def test_an_orphan_stays_in_the_tree(proc: Proc) -> None:
    proc.process(10, parent=1)
    proc.process(11, parent=10, own_s=3)
    proc.process(12, parent=11, own_s=5)
    tree = TreeTime([10])
    tree.read_s(0)
    proc.ends(11)
    proc.process(10, parent=1, waited_s=3)
    proc.process(12, parent=1, own_s=6)
    assert tree.read_s(2 * SECOND_NS) == 9.0
    proc.process(12, parent=1, own_s=7)
    assert tree.read_s(2 * SECOND_NS + 1) == 10.0


def test_new_processes_are_looked_for_once_a_second_and_then_count_from_their_start(proc: Proc) -> None:
    proc.process(10, parent=1)
    tree = TreeTime([10])
    tree.read_s(0)
    proc.process(11, parent=10, own_s=2)
    assert tree.read_s(SECOND_NS - 1) == 0.0
    assert tree.read_s(SECOND_NS) == 2.0


def test_a_number_that_is_used_again_is_another_process(proc: Proc) -> None:
    proc.process(10, parent=1)
    proc.process(11, parent=10, own_s=2)
    tree = TreeTime([10])
    tree.read_s(0)
    proc.ends(11)
    proc.process(10, parent=1, waited_s=2)
    proc.process(11, parent=1, own_s=9)
    assert tree.read_s(1) == 2.0
    assert tree.read_s(SECOND_NS) == 2.0


def test_both_counters_are_read_at_once(proc: Proc) -> None:
    """Stolen time is in neither: it counts as foreign."""
    proc.cores(user_s=50.0, idle_s=10.0, iowait_s=4.0)
    proc.process(10, parent=1, own_s=3)
    (record,) = CpuProbe([10]).read(42)
    assert (record.t_ns, record.source) == (42, "cpu")
    assert record.values == {"cores": 1, "unused_s": 10 + 4 + 1 + 2, "own_s": 3.0}


def test_what_is_not_known_is_null_with_the_reason(proc: Proc) -> None:
    (record,) = CpuProbe([10], "the engine is hidden").read(0)
    assert (record.values["own_s"], record.reasons) == (None, {"own_s": "the engine is hidden"})
    (proc.folder / "stat").unlink()
    (record,) = CpuProbe([10]).read(0)
    assert record.values["unused_s"] is None
    assert "No such file" in record.reasons["unused_s"]


def test_the_real_proc_is_read() -> None:
    (record,) = CpuProbe([os.getpid()]).read(0)
    cores, own_s = record.values["cores"], record.values["own_s"]
    assert isinstance(cores, int)
    assert isinstance(own_s, float)
    assert cores >= 1
    assert own_s > 0
