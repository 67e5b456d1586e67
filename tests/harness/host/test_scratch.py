"""Temporary folders of killed processes are removed by later ones."""

import fcntl
import os
import tempfile
import time
from pathlib import Path

import pytest

from bakeoff.harness.host.scratch import scratch_folder


@pytest.fixture(autouse=True)
def _own_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def make_old(folder: Path) -> None:
    an_hour_ago = time.time() - 3600
    os.utime(folder, (an_hour_ago, an_hour_ago))


def test_a_folder_is_there_for_the_block_only(tmp_path: Path) -> None:
    with scratch_folder() as folder:
        (folder / "plan").write_bytes(b"x")
    assert not list(tmp_path.iterdir())


def test_an_abandoned_folder_is_removed_and_one_in_use_is_not(tmp_path: Path) -> None:
    in_use, abandoned = tmp_path / "bakeoff-scratch-used", tmp_path / "bakeoff-scratch-killed"
    for folder in (in_use, abandoned):
        folder.mkdir()
        (folder / "lock").touch()
        make_old(folder)
    with (in_use / "lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with scratch_folder():
            assert in_use.is_dir()
            assert not abandoned.exists()


def test_a_folder_that_is_being_made_is_left_alone(tmp_path: Path) -> None:
    (young := tmp_path / "bakeoff-scratch-young").mkdir()
    (young / "lock").touch()
    with scratch_folder():
        assert young.is_dir()
