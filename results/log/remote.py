"""Read-only access to run folders in remote stores (``s3://…``, ``gs://…``, ``az://…``).

A copy is kept in the user's cache folder and updated on each access: a file is fetched again only if the store reports
that it changed. Nothing is ever written to the store.
"""

import hashlib
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import platformdirs

from bakeoff.installation import how_to_install
from bakeoff.results.errors import NotReachable, NotWritable, RunNotFound
from bakeoff.results.files.atomic import write_atomic
from bakeoff.results.log.store import LOG_NAME

_FETCHED_FILE = ".fetched.json"
_BLOCK = 1 << 20


def is_remote(place: str | Path) -> bool:
    """Whether ``place`` is the address of a store rather than a path."""
    return "://" in str(place)


def fetched(address: str) -> Path:
    """Fetch a run folder and return its local copy.

    Args:
        address: URL with a protocol that fsspec supports.

    Raises:
        RunNotFound: the address is not a run folder.
        NotReachable: a package for the protocol is missing, or the store cannot be read.
        NotWritable: the cache cannot be written.
    """
    try:
        import fsspec  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise NotReachable(f"{address} is in a remote store: {how_to_install('remote')}") from error
    try:
        store, root = fsspec.core.url_to_fs(address)
        return _updated_copy(store, _files(store, root, address), _cache_folder(address))
    except (RunNotFound, NotReachable, NotWritable):
        raise
    except Exception as error:  # each store raises its own errors
        raise NotReachable(f"{address} cannot be read: {' '.join(str(error).split())}") from error


def _files(store: Any, root: str, address: str) -> dict[str, str]:  # noqa: ANN401  (fsspec has no types)
    """Name within the run → path in the store."""
    if "file" in store.protocol:  # symbolic links would be followed and copied as files
        raise NotReachable(f"{address} is a local path; give it without file://")
    inside = {_inside(path, root): path for path in store.find(root)}
    if LOG_NAME not in inside:
        raise RunNotFound(f"{address} is not a run folder (it holds no {LOG_NAME})")
    return inside


def _updated_copy(store: Any, inside: dict[str, str], target: Path) -> Path:  # noqa: ANN401
    """Update the copy; the list of its files and their versions is written last."""
    list_file = target / _FETCHED_FILE
    fetched_versions: dict[str, str] = msgspec.json.decode(list_file.read_bytes()) if list_file.exists() else {}
    versions = {name: str(store.ukey(path)) for name, path in inside.items()}
    for name, path in inside.items():
        if fetched_versions.get(name) != versions[name] or not (target / name).is_file():
            _fetch(store, path, target / name)
    for name in fetched_versions.keys() - versions.keys():
        (target / name).unlink(missing_ok=True)
    write_atomic(list_file, msgspec.json.encode(versions))
    return target


def _fetch(store: Any, path: str, target: Path) -> None:  # noqa: ANN401
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotWritable(f"cannot create the folder {target.parent}: {error.strerror}") from error
    with store.open(path, "rb") as source:
        write_atomic(target, iter(lambda: source.read(_BLOCK), b""))


def _inside(path: str, root: str) -> str:
    """Name of a file within the run; a store must not name a file outside it."""
    name = path.removeprefix(root).lstrip("/")
    if ".." in PurePosixPath(name).parts:
        raise RunNotFound(f"{root} holds a file named {name!r}, so it is not a run folder")
    return name


def _cache_folder(address: str) -> Path:
    """Folder of the copy; its name is the run's id, as in the store."""
    key = hashlib.sha256(address.rstrip("/").encode()).hexdigest()[:16]
    return Path(platformdirs.user_cache_dir("bakeoff")) / "remote" / key / PurePosixPath(address.rstrip("/")).name
