"""What a look at the file system shows of a model, and its JSON files. Imports no torch."""

import json
from pathlib import Path
from typing import Any

from reference_engine.errors import CheckpointError


def check_model_path(path: Path) -> None:
    """Fails early, without torch, on the mistakes that a look at the file system shows.

    Raises:
        CheckpointError: nothing there, or neither a checkpoint directory nor a .gguf file.
    """
    if not path.exists():
        raise CheckpointError(f"{path}: no such model; give a Hugging Face checkpoint directory or a .gguf file")
    if path.is_dir() and not (path / "config.json").exists():
        raise CheckpointError(f"{path}: no config.json in it, so it is no Hugging Face checkpoint directory")
    if path.is_file() and path.suffix != ".gguf":
        raise CheckpointError(f"{path}: a model file must end in .gguf; else give a checkpoint directory")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        CheckpointError: the file is missing, is no JSON, or holds something else than an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; is {path.parent} a Hugging Face checkpoint directory?") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); fetch it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object; fetch it again")
    return value
