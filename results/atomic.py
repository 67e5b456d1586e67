"""The one place that replaces a file.

Guarantee: after :func:`write_atomic` returns, the path holds all of the new bytes; if anything fails before, it
holds all of the old ones. Pattern: a temporary file in the same folder, fsync, rename, fsync of the folder.
Accepted cost: two fsyncs (about 12 ms on a virtual disk), so it is for manifests and reports, not for logs.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from results.errors import NotWritable


def write_atomic(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Replace ``path`` by ``data``, whole or in pieces.

    Raises:
        NotWritable: the folder is missing, read-only or full.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise NotWritable(f"cannot write {path}: {error.strerror}; choose a folder you own with --out") from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        os.replace(name, path)  # noqa: PTH105  (Path.replace hides that it is the atomic rename)
    except OSError as error:
        raise NotWritable(f"cannot write {path}: {error.strerror}; free some space or choose --out") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)  # noqa: PTH108
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
