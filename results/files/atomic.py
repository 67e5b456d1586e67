"""Atomic replacement of a file; the only module that replaces files.

Guarantee: once :func:`write_atomic` returns, the path holds the new bytes; after any earlier failure it holds the old
ones. Method: write a temporary file in the same folder, fsync, rename, fsync the folder.
A new file gets its mode from the umask, a replaced one keeps its mode.
Cost: two fsyncs (about 12 ms on a virtual disk), so use it for manifests and reports, not for logs.
"""

import contextlib
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from bakeoff.results.errors import NotWritable


def write_atomic(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Replace the file at ``path`` with ``data``, given as bytes or as an iterable of chunks.

    Raises:
        NotWritable: the folder is missing, read-only or full.
    """
    name = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        # Not tempfile: its files are readable by their owner only, whatever the umask.
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise NotWritable(f"cannot write {path}: {error.strerror}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(handle, stat.S_IMODE(path.stat().st_mode))
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)  # noqa: PTH105  (Path.replace hides that it is the atomic rename)
    except OSError as error:
        raise NotWritable(f"cannot write {path}: {error.strerror}") from error
    finally:
        name.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
