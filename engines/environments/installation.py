"""Makes one environment: a venv, pip group by group, and at the very end the marker that makes it count.

Whatever ends an installation early leaves a folder without a marker, which nobody uses and the next installation
removes. Where packages come from is pip's own configuration: indexes, mirrors and proxies of the machine hold here too.
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

from engines import guard
from engines.environments.lookup import (
    MARKER,
    Environment,
    Installation,
    environments_folder,
    installed,
    record,
    size_bytes,
)
from engines.environments.recipes import RECIPES, Recipe
from engines.errors import InstallFailed, NotInstalled
from engines.tail import tail
from workloads.options import nearest

Progress = Callable[[str, float], None]
"""Called with what is being done and for how many seconds it has been: at its beginning, then every second."""
LOG = "install.log"
_VENV = (sys.executable, "-m", "venv")
_GRACE_S = ("5", "5")
_TAIL_LINES = 40
_IDLE = ("$ ", "WARNING", "note:", "hint:", "╰─>", "[end of output]")
"""How lines begin that do not say what went wrong."""
_BYTES_PER_GB = 10**9


def install(name: str, progress: Progress, *, again: bool = False) -> Environment:
    """Make the environment of a recipe; at once where it is there with the same requirements.

    Args:
        name: of the recipe.
        progress: hears each step.
        again: make it anew even so.

    Raises:
        NotInstalled: there is no such recipe.
        InstallFailed: another installation of it runs, the disk is too full, or pip failed; its log is named.
    """
    if name not in RECIPES:
        raise NotInstalled(f"unknown environment '{name}'; {nearest(name, RECIPES)}")
    recipe, folder = RECIPES[name], environments_folder() / name
    try:
        with _alone(recipe) as lock:
            if not again and (found := installed(name)) and is_current(recipe):
                progress(f"{name} is installed already", 0.0)
                return found
            _require_disk(recipe, folder)
            _remove(folder)
            _make(recipe, folder, lock, progress)
    except OSError as error:
        raise InstallFailed(f"{name} could not be installed: {error}; XDG_CACHE_HOME moves the folder") from error
    return Environment(name, folder)


def is_current(recipe: Recipe) -> bool:
    """Whether the environment of a recipe holds what the recipe says today."""
    made = record(recipe.name)
    return made is not None and (made.requirements, made.removed) == (recipe.requirements, recipe.remove)


@contextlib.contextmanager
def _alone(recipe: Recipe) -> Generator[int]:
    """Keep other installations of a recipe out; the lock ends with this process and the pip that it started."""
    root = environments_folder()
    root.mkdir(parents=True, exist_ok=True)
    with (root / f".{recipe.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InstallFailed(f"{recipe.name} is being installed by another process; wait for it") from error
        yield file.fileno()


def _require_disk(recipe: Recipe, folder: Path) -> None:
    """See that there is space enough, what an older environment takes included."""
    free = shutil.disk_usage(environments_folder()).free + size_bytes(folder)
    if free < recipe.disk_bytes:
        need, have = (f"{number / _BYTES_PER_GB:.1f} GB" for number in (recipe.disk_bytes, free))
        raise InstallFailed(f"{recipe.name} needs {need} of disk, and {environments_folder()} has {have} free")


def _remove(folder: Path) -> None:
    """Take an environment away, its marker first: nobody shall find half of it."""
    (folder / MARKER).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _make(recipe: Recipe, folder: Path, lock: int, progress: Progress) -> None:
    folder.mkdir()
    pip = (str(folder / "bin" / "python"), "-m", "pip", "--no-input", "--disable-pip-version-check")
    get = (*pip, "install", "--progress-bar", "off")
    steps: list[tuple[str, Sequence[str]]] = [("making a venv", (*_VENV, str(folder)))]
    steps += [(f"pip install {' '.join(group)}", (*get, *group)) for group in recipe.requirements]
    if recipe.remove:
        steps.append((f"pip uninstall {' '.join(recipe.remove)}", (*pip, "uninstall", "-y", *recipe.remove)))
    for number, (words, argv) in enumerate(steps, start=1):
        shown = f"{recipe.name}: {words} ({number} of {len(steps)})"
        if _run(argv, folder / LOG, lock, lambda seconds, shown=shown: progress(shown, seconds)) != 0:
            raise _failure(recipe, folder / LOG)
    _mark(recipe, Environment(recipe.name, folder))


def _run(argv: Sequence[str], log: Path, lock: int, tick: Callable[[float], None]) -> int:
    """Run one step under the guard, so that neither it nor a compiler that it started outlives us; returns its status.

    Args:
        argv: program and arguments.
        log: its output is appended there.
        lock: stays held until the guard has ended.
        tick: hears how many seconds it has been.
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
    began = time.monotonic()
    try:
        tick(0.0)
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(1.0)
            tick(time.monotonic() - began)
    finally:
        process.stdin.close()  # the guard's sign to stop what still runs
        process.wait()


def _failure(recipe: Recipe, log: Path) -> InstallFailed:
    """Pip's last meaningful line: its last error, else the last thing that was said."""
    said = [line.strip() for line in tail(log, _TAIL_LINES)]
    said = [line for line in said if line and not line.startswith(_IDLE)]
    errors = [line for line in said if line.lower().startswith("error: ")]
    reason = (errors or said or ["it said nothing"])[-1]
    note = f" ({recipe.note})" if recipe.note else ""
    return InstallFailed(f"{recipe.name} could not be installed: {reason}{note}; see {log}")


def _mark(recipe: Recipe, made: Environment) -> None:
    """Write the marker, whole or not at all."""
    versions = made.versions()
    if recipe.distribution not in versions:
        raise InstallFailed(f"{recipe.name} could not be installed: pip left no {recipe.distribution} in {made.folder}")
    installation = Installation(
        recipe=recipe.name,
        requirements=recipe.requirements,
        removed=recipe.remove,
        versions=versions,
        python=".".join(map(str, sys.version_info[:3])),
        made_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        size_bytes=size_bytes(made.folder),
    )
    part = made.folder / f"{MARKER}.part"
    with part.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(installation)))
        file.flush()
        os.fsync(file.fileno())
    part.rename(made.folder / MARKER)
