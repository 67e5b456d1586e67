"""Lookup of the Python environment in which an engine is installed."""

import contextlib
import os
import re
import sys
import urllib.parse
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import msgspec
import platformdirs

from bakeoff.engines.environments.recipes import RECIPES
from bakeoff.engines.errors import NotInstalled
from bakeoff.engines.machine import has_gpu
from bakeoff.workloads.options import nearest

MARKER = "bakeoff-environment.json"
"""File that an installation writes last; a folder without it is incomplete."""
_SEPARATORS = re.compile(r"[-_.]+")


class Installation(msgspec.Struct, frozen=True):
    """Record of an installation, stored in the marker.

    Attributes:
        recipe: name of the recipe.
        requirements: groups of requirements that pip installed.
        removed: packages that were uninstalled afterwards.
        versions: versions of all packages, by normalised name.
        python: version of the interpreter.
        made_utc: time of completion, ISO 8601.
        size_bytes: size on disk.
    """

    recipe: str
    requirements: tuple[tuple[str, ...], ...]
    removed: tuple[str, ...]
    versions: dict[str, str]
    python: str
    made_utc: str
    size_bytes: int


class Package(msgspec.Struct, frozen=True):
    """One installed package.

    Attributes:
        name: normalised name: lower case, with hyphens.
        version: version in its metadata.
        record: list of its files with their digests; empty if pip did not install it.
        editable_source: source folder of an editable installation (``pip install -e``); None otherwise.
    """

    name: str
    version: str
    record: str
    editable_source: Path | None


class _Directory(msgspec.Struct, frozen=True):
    editable: bool = False


class _DirectUrl(msgspec.Struct, frozen=True):
    """``direct_url.json`` of PEP 610."""

    url: str = ""
    dir_info: _Directory = _Directory()


class Environment(msgspec.Struct, frozen=True):
    """A Python environment.

    Attributes:
        name: name of its recipe, a path, or ``this`` for the one in which Bakeoff runs.
        folder: folder of the venv.
    """

    name: str
    folder: Path

    @property
    def python(self) -> Path:
        """Path of the interpreter."""
        return self.folder / "bin" / "python"

    def program(self, name: str) -> Path:
        """Path of a console script, which may not exist."""
        return self.folder / "bin" / name

    def version(self, distribution: str) -> str | None:
        """Version of a package; None if it is not installed."""
        package = next(iter(metadata.distributions(name=distribution, path=self._search_path())), None)
        return package.version if package else None

    def versions(self) -> dict[str, str]:
        """Versions of all packages, by normalised name."""
        packages = metadata.distributions(path=self._search_path())
        return dict(sorted((_name(package), package.version) for package in packages))

    def packages(self) -> list[Package]:
        """All installed packages."""
        return [
            Package(_name(package), package.version, package.read_text("RECORD") or "", _editable_source(package))
            for package in metadata.distributions(path=self._search_path())
        ]

    def _search_path(self) -> list[str]:
        if self.folder == Path(sys.prefix):
            return sys.path  # some systems have packages outside site-packages
        return [str(folder) for folder in self.folder.glob("lib/python3*/site-packages")]


def _name(package: metadata.Distribution) -> str:
    return _SEPARATORS.sub("-", package.metadata["Name"]).lower()


def _editable_source(package: metadata.Distribution) -> Path | None:
    try:
        direct = msgspec.json.decode(package.read_text("direct_url.json") or "{}", type=_DirectUrl)
    except msgspec.MsgspecError:
        return None
    if not direct.dir_info.editable:
        return None
    return Path(urllib.parse.unquote(urllib.parse.urlsplit(direct.url).path))


def environments_folder() -> Path:
    """Folder of the environments, in the platform's user cache, which ``XDG_CACHE_HOME`` sets."""
    return platformdirs.user_cache_path("bakeoff") / "environments"


def installed(name: str) -> Environment | None:
    """The environment of a recipe; None if it is incomplete or its interpreter no longer exists."""
    environment = Environment(name, environments_folder() / name)
    complete = (environment.folder / MARKER).is_file() and environment.python.exists()
    return environment if complete else None


def record(name: str) -> Installation | None:
    """The record in the marker of a recipe's environment; None if there is no readable one."""
    try:
        marker = (environments_folder() / name / MARKER).read_bytes()
        return msgspec.json.decode(marker, type=Installation)
    except (OSError, msgspec.MsgspecError):
        return None


def size_bytes(folder: Path) -> int:
    """Size of a folder on disk."""
    total = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # a running installation can remove files
                total += os.lstat(os.path.join(parent, file)).st_blocks * 512  # noqa: PTH118  (faster, for 100,000 files)
    return total


def find(environment: str | None, recipes: Sequence[str], distributions: Sequence[str] = ()) -> Environment:
    """The environment of an engine: the configured one, otherwise the first that is installed.

    Args:
        environment: name of a recipe, or folder of a venv; None to search.
        recipes: names of recipes, best first; those suited to this machine, with or without a GPU, take precedence.
        distributions: packages of the engine; Bakeoff's own environment also qualifies if it has one of them.

    Raises:
        NotInstalled: there is none; the error has the command that installs it.
    """
    if environment is not None:
        return _configured(environment)
    suited = for_this_machine(recipes)
    for name in suited:
        if existing := installed(name):
            return existing
    own = Environment("this", Path(sys.prefix))
    if any(own.version(distribution) for distribution in distributions):
        return own
    names = " or ".join(distributions or recipes)
    if suited:
        raise NotInstalled(f"{names} is not installed", f"bakeoff engines install {suited[0]}")
    raise NotInstalled(f"{names} is not installed; install it, or set url to a running server")


def for_this_machine(recipes: Sequence[str]) -> list[str]:
    """Recipes sorted so that those suited to this machine, with or without a GPU, come first."""
    return sorted(recipes, key=lambda name: name in RECIPES and RECIPES[name].needs_gpu != has_gpu())


def _configured(name: str) -> Environment:
    if environment := installed(name):
        return environment
    folder = Path(name).expanduser()
    if (folder / "bin" / "python").exists():
        return Environment(name, folder.absolute())
    if name in RECIPES:
        raise NotInstalled(f"the environment {name} is not installed", f"bakeoff engines install {name}")
    raise NotInstalled(f"{name} is neither a venv nor an environment; {nearest(name, RECIPES)}")
