"""Where an engine's packages are."""

import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import msgspec
import platformdirs

from engines.environments.recipes import RECIPES, Recipe
from engines.errors import NotInstalled
from workloads.options import nearest

MARKER = "bakeoff-environment.json"
"""Written last by an installation; a folder without it is half made."""


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
        places = [str(place) for place in self.folder.glob("lib/python3*/site-packages")]
        found = next(iter(metadata.distributions(name=distribution, path=places)), None)
        return found.version if found else None


def environments_folder() -> Path:
    """Where environments are kept: the platform's user cache (``XDG_CACHE_HOME`` moves it)."""
    return platformdirs.user_cache_path("bakeoff") / "environments"


def installed(name: str) -> Environment | None:
    """The environment of a recipe, if it is whole."""
    folder = environments_folder() / name
    return Environment(name, folder) if (folder / MARKER).is_file() else None


def find(wanted: str | None, recipes: Sequence[str], distributions: Sequence[str] = ()) -> Environment:
    """The environment that an engine runs in: the one that was asked for, else the first that is installed.

    Args:
        wanted: name of a recipe, or folder of a venv; None to look.
        recipes: names of recipes, best first.
        distributions: packages of which one, found in our own environment, will do too.

    Raises:
        NotInstalled: there is none; the message says the command that installs it.
    """
    if wanted is not None:
        return _asked_for(wanted)
    for name in recipes:
        if environment := installed(name):
            return environment
    own = Environment("this", Path(sys.prefix))
    if any(own.version(distribution) for distribution in distributions):
        return own
    names = " or ".join(distributions or recipes)
    raise NotInstalled(f"{names} is not installed; run: bakeoff engines install {recipes[0]}")


def _asked_for(wanted: str) -> Environment:
    if environment := installed(wanted):
        return environment
    folder = Path(wanted).expanduser()
    if (folder / "bin" / "python").exists():
        return Environment(wanted, folder.absolute())
    if wanted in RECIPES:
        raise NotInstalled(f"the environment {wanted} is not installed; run: bakeoff engines install {wanted}")
    raise NotInstalled(f"{wanted} is neither a venv nor an environment; {nearest(wanted, RECIPES)}")


def recipes_of(adapter: str) -> list[Recipe]:
    """The recipes that serve one adapter."""
    return [recipe for recipe in RECIPES.values() if recipe.adapter == adapter]
