"""Run folders that lie elsewhere: an address instead of a path, read-only (``s3://…``, ``gs://…``, ``az://…``).

A copy is kept in the cache folder of this user, and brought up to date each time: a file is fetched again only when the
store says that it is another one. Nothing is ever written to the store.
"""

import hashlib
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import platformdirs

from results.atomic import write_atomic
from results.errors import NotReachable, NotWritable, RunNotFound
from results.store import LOG_NAME

_KNOWN = ".fetched.json"
_BLOCK = 1 << 20


def is_remote(place: str | Path) -> bool:
    """Whether it is an address of a store, not a path."""
    return "://" in str(place)


def fetched(address: str) -> Path:
    """The local copy of a run folder.

    Args:
        address: with a protocol that fsspec knows.

    Raises:
        RunNotFound: no run is there.
        NotReachable: its protocol needs a package, or the store does not answer.
        NotWritable: the cache cannot be written.
    """
    try:
        import fsspec  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise NotReachable(f"{address} lies in a store: pip install 'bakeoff[remote]'") from error
    try:
        store, root = fsspec.core.url_to_fs(address)
        return _copied(store, _files(store, root, address), _place(address))
    except (RunNotFound, NotReachable, NotWritable):
        raise
    except Exception as error:  # each store has errors of its own
        raise NotReachable(f"{address} cannot be read: {' '.join(str(error).split())}") from error


def _files(store: Any, root: str, address: str) -> dict[str, str]:  # noqa: ANN401  (fsspec has no types)
    """Each file's name inside the run, and its path in the store."""
    if "file" in store.protocol:  # its symbolic links would be copied as the files that they lead to
        raise NotReachable(f"{address} is a path of this machine; give it without file://")
    inside = {_inside(path, root): path for path in store.find(root)}
    if LOG_NAME not in inside:
        raise RunNotFound(f"{address} is not a run folder (it holds no {LOG_NAME})")
    return inside


def _copied(store: Any, inside: dict[str, str], target: Path) -> Path:  # noqa: ANN401
    """Bring the copy up to date; the list of what it holds is written last."""
    known_file = target / _KNOWN
    known: dict[str, str] = msgspec.json.decode(known_file.read_bytes()) if known_file.exists() else {}
    marks = {name: str(store.ukey(path)) for name, path in inside.items()}
    for name, path in inside.items():
        if known.get(name) != marks[name] or not (target / name).is_file():
            _fetch(store, path, target / name)
    for name in known.keys() - marks.keys():
        (target / name).unlink(missing_ok=True)
    write_atomic(known_file, msgspec.json.encode(marks))
    return target


def _fetch(store: Any, path: str, target: Path) -> None:  # noqa: ANN401
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotWritable(f"cannot make the folder {target.parent}: {error.strerror}") from error
    with store.open(path, "rb") as source:
        write_atomic(target, iter(lambda: source.read(_BLOCK), b""))


def _inside(path: str, root: str) -> str:
    """A file's name inside the run; a store may name files as it likes, but none that leads out of the folder."""
    name = path.removeprefix(root).lstrip("/")
    if ".." in PurePosixPath(name).parts:
        raise RunNotFound(f"{root} holds a file named {name!r}, which no run does")
    return name


def _place(address: str) -> Path:
    """Of the copy; the folder's name is the run's id, as it is in the store."""
    key = hashlib.sha256(address.rstrip("/").encode()).hexdigest()[:16]
    return Path(platformdirs.user_cache_dir("bakeoff")) / "remote" / key / PurePosixPath(address.rstrip("/")).name
