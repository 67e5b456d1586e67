"""Clones this checkout's HEAD without an environment or caches, as a new user has it."""

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def fresh_clone() -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield the clone, and environment variables that give pip and the models empty caches."""
    with tempfile.TemporaryDirectory(prefix="bakeoff-clone-") as name:
        folder = Path(name, "bakeoff")
        subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("VIRTUAL_ENV", "BAKEOFF"))}
        yield folder, {**inherited, "XDG_CACHE_HOME": str(Path(name, "cache"))}


def timed_make(target: str, folder: Path, environment: dict[str, str]) -> tuple[int, float]:
    """Run ``make target`` in a clone and print the end of its output; returns exit status and minutes."""
    started = time.monotonic()
    done = subprocess.run(["make", target], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    minutes = (time.monotonic() - started) / 60
    print(done.stdout[-6000:], done.stderr[-3000:], sep="\n")
    return done.returncode, minutes
