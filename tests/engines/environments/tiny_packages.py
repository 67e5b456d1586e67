"""Tiny packages that pip accepts, recipes of them, and fast environments."""

import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from bakeoff.engines.environments import RECIPES, Recipe
from bakeoff.engines.environments.lookup import MARKER, environments_folder

QUICK_VENV = """
import pathlib, sys, venv, pip
folder = pathlib.Path(sys.argv[1])
venv.create(folder, symlinks=True)
site = next(folder.glob("lib/python3*/site-packages"))
(site / "pip").symlink_to(pathlib.Path(pip.__file__).parent)
"""
"""Makes a venv that links to the pip of the running interpreter: a tenth of a second instead of three."""
_WAITING = """
import os, signal
def build_wheel(*_):
    with open(os.environ["BAKEOFF_TEST_FIFO"], "w") as fifo:
        fifo.write(str(os.getpid()))
    while True:
        signal.pause()
"""


def wheel(folder: Path, name: str, version: str = "1.0", *requires: str) -> None:
    """A wheel with one module that contains its version."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    head = f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n"  # many packages spell their name so
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{module}.py", f"version = {version!r}\n")
        archive.writestr(
            f"{info}/METADATA", head + "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"{module}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def endless_sdist(folder: Path, name: str) -> None:
    """A source package whose build writes its pid to a FIFO (``BAKEOFF_TEST_FIFO``) and never ends."""
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "waiting"\nbackend-path = ["."]\n',
        "waiting.py": _WAITING,
    }
    with tarfile.open(folder / f"{name}-1.0.tar.gz", "w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(f"{name}-1.0/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))


def only_from(wheels: Path, cache: Path, patch: pytest.MonkeyPatch) -> None:
    """Make ``wheels`` pip's only source, and keep Bakeoff's environments below ``cache``."""
    for name, value in {
        "CONFIG_FILE": "/dev/null",
        "NO_INDEX": "1",
        "FIND_LINKS": str(wheels),
        "NO_CACHE_DIR": "1",
    }.items():
        patch.setenv(f"PIP_{name}", value)
    patch.setenv("XDG_CACHE_HOME", str(cache))


def recipe(patch: pytest.MonkeyPatch, name: str, *groups: tuple[str, ...], **more: object) -> Recipe:
    """A recipe that lasts as long as the test; its engine is the first package of its last group."""
    made = Recipe(**{"name": name, "adapter": "tiny", "requirements": groups,
                     "distribution": groups[-1][0].partition("==")[0], **more})  # fmt: skip
    patch.setitem(RECIPES, name, made)
    return made


def pretend(made: Recipe, **versions: str) -> Path:
    """The files that an installation leaves, without an installation: interpreter, metadata and marker."""
    folder = environments_folder() / made.name
    site = folder / "lib" / "python3.11" / "site-packages"
    for name, version in versions.items():
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    marker = {
        "recipe": made.name, "requirements": made.requirements, "removed": made.remove,
        "versions": {name.replace("_", "-"): version for name, version in versions.items()},
        "python": "3.11.7", "made_utc": "2026-01-01T00:00:00+00:00", "size_bytes": 3_400_000_000,
    }  # fmt: skip
    (folder / MARKER).write_text(json.dumps(marker))
    return folder
