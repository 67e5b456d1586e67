"""State that interruptible long work leaves in its target, so that the same command resumes it.

A folder in the target holds the settings and everything needed; the target becomes a checkpoint only when the work is
done.
"""

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from bakeoff.reference_engine.core.files import read_json
from bakeoff.reference_engine.errors import CheckpointError, ConfigError
from bakeoff.reference_engine.tools.checkpoint_folder import whole_file, write_json

_SETTINGS = "settings.json"
_FILES = ("teacher", "student", "model", "text")  # settings stored as hashes


def check_new(target: Path, work: str) -> None:
    """Checks that a target is new, empty, or holds unfinished work.

    Args:
        target: directory of the checkpoint.
        work: name of the folder in it.

    Raises:
        CheckpointError: it is something else.
    """
    if target.exists() and not target.is_dir():
        raise CheckpointError(f"{target} is a file; give a directory to write the checkpoint to")
    if (target / "config.json").exists():
        raise CheckpointError(f"{target} is already a checkpoint; give a new directory")
    if target.is_dir() and any(target.iterdir()) and not (target / work / _SETTINGS).exists():
        raise CheckpointError(f"{target} is neither empty nor holds unfinished {work}; give a new directory")


def begin(work: Path, settings: Mapping[str, Any], free: Collection[str] = ()) -> None:
    """Stores the settings, or compares them with those of the work that is resumed.

    Args:
        work: folder in the target.
        settings: by the names of their options, with underscores.
        free: settings that may change on resuming.

    Raises:
        ConfigError: other settings differ.
    """
    file = work / _SETTINGS
    if not file.exists():
        work.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as scratch:
            write_json(scratch, settings)
        return
    earlier = read_json(file)
    for name, value in settings.items():
        if name in free or earlier.get(name) == value:
            continue
        difference = f"another {name}" if name in _FILES else f"{flag(name)} {earlier.get(name)}, not {value}"
        raise ConfigError(f"{work.parent} holds unfinished work with {difference}; give the same, or another --out")


def digest(checkpoint: Path) -> str:
    """SHA-256 of config and weights of a checkpoint directory."""
    whole = hashlib.sha256()
    for file in [checkpoint / "config.json", *sorted(checkpoint.glob("*.safetensors"))]:
        with file.open("rb") as handle:
            whole.update(hashlib.file_digest(handle, "sha256").digest())
    return whole.hexdigest()


def flag(name: str) -> str:
    """The command-line option of a setting."""
    return f"--{name.replace('_', '-')}"
