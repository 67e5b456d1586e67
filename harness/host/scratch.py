"""Temporary folders that do not outlive a killed process."""

import contextlib
import fcntl
import functools
import os
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
    _remove_abandoned(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        with (folder / _LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            files = folder / _FILES
            files.mkdir()
            yield files
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache  # once a process: no load waits for it
def _remove_abandoned(parent: Path) -> None:
    with tempfile.TemporaryFile(dir=parent) as new:  # the time by the clock that stamps the folders
        made_before_s = os.fstat(new.fileno()).st_mtime - _NEW_S
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # of another user, or removed meanwhile
            if folder.stat().st_mtime > made_before_s:
                continue
            with (folder / _LOCK).open("r+b") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
