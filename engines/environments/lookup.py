"""Where an engine's packages are."""

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

from engines.environments.recipes import RECIPES, Recipe
from engines.errors import NotInstalled
from engines.machine import has_gpu
from workloads.options import nearest

MARKER = "bakeoff-environment.json"
"""Written last by an installation; a folder without it is half made."""
_SEPARATORS = re.compile(r"[-_.]+")


class Installation(msgspec.Struct, frozen=True):
    """What the marker says.

    Attributes:
        recipe: its name.
        requirements: groups that pip was asked for.
        removed: packages that were taken out again.
        versions: of everything that is in it, by the package's name as indexes write it.
        python: version of its interpreter.
        made_utc: when it was whole.
        size_bytes: what it takes on the disk.
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
        name: as indexes write it: lower case, with hyphens.
        version: as it says itself.
        record: the list of its files with their digests; empty where it was not installed by pip.
        editable_source: the folder that it is imported from, where it is only linked (``pip install -e``).
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
        name: its recipe's, or a path, or ``this`` for the one that Bakeoff runs in.
        folder: of the venv.
    """

    name: str
    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    def program(self, name: str) -> Path:
        """A console script of it; may not exist."""
        return self.folder / "bin" / name

    def version(self, distribution: str) -> str | None:
        """Version of a package in it; None where it is not installed."""
        found = next(iter(metadata.distributions(name=distribution, path=self._places())), None)
        return found.version if found else None

    def versions(self) -> dict[str, str]:
        """Versions of all packages in it, by name as indexes write it: lower case, with hyphens."""
        found = metadata.distributions(path=self._places())
        return dict(sorted((_name(package), package.version) for package in found))

    def packages(self) -> list[Package]:
        """All packages in it."""
        return [
            Package(_name(found), found.version, found.read_text("RECORD") or "", _editable_source(found))
            for found in metadata.distributions(path=self._places())
        ]

    def _places(self) -> list[str]:
        if self.folder == Path(sys.prefix):
            return sys.path  # some systems keep packages elsewhere
        return [str(place) for place in self.folder.glob("lib/python3*/site-packages")]


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
    """Where environments are kept: the platform's user cache (``XDG_CACHE_HOME`` moves it)."""
    return platformdirs.user_cache_path("bakeoff") / "environments"


def installed(name: str) -> Environment | None:
    """The environment of a recipe, if it is whole and its interpreter still exists."""
    made = Environment(name, environments_folder() / name)
    return made if (made.folder / MARKER).is_file() and made.python.exists() else None


def record(name: str) -> Installation | None:
    """What the marker of a recipe's environment says; None where there is none that can be read."""
    try:
        marker = (environments_folder() / name / MARKER).read_bytes()
        return msgspec.json.decode(marker, type=Installation)
    except (OSError, msgspec.MsgspecError):
        return None


def size_bytes(folder: Path) -> int:
    """What a folder takes on the disk."""
    total = 0
    for place, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # an installation may be at work in it
                total += os.lstat(os.path.join(place, file)).st_blocks * 512  # noqa: PTH118  (a hundred thousand files)
    return total


def find(wanted: str | None, recipes: Sequence[str], distributions: Sequence[str] = ()) -> Environment:
    """The environment that an engine runs in: the one that was asked for, else the first that is installed.

    Args:
        wanted: name of a recipe, or folder of a venv; None to look.
        recipes: names of recipes, best first; those made for this machine, with or without a GPU, go before others.
        distributions: packages of which one, found in our own environment, will do too.

    Raises:
        NotInstalled: there is none; the message says the command that installs it.
    """
    if wanted is not None:
        return _asked_for(wanted)
    suited = for_this_machine(recipes)
    for name in suited:
        if environment := installed(name):
            return environment
    own = Environment("this", Path(sys.prefix))
    if any(own.version(distribution) for distribution in distributions):
        return own
    names = " or ".join(distributions or recipes)
    if suited:
        raise NotInstalled(f"{names} is not installed", f"bakeoff engines install {suited[0]}")
    raise NotInstalled(f"{names} is not installed; install it, or give the url of one that runs")


def for_this_machine(recipes: Sequence[str]) -> list[str]:
    """Recipes, those first that are made for a machine with a GPU, or without one, as this is."""
    return sorted(recipes, key=lambda name: name in RECIPES and RECIPES[name].needs_gpu != has_gpu())


def _asked_for(wanted: str) -> Environment:
    if environment := installed(wanted):
        return environment
    folder = Path(wanted).expanduser()
    if (folder / "bin" / "python").exists():
        return Environment(wanted, folder.absolute())
    if wanted in RECIPES:
        raise NotInstalled(f"the environment {wanted} is not installed", f"bakeoff engines install {wanted}")
    raise NotInstalled(f"{wanted} is neither a venv nor an environment; {nearest(wanted, RECIPES)}")


def recipes_of(adapter: str) -> list[Recipe]:
    """The recipes that serve one adapter."""
    return [recipe for recipe in RECIPES.values() if recipe.adapter == adapter]
