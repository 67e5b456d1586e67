"""Whether a file of a finished trial still is what was stored.

A file that was cut, changed or lost on its way (an artifact of CI, a copy that was broken off) would change figures
without a word, so the record of a trial has the size and the hash of each of its files, and readers compare.
"""

import hashlib
from pathlib import Path

from bakeoff.results.errors import RunUnreadable
from bakeoff.results.records import StoredFile

RESTORE = "restore the file from a copy"
"""What to do about a damaged file that nothing can make again."""


def stored_file(path: Path, records: int) -> StoredFile:
    """Describe a file as it is now.

    Args:
        path: of the file.
        records: number of records in it.

    Raises:
        RunUnreadable: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            return StoredFile(records, file.tell(), sha256)
    except OSError as error:
        raise RunUnreadable(f"{path} cannot be read ({error.strerror}); {RESTORE}") from error


def read_stored(path: Path, stored: StoredFile | None, remedy: str = RESTORE) -> bytes | None:
    """Bytes of a file; None if there is none and none was stored.

    Args:
        path: of the file.
        stored: what it was when its trial was finished; None if that is not known.
        remedy: what to do if it is no longer so.

    Raises:
        RunUnreadable: it cannot be read, is missing or was changed.
    """
    try:
        if stored is not None:  # a file of another size need not be read
            _compare_sizes(path, stored, path.stat().st_size, remedy)
        data = path.read_bytes()
    except FileNotFoundError as error:
        if stored is None:
            return None
        raise RunUnreadable(f"{path} is missing; {remedy}") from error
    except OSError as error:
        raise RunUnreadable(f"{path} cannot be read ({error.strerror}); {remedy}") from error
    if stored is not None:
        _compare_sizes(path, stored, len(data), remedy)
        _compare_hashes(path, stored, hashlib.sha256(data).hexdigest(), remedy)
    return data


def verify(path: Path, stored: StoredFile | None, remedy: str = RESTORE) -> None:
    """Refuse a file that is no longer what was stored, without keeping it in memory; arguments as of `read_stored`.

    Raises:
        RunUnreadable: as :func:`read_stored`.
    """
    if stored is None:
        return
    if not path.is_file():
        raise RunUnreadable(f"{path} is missing; {remedy}")
    _compare_sizes(path, stored, path.stat().st_size, remedy)
    _compare_hashes(path, stored, stored_file(path, stored.records).sha256, remedy)


def _compare_sizes(path: Path, stored: StoredFile, size_bytes: int, remedy: str) -> None:
    if size_bytes != stored.size_bytes:
        raise RunUnreadable(f"{path} has {size_bytes:,} bytes, and {stored.size_bytes:,} were stored; {remedy}")


def _compare_hashes(path: Path, stored: StoredFile, sha256: str, remedy: str) -> None:
    if sha256 != stored.sha256:
        raise RunUnreadable(f"{path} was changed since it was stored; {remedy}")
