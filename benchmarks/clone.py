"""A clone of this checkout's HEAD with no environment and no cache, as a newcomer has it."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


@contextlib.contextmanager
def fresh_clone() -> Iterator[tuple[Path, dict[str, str]]]:
    """Yields the clone and an environment whose caches (pip's, models') are empty."""
    with tempfile.TemporaryDirectory(prefix="bakeoff-clone-") as name:
        folder = Path(name, "bakeoff")
        subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("VIRTUAL_ENV", "BAKEOFF"))}
        yield folder, {**inherited, "XDG_CACHE_HOME": str(Path(name, "cache"))}
