"""Run folders in object stores (``s3://…``, ``gs://…``, ``az://…``): read, and copied to while a run goes on.

A reader keeps a copy in the user's cache folder and updates it on each access: a file is fetched again only if the
store reports that it changed. Reading writes nothing to the store.
"""

import contextlib
import hashlib
import re
from collections.abc import Generator
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import platformdirs

from bakeoff.installation import how_to_install
from bakeoff.results.errors import NotReachable, NotWritable, ResultsError, RunNotFound
from bakeoff.results.files.atomic import write_atomic
from bakeoff.results.log.run_log import RunLog
from bakeoff.results.log.store import LOG_NAME, RunFolder

_USER = re.compile(r"(?<=://)[^/@\s]*@")
_FETCHED_FILE = ".fetched.json"
_BLOCK = 1 << 20


def is_remote(place: object) -> bool:
    """Whether ``place`` is the address of a store rather than a path."""
    return "://" in str(place)


def without_user(text: str) -> str:
    """The text without names and passwords in addresses."""
    return _USER.sub("", text)


class RunCopy:
    """The copy of a run in a store, which follows the run's folder.

    It can be read after each update, and after an update that was cut off: the log, which names files, is stored after
    them. The log is stored whole, since a store cannot append; the files of a trial, when it has ended.

    Args:
        run: the folder.
        address: the store's folder of runs.

    Attributes:
        address: the copy's.
        problem: why the last update failed, in one line; None if the copy has all that it should.
    """

    def __init__(self, run: RunFolder, address: str) -> None:
        if not address.partition("://")[2].strip("/"):
            raise NotReachable(f"{address} names no place in the store; write it as s3://bucket/runs")
        place = f"{address.rstrip('/')}/{run.path.name}"
        self.address: str = without_user(place)
        self.problem: str | None = None
        self._folder = run.path
        self._store, self._root = _opened(place)
        self._stored: dict[str, tuple[int, int]] = {}

    @classmethod
    def begin(cls, run: RunFolder, address: str) -> "RunCopy":
        """Copy a run that begins.

        Raises:
            NotReachable: a package for the protocol is missing, or the store cannot be written.
        """
        copy = cls(run, address)
        copy.update(run.read_log())
        if copy.problem is not None:
            raise NotReachable(copy.problem)
        return copy

    def update(self, log: RunLog) -> None:
        """Store what is new; if that fails, :attr:`problem` says why, and the next update stores it.

        Args:
            log: the run's log, whose events are in its file.
        """
        try:
            with _reached(f"{self.address} cannot be written"):
                for name in self._names(log):
                    self._put(name)
        except NotReachable as error:
            self.problem = str(error)
        else:
            self.problem = None

    def _names(self, log: RunLog) -> list[str]:
        """Files that belong into the copy, the log last."""
        paths = [path.relative_to(self._folder) for path in sorted(self._folder.rglob("*")) if path.is_file()]
        wanted = [path for path in paths if not path.name.startswith(".") and path != Path(LOG_NAME)]
        ended = [path for path in wanted if path.parts[0] != "trials" or log.ended or path.parts[1] in log.finished]
        return [*(path.as_posix() for path in ended), LOG_NAME]

    def _put(self, name: str) -> None:
        path = self._folder / name
        state = path.stat()
        version = (state.st_size, state.st_mtime_ns)
        if self._stored.get(name) != version:
            self._store.put_file(str(path), f"{self._root}/{name}")
            self._stored[name] = version


def fetched(address: str) -> Path:
    """Fetch a run folder and return its local copy.

    Args:
        address: URL with a protocol that fsspec supports.

    Raises:
        RunNotFound: the address is not a run folder.
        NotReachable: a package for the protocol is missing, or the store cannot be read.
        NotWritable: the cache cannot be written.
    """
    store, root = _opened(address)
    with _reached(f"{address} cannot be read"):
        return _updated_copy(store, root, address)


def _opened(address: str) -> tuple[Any, str]:
    """The store of an address, and the address's path inside it."""
    try:
        import fsspec  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise NotReachable(f"{address} is in a remote store: {how_to_install('remote')}") from error
    with _reached(f"{address} cannot be reached"):
        store, root = fsspec.core.url_to_fs(address)
    if "file" in store.protocol:  # symbolic links would be followed and copied as files
        raise NotReachable(f"{address} is a local path; give it without file://")
    return store, root.rstrip("/")


@contextlib.contextmanager
def _reached(what: str) -> Generator[None]:
    """Each store raises its own errors; this turns them into ours, which begin with ``what``."""
    try:
        yield
    except ResultsError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise NotReachable(without_user(f"{what}: {reason}")) from error


def _updated_copy(store: Any, root: str, address: str) -> Path:  # noqa: ANN401  (fsspec has no types)
    """Update the copy; the list of its files and their versions is written last."""
    store.invalidate_cache()  # of an earlier access by this process
    log = f"{root}/{LOG_NAME}"
    if not store.exists(log):
        raise RunNotFound(f"{address} is not a run folder (it holds no {LOG_NAME})")
    target = _cache_folder(address)
    list_file = target / _FETCHED_FILE
    fetched_versions: dict[str, str] = msgspec.json.decode(list_file.read_bytes()) if list_file.exists() else {}
    versions: dict[str, str] = {}

    def update(name: str, path: str) -> None:
        versions[name] = str(store.ukey(path))
        if fetched_versions.get(name) != versions[name] or not (target / name).is_file():
            _fetch(store, path, target / name)

    update(LOG_NAME, log)  # before the list: a run that goes on stores the files that its log names first
    store.invalidate_cache()
    inside = {_inside(path, root): path for path in store.find(root)}
    for name in inside.keys() - {LOG_NAME}:
        update(name, inside[name])
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
