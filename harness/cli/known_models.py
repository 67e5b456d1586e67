"""Models that commands name: known ones, or files."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bakeoff.engines import Model


def named_model(name_or_path: str) -> "Model":
    """Resolve a known model name; a file or folder of that name wins."""
    from bakeoff.engines.models import resolve

    is_path = "/" in name_or_path or Path(name_or_path).exists()
    return resolve(None, name_or_path, fetching) if is_path else resolve(name_or_path, None, fetching)


def fetching(have_bytes: int, total_bytes: int | None) -> None:
    """Show the progress of a download on a terminal."""
    from bakeoff.harness.conduct.progress import megabytes_text

    if sys.stderr.isatty():
        sys.stderr.write(f"\r{megabytes_text(have_bytes, total_bytes)}")
