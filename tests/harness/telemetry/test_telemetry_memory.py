"""What the engine's processes share is read once, page by page."""

import os
from pathlib import Path

import pytest

from bakeoff import system
from bakeoff.harness.telemetry.host import shared_memory

ROLLUP = """556a943a2000-7ffed7ddc000 ---p 00000000 00:00 0                          [rollup]
Rss:                1708 kB
Pss:                 280 kB
Pss_Dirty:           112 kB
"""


def rollup(folder: Path, text: str = ROLLUP) -> Path:
    place = folder / str(os.getpid())
    place.mkdir()
    (place / "smaps_rollup").write_text(text)
    return place / "smaps_rollup"


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(system, "proc", lambda: tmp_path)
    return tmp_path


def test_both_sizes_are_of_one_instant(proc: Path) -> None:
    rollup(proc)
    record = shared_memory(42, [os.getpid()])
    assert (record.t_ns, record.source) == (42, "memory")
    assert record.values == {"pss_bytes": 280 * 1024, "rss_bytes": 1708 * 1024}


@pytest.mark.usefixtures("proc")
def test_a_kernel_without_the_file_is_a_reason() -> None:
    record = shared_memory(42, [os.getpid()])
    assert record.values == {"pss_bytes": None, "rss_bytes": None}
    assert record.reasons["pss_bytes"] == f"the kernel has no smaps_rollup of process {os.getpid()}"


@pytest.mark.usefixtures("proc")
def test_a_process_of_another_user_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refused)
    record = shared_memory(42, [os.getpid()])
    assert record.values["pss_bytes"] is None
    assert "Permission denied" in record.reasons["pss_bytes"]


def test_a_process_that_is_gone_is_a_reason() -> None:
    assert shared_memory(42, [2**22 + 1]).values["pss_bytes"] is None


def test_the_real_one_is_read() -> None:
    pss, rss = (shared_memory(42, [os.getpid()]).values[name] for name in ("pss_bytes", "rss_bytes"))
    assert isinstance(pss, int)
    assert isinstance(rss, int)
    assert 0 < pss <= rss
