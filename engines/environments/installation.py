"""Installation of an environment: a venv, one pip call per group of requirements, and finally the marker.

An interrupted installation leaves a folder without a marker, which is never used and which the next installation
removes. Packages come from the machine's pip configuration, with its indexes, mirrors and proxies.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bakeoff.engines import guard
from bakeoff.engines.environments.lookup import (
    MARKER,
    Environment,
    Installation,
    environments_folder,
    installed,
    record,
    size_bytes,
)
from bakeoff.engines.environments.recipes import RECIPES, Recipe
from bakeoff.engines.errors import InstallFailed, NotInstalled
from bakeoff.engines.tail import tail
from bakeoff.workloads.options import nearest

Progress = Callable[[str, float], None]
"""Called with the current step and the seconds it has taken: at its start, then every second."""
LOG = "install.log"
_VENV = (sys.executable, "-m", "venv")
_GRACE_S = ("5", "5")
"""Seconds before SIGTERM and SIGKILL, as arguments of the guard."""
_TAIL_LINES = 40
_NOISE = ("$ ", "WARNING", "note:", "hint:", "╰─>", "[end of output]")
"""Prefixes of pip's lines that do not tell the cause of a failure."""
_BYTES_PER_GB = 10**9


def install(name: str, progress: Progress, *, again: bool = False) -> Environment:
    """Install the environment of a recipe, unless it exists with the same requirements.

    Args:
        name: name of the recipe.
        progress: called during each step.
        again: reinstall an existing environment.

    Raises:
        NotInstalled: there is no such recipe.
        InstallFailed: it is already being installed, the disk is too full, or pip failed; the error names the log.
    """
    recipe, folder = _recipe(name), environments_folder() / name
    try:
        with _locked(recipe) as lock:
            if not again and (environment := installed(name)) and is_current(recipe):
                progress(f"{name} is installed already", 0.0)
                return environment
            _require_disk(recipe, folder)
            _remove(folder)
            _make(recipe, folder, lock, progress)
    except OSError as error:
        raise InstallFailed(f"{name} could not be installed: {error}; XDG_CACHE_HOME moves the folder") from error
    return Environment(name, folder)


def remove(name: str) -> int:
    """Remove the environment of a recipe; returns the bytes that it had on disk.

    Raises:
        NotInstalled: there is no such recipe, or nothing of it here.
        InstallFailed: it is being installed, or cannot be removed.
    """
    recipe, folder = _recipe(name), environments_folder() / name
    if not folder.is_dir():
        here = ", ".join(each for each in RECIPES if (environments_folder() / each).is_dir()) or "none"
        raise NotInstalled(f"{name} is not installed; installed: {here}")
    try:
        with _locked(recipe):
            freed = size_bytes(folder)
            _remove(folder)
    except OSError as error:
        raise InstallFailed(f"{folder} cannot be removed: {error.strerror or error}") from error
    return freed


def _recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise NotInstalled(f"unknown environment '{name}'; {nearest(name, RECIPES)}")
    return RECIPES[name]


def is_current(recipe: Recipe) -> bool:
    """Whether the installed environment of a recipe matches the current recipe."""
    installation = record(recipe.name)
    if installation is None:
        return False
    return (installation.requirements, installation.removed) == (recipe.requirements, recipe.remove)


@contextlib.contextmanager
def _locked(recipe: Recipe) -> Generator[int]:
    """Lock out other installations of a recipe, until both this process and the pip that it started have ended."""
    root = environments_folder()
    root.mkdir(parents=True, exist_ok=True)
    with (root / f".{recipe.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InstallFailed(f"{recipe.name} is being installed by another process; wait for it") from error
        yield file.fileno()


def _require_disk(recipe: Recipe, folder: Path) -> None:
    """Check the free disk space; an old environment counts as free, because it will be removed."""
    free = shutil.disk_usage(environments_folder()).free + size_bytes(folder)
    if free < recipe.disk_bytes:
        need, have = (f"{number / _BYTES_PER_GB:.1f} GB" for number in (recipe.disk_bytes, free))
        raise InstallFailed(f"{recipe.name} needs {need} of disk, and {environments_folder()} has {have} free")


def _remove(folder: Path) -> None:
    """Remove an environment, its marker first, so that no process uses a partly removed one."""
    (folder / MARKER).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _make(recipe: Recipe, folder: Path, lock: int, progress: Progress) -> None:
    folder.mkdir()
    pip = (str(folder / "bin" / "python"), "-m", "pip", "--no-input", "--disable-pip-version-check")
    pip_install = (*pip, "install", "--progress-bar", "off")
    steps: list[tuple[str, Sequence[str]]] = [("making a venv", (*_VENV, str(folder)))]
    steps += [(f"pip install {' '.join(group)}", (*pip_install, *group)) for group in recipe.requirements]
    if recipe.remove:
        steps.append((f"pip uninstall {' '.join(recipe.remove)}", (*pip, "uninstall", "-y", *recipe.remove)))
    for number, (step, argv) in enumerate(steps, start=1):
        title = f"{recipe.name}: {step} ({number} of {len(steps)})"
        if _run(argv, folder / LOG, lock, lambda seconds, title=title: progress(title, seconds)) != 0:
            raise _failure(recipe, folder / LOG)
    _mark(recipe, Environment(recipe.name, folder))


def _run(argv: Sequence[str], log: Path, lock: int, tick: Callable[[float], None]) -> int:
    """Run one step under the guard, so that no process of it outlives this one; return its exit status.

    Args:
        argv: program and arguments.
        log: file to which its output is appended.
        lock: file descriptor of the lock, which the guard inherits and so holds.
        tick: called every second with the seconds since the start.
    """
    env = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "PYTHONHOME"}}
    with log.open("ab") as output:
        output.write(f"$ {' '.join(argv)}\n".encode())
        output.flush()
        process = subprocess.Popen(
            [sys.executable, "-I", guard.__file__, *_GRACE_S, "--", *argv],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=output, env=env,
            start_new_session=True, pass_fds=(lock,),
        )  # fmt: skip
    assert process.stdin is not None
    started = time.monotonic()
    try:
        tick(0.0)
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(1.0)
            tick(time.monotonic() - started)
    finally:
        process.stdin.close()  # tells the guard to stop running processes
        process.wait()


def _failure(recipe: Recipe, log: Path) -> InstallFailed:
    """Error with pip's last error line, otherwise its last meaningful line."""
    lines = [line.strip() for line in tail(log, _TAIL_LINES)]
    lines = [line for line in lines if line and not line.startswith(_NOISE)]
    errors = [line for line in lines if line.lower().startswith("error: ")]
    reason = (errors or lines or ["no output"])[-1]
    note = f" ({recipe.note})" if recipe.note else ""
    return InstallFailed(f"{recipe.name} could not be installed: {reason}{note}; see {log}")


def _mark(recipe: Recipe, environment: Environment) -> None:
    """Write the marker atomically."""
    versions = environment.versions()
    if recipe.distribution not in versions:
        raise InstallFailed(
            f"{recipe.name} could not be installed: pip left no {recipe.distribution} in {environment.folder}"
        )
    installation = Installation(
        recipe=recipe.name,
        requirements=recipe.requirements,
        removed=recipe.remove,
        versions=versions,
        python=".".join(map(str, sys.version_info[:3])),
        made_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        size_bytes=size_bytes(environment.folder),
    )
    part = environment.folder / f"{MARKER}.part"
    with part.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(installation)))
        file.flush()
        os.fsync(file.fileno())
    part.rename(environment.folder / MARKER)
