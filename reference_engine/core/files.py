"""Checks of a model path, and readers of a checkpoint's JSON files and of text files. Imports no torch."""

import json
import sys
from pathlib import Path
from typing import Any

from bakeoff.reference_engine.errors import CheckpointError, RequestError


def check_model_path(path: Path) -> None:
    """Checks that a path is a checkpoint directory or a .gguf file, without importing torch.

    Raises:
        CheckpointError: the path does not exist, or is neither a checkpoint directory nor a .gguf file.
    """
    if not path.exists():
        raise CheckpointError(f"{path}: no such model; give a Hugging Face checkpoint directory or a .gguf file")
    if path.is_dir() and not (path / "config.json").exists():
        raise CheckpointError(f"{path}: contains no config.json, so it is not a Hugging Face checkpoint directory")
    if path.is_file() and path.suffix != ".gguf":
        raise CheckpointError(f"{path}: a model file must end in .gguf; else give a checkpoint directory")


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object from a file.

    Raises:
        CheckpointError: the file is missing, is not JSON, or does not hold an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; is {path.parent} a Hugging Face checkpoint directory?") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); fetch it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object; fetch it again")
    return value


def read_text(path: Path | None) -> str:
    """Reads a UTF-8 text from a file, without converting line ends; None stands for the standard input.

    Raises:
        RequestError: the text cannot be read, or is not UTF-8.
    """
    try:
        data = sys.stdin.buffer.read() if path is None else path.read_bytes()
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        where = "the standard input" if path is None else path
        raise RequestError(f"{where} cannot be read as UTF-8 text: {error}") from error
