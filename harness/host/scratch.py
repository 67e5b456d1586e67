"""Temporary folders that do not outlive a killed process."""

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

_PREFIX, _LOCK, _FILES = "bakeoff-scratch-", "lock", "files"
_NEW_S = 60.0
"""Age below which a folder without a lock may still be about to be locked."""


@contextlib.contextmanager
def scratch_folder() -> Generator[Path]:
    """A folder that is removed at the end of the block, or by the next process that needs one if this one is killed.

    Each folder is locked as long as its process lives; a process id would not do where containers share ``/tmp``.
    """
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    _remove_abandoned(folder.parent, made_before_s=folder.stat().st_mtime - _NEW_S)
    try:
        with (folder / _LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            files = folder / _FILES
            files.mkdir()
            yield files
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(parent: Path, made_before_s: float) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # of another user, or removed meanwhile
            if folder.stat().st_mtime > made_before_s:
                continue
            with (folder / _LOCK).open("r+b") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
